// SPDX-License-Identifier: BSD-3-Clause
// own_calls.cc - libibverbs' calls of its own functions.
//
// libibverbs calls ibv_reg_mr_iova2() and others by name, so that the dynamic linker leads these calls to interpose.cc.
// Their caller cannot be told: ibv_reg_mr() ends in a jump. So the addresses that the linker filled in are replaced.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "contrib/pinrun/loaded_object.h"
#include "contrib/pinrun/real_verbs.h"

namespace pinrail::pinrun {

#if defined __GLIBC__ && (defined __x86_64__ || defined __aarch64__)
namespace {

#ifdef __x86_64__
constexpr uint32_t kCall = R_X86_64_JUMP_SLOT, kAddress = R_X86_64_GLOB_DAT;
#else
constexpr uint32_t kCall = R_AARCH64_JUMP_SLOT, kAddress = R_AARCH64_GLOB_DAT;
#endif

// If the system refuses, the slot stays as it was.
void store(const dl_phdr_info& object, uintptr_t slot, void* function) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the page that contains the slot
  auto* page = reinterpret_cast<void*>(slot / page_size * page_size);
  const bool is_read_only = is_read_only_since_relocated(object, slot);
  if (is_read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as the relocation has it
  __atomic_store_n(reinterpret_cast<void**>(slot), function, __ATOMIC_RELAXED);
  if (is_read_only) mprotect(page, page_size, PROT_READ);
}

void store_all(const dl_phdr_info& object, const SymbolTables& tables, const Relocations& relocations) {
  for (size_t i = 0; i < relocations.bytes / sizeof(*relocations.first); ++i) {
    const ElfW(Rela)& each = relocations.first[i];
    const uint32_t type = ELF64_R_TYPE(each.r_info);
    if (type != kCall && type != kAddress) continue;
    const char* name = tables.names + tables.symbols[ELF64_R_SYM(each.r_info)].st_name;
    for (const Replacement& known : replacements()) {
      if (known.real != nullptr && std::strcmp(known.name, name) == 0)
        store(object, object.dlpi_addr + each.r_offset, known.real);
    }
  }
}

int look_into(dl_phdr_info* object, size_t, void* address_in_verbs) {
  if (!contains(*object, reinterpret_cast<uintptr_t>(address_in_verbs))) return 0;
  const SymbolTables tables = symbol_tables_of(*object);
  if (!tables.is_complete()) return 1;
  store_all(*object, tables, tables.of_data);
  store_all(*object, tables, tables.of_calls);
  return 1;
}

}  // namespace

void keep_own_calls(const RealVerbs& real) {
  if (real.dereg_mr != nullptr) dl_iterate_phdr(look_into, reinterpret_cast<void*>(real.dereg_mr));
}

#else  // another C library or processor

void keep_own_calls(const RealVerbs&) {}

#endif

}  // namespace pinrail::pinrun
