// SPDX-License-Identifier: BSD-3-Clause
// loaded_object.cc - reads the segments that the dynamic linker lists.
#include "contrib/pinrun/loaded_object.h"

#include <unistd.h>

namespace pinrail::pinrun {
namespace {

// The dynamic linker has replaced offsets by addresses, except in the kernel's object.
template <typename Type>
const Type* at(ElfW(Addr) base, ElfW(Addr) where) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as the object has it
  return reinterpret_cast<const Type*>(where < base ? base + where : where);
}

void read_entry(ElfW(Addr) base, const ElfW(Dyn) & entry, SymbolTables* tables) {
  switch (entry.d_tag) {
    case DT_GNU_HASH: tables->hash = at<uint32_t>(base, entry.d_un.d_ptr); break;
    case DT_SYMTAB: tables->symbols = at<ElfW(Sym)>(base, entry.d_un.d_ptr); break;
    case DT_STRTAB: tables->names = at<char>(base, entry.d_un.d_ptr); break;
    case DT_RELA: tables->of_data.first = at<ElfW(Rela)>(base, entry.d_un.d_ptr); break;
    case DT_RELASZ: tables->of_data.bytes = entry.d_un.d_val; break;
    case DT_JMPREL: tables->of_calls.first = at<ElfW(Rela)>(base, entry.d_un.d_ptr); break;
    case DT_PLTRELSZ: tables->of_calls.bytes = entry.d_un.d_val; break;
    default: break;
  }
}

// Returns the first segment of the type that contains the address, the ends rounded down to `unit`; NULL if none does.
const ElfW(Phdr) * segment_at(const dl_phdr_info& object, uint32_t type, uintptr_t address, uintptr_t unit) {
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const uintptr_t start = object.dlpi_addr + segment.p_vaddr, end = start + segment.p_memsz;
    if (segment.p_type == type && address >= start / unit * unit && address < end / unit * unit) return &segment;
  }
  return nullptr;
}

}  // namespace

SymbolTables symbol_tables_of(ElfW(Addr) base, const ElfW(Dyn) * dynamic) {
  SymbolTables result;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) read_entry(base, *entry, &result);
  return result;
}

SymbolTables symbol_tables_of(const dl_phdr_info& object) {
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    if (segment.p_type == PT_DYNAMIC)
      return symbol_tables_of(object.dlpi_addr, at<ElfW(Dyn)>(object.dlpi_addr, object.dlpi_addr + segment.p_vaddr));
  }
  return {};
}

bool contains(const dl_phdr_info& object, uintptr_t address) {
  return segment_at(object, PT_LOAD, address, 1) != nullptr;
}

bool is_read_only_since_relocated(const dl_phdr_info& object, uintptr_t address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return segment_at(object, PT_GNU_RELRO, address, page) != nullptr;
}

}  // namespace pinrail::pinrun
