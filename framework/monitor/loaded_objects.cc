// SPDX-License-Identifier: BSD-3-Clause
// Reads symbol tables of loaded objects. API context. dl_iterate_phdr() holds a lock that keeps the objects loaded; it
// is not the one under which constructors run.
#include "framework/monitor/loaded_objects.h"

#include <algorithm>
#include <cstring>

namespace pinrail::monitor {
namespace {

template <typename T>
const T* pointer(uintptr_t address) {
  return reinterpret_cast<const T*>(address);  // NOLINT(performance-no-int-to-ptr): an address from the loader
}

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != 0; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

}  // namespace

// The dynamic section's addresses are absolute with some loaders, and relative to the object with others.
LoadedObject::LoadedObject(const dl_phdr_info& info)
    : path_(info.dlpi_name != nullptr ? info.dlpi_name : ""), base_(info.dlpi_addr) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (size_t i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    const uintptr_t at = base_ + segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC) dynamic = pointer<ElfW(Dyn)>(at);
    if (segment.p_type != PT_LOAD) continue;
    begin_ = std::min(begin_, at);
    end_ = std::max(end_, at + segment.p_memsz);
  }
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    const uintptr_t value = dynamic->d_un.d_ptr;
    const uintptr_t at = holds(value) ? value : base_ + value;
    if (dynamic->d_tag == DT_SYMTAB) symbols_ = pointer<ElfW(Sym)>(at);
    if (dynamic->d_tag == DT_STRTAB) names_ = pointer<char>(at);
    if (dynamic->d_tag == DT_GNU_HASH) gnu_hash_ = pointer<uint32_t>(at);
    if (dynamic->d_tag == DT_HASH) hash_ = pointer<uint32_t>(at);
  }
}

bool LoadedObject::is_called(const ElfW(Sym) & symbol, const char* name) const {
  return symbol.st_shndx != SHN_UNDEF && std::strcmp(names_ + symbol.st_name, name) == 0;
}

// Layout of the GNU hash table: number of buckets, first symbol, number of filter words, filter shift, filter,
// buckets, chains. A chain ends with a hash whose lowest bit is set.
const ElfW(Sym) * LoadedObject::find_by_hash(const char* name) const {
  const uint32_t hash = gnu_hash_of(name);
  const uint32_t bucket_count = gnu_hash_[0], first = gnu_hash_[1], filter_words = gnu_hash_[2];
  if (bucket_count == 0) return nullptr;
  const uint32_t* const buckets = gnu_hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chains = buckets + bucket_count;
  for (uint32_t at = buckets[hash % bucket_count]; at >= first; ++at) {
    const uint32_t entry = chains[at - first];
    if ((entry | 1) == (hash | 1) && is_called(symbols_[at], name)) return &symbols_[at];
    if ((entry & 1) != 0) return nullptr;
  }
  return nullptr;
}

const ElfW(Sym) * LoadedObject::find(const char* name) const {
  if (symbols_ == nullptr || names_ == nullptr) return nullptr;
  if (gnu_hash_ != nullptr) return find_by_hash(name);
  const uint32_t count = hash_ != nullptr ? hash_[1] : 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (is_called(symbols_[i], name)) return &symbols_[i];
  }
  return nullptr;
}

// The address of a function that the object defines and exports; 0: none.
uintptr_t LoadedObject::function(const char* name) const {
  const ElfW(Sym)* const symbol = find(name);
  return symbol != nullptr && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC ? base_ + symbol->st_value : 0;
}

}  // namespace pinrail::monitor
