// SPDX-License-Identifier: BSD-3-Clause
// loaded_object.h - the tables of an object (a program or a shared library) that the dynamic linker uses.
//
// Threads  all functions may run together.
#ifndef PINRAIL_CONTRIB_PINRUN_LOADED_OBJECT_H
#define PINRAIL_CONTRIB_PINRUN_LOADED_OBJECT_H

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace pinrail::pinrun {

// Relocations with addends, as x86-64 and aarch64 have them.
struct Relocations {
  const ElfW(Rela) * first = nullptr;
  size_t bytes = 0;
};

struct SymbolTables {
  const uint32_t* hash = nullptr;  // of DT_GNU_HASH
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  Relocations of_data, of_calls;  // DT_RELA, DT_JMPREL

  bool is_complete() const { return hash != nullptr && symbols != nullptr && names != nullptr; }
};

// base: what was added to the object's addresses; dynamic: its dynamic section. Calls no function, so that it may run
// before a sanitizer has found those that it replaces.
SymbolTables symbol_tables_of(ElfW(Addr) base, const ElfW(Dyn) * dynamic);
SymbolTables symbol_tables_of(const dl_phdr_info& object);

// Whether the object has a segment at the address.
bool contains(const dl_phdr_info& object, uintptr_t address);

// Whether the dynamic linker has made the page of the address read-only after it relocated the object.
bool is_read_only_since_relocated(const dl_phdr_info& object, uintptr_t address);

}  // namespace pinrail::pinrun

#endif
