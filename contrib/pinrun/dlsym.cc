// SPDX-License-Identifier: BSD-3-Clause
// dlsym.cc - dlsym() and dlvsym() of the program: libibverbs' functions are answered with those of interpose.cc.
//
// Programs that take libibverbs by dlopen() (NCCL) look its functions up in its own scope, where interpose.cc is not
// found. What RTLD_NEXT and RTLD_DEFAULT mean depends on the caller, which the C library knows by its return address.
// So the functions that the program calls are written in assembly: they jump to the C library's own with the arguments
// and the return address unchanged, except if answer_dlsym() or answer_dlvsym() has an answer.
// The functions of libibverbs itself are looked up by version in its own scope, where interpose.cc is not found.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pinrun.h"

namespace pinrail::pinrun {

// The tables of an object (a program or a shared library) that the dynamic linker uses.
//
// Threads  all functions may run together.

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

// Reads the segments that the dynamic linker lists.

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

#if defined __GLIBC__ && (defined __x86_64__ || defined __aarch64__)

namespace pinrail::pinrun {
extern "C" {
void* pinrun_dlsym(void* handle, const char* name);
void* pinrun_answer_dlsym(void* handle, const char* name);
void* pinrun_answer_dlvsym(void* handle, const char* name, const char* version);
}

namespace {

void* find_nothing(void*, const char*) { return nullptr; }
void* find_no_version(void*, const char*, const char*) { return nullptr; }

}  // namespace

// Read by the assembly below, which the compiler does not see: "used" keeps them with -flto. Set by find_real().
extern "C" {
decltype(&find_nothing) pinrun_real_dlsym __attribute__((used, visibility("hidden"))) = find_nothing;
decltype(&find_no_version) pinrun_real_dlvsym __attribute__((used, visibility("hidden"))) = find_no_version;
}

namespace {

uint32_t hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

// Returns the index of the first symbol of the name's bucket; 0 if it is empty. *hashes_out: the hash of symbol i is at
// i.
uint32_t first_in_bucket(const uint32_t* table, uint32_t hash, const uint32_t** hashes_out) {
  const uint32_t buckets = table[0], first_symbol = table[1], filter_words = table[2];
  const uint32_t* bucket = table + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  *hashes_out = bucket + buckets - first_symbol;
  return buckets != 0 ? bucket[hash % buckets] : 0;
}

bool is_equal(const char* one, const char* other) {
  while (*one != '\0' && *one == *other) ++one, ++other;
  return *one == *other;
}

// Returns the address of the function that the object exports by this name; 0 if it exports none.
uintptr_t exported(const link_map& object, const char* name) {
  const SymbolTables tables = symbol_tables_of(object.l_addr, object.l_ld);
  if (!tables.is_complete()) return 0;
  const uint32_t hash = hash_of(name), *hashes = nullptr;
  for (uint32_t i = first_in_bucket(tables.hash, hash, &hashes); i != 0; ++i) {
    const ElfW(Sym)& symbol = tables.symbols[i];
    if ((hashes[i] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        is_equal(tables.names + symbol.st_name, name))
      return object.l_addr + symbol.st_value;
    if ((hashes[i] & 1) != 0) return 0;  // the last of its bucket
  }
  return 0;
}

// Looks for the next object that exports both functions: the C library, or another preloaded library. Sanitizers look
// functions up before they can be called through their own replacements: so this calls none of the C library.
void find_real() {
  const auto own = reinterpret_cast<uintptr_t>(&pinrun_dlsym);
  bool is_behind_own = false;
  for (const link_map* object = _r_debug.r_map; object != nullptr; object = object->l_next) {
    const uintptr_t by_name = exported(*object, "dlsym"), by_version = exported(*object, "dlvsym");
    if (is_behind_own && by_name != 0 && by_version != 0) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): as the object has it
      pinrun_real_dlvsym = reinterpret_cast<decltype(pinrun_real_dlvsym)>(by_version);
      // release: both are set; pairs with the acquire load in find_real_once()
      __atomic_store_n(&pinrun_real_dlsym, reinterpret_cast<decltype(pinrun_real_dlsym)>(by_name), __ATOMIC_RELEASE);
      return;
    }
    is_behind_own = is_behind_own || by_name == own;
  }
}

// Threads that are here together find the same.
void find_real_once() {
  if (__atomic_load_n(&pinrun_real_dlsym, __ATOMIC_ACQUIRE) == find_nothing) find_real();
}

// Returns what stands for a function of libibverbs; NULL for every other address.
void* own_for(void* symbol) {
  static_cast<void>(real_verbs());
  for (const Replacement& each : replacements()) {
    if (each.real == symbol) return each.own;
  }
  return nullptr;
}

// Other names cost one comparison. A global look-up finds interpose.cc by itself.
bool may_be_ours(const void* handle, const char* name) {
  return handle != RTLD_DEFAULT && handle != RTLD_NEXT && name[0] == 'i' && name[1] == 'b' && name[2] == 'v' &&
         name[3] == '_';
}

}  // namespace

void* real_dlsym(void* handle, const char* name) {
  find_real_once();
  return pinrun_real_dlsym(handle, name);
}

void* real_dlvsym(void* handle, const char* name, const char* version) {
  find_real_once();
  return pinrun_real_dlvsym(handle, name, version);
}

extern "C" {

__attribute__((used, visibility("hidden"))) void* pinrun_answer_dlsym(void* handle, const char* name) {
  find_real_once();
  if (!may_be_ours(handle, name)) return nullptr;
  void* symbol = pinrun_real_dlsym(handle, name);
  return symbol != nullptr ? own_for(symbol) : nullptr;
}

__attribute__((used, visibility("hidden"))) void* pinrun_answer_dlvsym(void* handle, const char* name,
                                                                       const char* version) {
  find_real_once();
  if (!may_be_ours(handle, name)) return nullptr;
  void* symbol = pinrun_real_dlvsym(handle, name, version);
  return symbol != nullptr ? own_for(symbol) : nullptr;
}

}  // extern "C"
}  // namespace pinrail::pinrun

// FUNCTION: three arguments are kept for the jump, also by the one that has two.
#ifdef __x86_64__
#define PINRUN_FUNCTION(name)                                                             \
  __asm__(".text\n.globl pinrun_" name "\n.type pinrun_" name ", @function\npinrun_" name \
          ":\n.cfi_startproc\nendbr64\n"                                                  \
          "push %rdi\n.cfi_adjust_cfa_offset 8\npush %rsi\n.cfi_adjust_cfa_offset 8\n"    \
          "push %rdx\n.cfi_adjust_cfa_offset 8\ncall pinrun_answer_" name                 \
          "\n"                                                                            \
          "pop %rdx\n.cfi_adjust_cfa_offset -8\npop %rsi\n.cfi_adjust_cfa_offset -8\n"    \
          "pop %rdi\n.cfi_adjust_cfa_offset -8\ntest %rax, %rax\njnz 1f\n"                \
          "jmp *pinrun_real_" name "(%rip)\n1: ret\n.cfi_endproc\n.size pinrun_" name ", .-pinrun_" name "\n")
#define PINRUN_FIRST_VERSION "GLIBC_2.2.5"
#else
#define PINRUN_FUNCTION(name)                                                                                      \
  __asm__(".text\n.globl pinrun_" name "\n.type pinrun_" name ", %function\npinrun_" name                          \
          ":\n.cfi_startproc\nhint #34\n"                                                                          \
          "stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n" \
          "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\nbl pinrun_answer_" name                                       \
          "\nmov x9, x0\n"                                                                                         \
          "ldp x0, x1, [sp, #16]\nldr x2, [sp, #32]\nldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\n"        \
          ".cfi_restore x29\n.cfi_restore x30\ncbz x9, 1f\nmov x0, x9\nret\n"                                      \
          "1: adrp x9, pinrun_real_" name "\nldr x9, [x9, #:lo12:pinrun_real_" name                                \
          "]\nbr x9\n"                                                                                             \
          ".cfi_endproc\n.size pinrun_" name ", .-pinrun_" name "\n")
#define PINRUN_FIRST_VERSION "GLIBC_2.17"
#endif
PINRUN_FUNCTION("dlsym");
PINRUN_FUNCTION("dlvsym");

// In the C library since 2.34, before that in libdl.
__asm__(".symver pinrun_dlsym, dlsym@" PINRUN_FIRST_VERSION
        "\n.set pinrun_dlsym_2, pinrun_dlsym\n"
        ".globl pinrun_dlsym_2\n.symver pinrun_dlsym_2, dlsym@@GLIBC_2.34\n"
        ".symver pinrun_dlvsym, dlvsym@" PINRUN_FIRST_VERSION
        "\n.set pinrun_dlvsym_2, pinrun_dlvsym\n"
        ".globl pinrun_dlvsym_2\n.symver pinrun_dlvsym_2, dlvsym@@GLIBC_2.34\n");

#else  // another C library or processor: such programs are not served

namespace pinrail::pinrun {
void* real_dlsym(void* handle, const char* name) { return dlsym(handle, name); }
void* real_dlvsym(void* handle, const char* name, const char* version) { return dlvsym(handle, name, version); }
}  // namespace pinrail::pinrun

#endif

namespace pinrail::pinrun {

// Libibverbs' calls of its own functions.
//
// libibverbs calls ibv_reg_mr_iova2() and others by name, so that the dynamic linker leads these calls to interpose.cc.
// Their caller cannot be told: ibv_reg_mr() ends in a jump. So the addresses that the linker filled in are replaced.

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

// Headers before those of libibverbs 34 lack the one, before 31 the other.
extern "C" void ibv_unimport_pd(ibv_pd* pd);
extern "C" ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

namespace pinrail::pinrun {
namespace {

RealVerbs real;
std::array<Replacement, 9> all_replacements;
pthread_once_t loaded = PTHREAD_ONCE_INIT;

template <typename Function>
void look_up(void* library, const char* name, const char* version, Function* function_out) {
  *function_out = reinterpret_cast<Function>(real_dlvsym(library, name, version));
}

template <typename Function>
Replacement replaced(const char* name, Function own_real, Function own) {
  return {name, reinterpret_cast<void*>(own_real), reinterpret_cast<void*>(own)};
}

void list_replacements() {
  all_replacements = {replaced("ibv_reg_mr", real.reg_mr, &::ibv_reg_mr),
                      replaced("ibv_reg_mr_iova", real.reg_mr_iova, &::ibv_reg_mr_iova),
                      replaced("ibv_reg_mr_iova2", real.reg_mr_iova2, &::ibv_reg_mr_iova2),
                      replaced("ibv_reg_dmabuf_mr", real.reg_dmabuf_mr, RegDmabuf{&::ibv_reg_dmabuf_mr}),
                      replaced("ibv_rereg_mr", real.rereg_mr, &::ibv_rereg_mr),
                      replaced("ibv_dereg_mr", real.dereg_mr, &::ibv_dereg_mr),
                      replaced("ibv_dealloc_pd", real.dealloc_pd, &::ibv_dealloc_pd),
                      replaced("ibv_unimport_pd", real.unimport_pd, UnimportPd{&::ibv_unimport_pd}),
                      replaced("ibv_close_device", real.close_device, &::ibv_close_device)};
}

void load() {
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY);
  if (library == nullptr) return;
  look_up(library, "ibv_reg_mr", "IBVERBS_1.1", &real.reg_mr);
  look_up(library, "ibv_reg_mr_iova", "IBVERBS_1.7", &real.reg_mr_iova);
  look_up(library, "ibv_reg_mr_iova2", "IBVERBS_1.8", &real.reg_mr_iova2);
  look_up(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", &real.reg_dmabuf_mr);
  look_up(library, "ibv_rereg_mr", "IBVERBS_1.1", &real.rereg_mr);
  look_up(library, "ibv_dereg_mr", "IBVERBS_1.1", &real.dereg_mr);
  look_up(library, "ibv_dealloc_pd", "IBVERBS_1.1", &real.dealloc_pd);
  look_up(library, "ibv_unimport_pd", "IBVERBS_1.10", &real.unimport_pd);
  look_up(library, "ibv_close_device", "IBVERBS_1.1", &real.close_device);
  real.cmd_dereg_mr = reinterpret_cast<decltype(real.cmd_dereg_mr)>(real_dlsym(library, "ibv_cmd_dereg_mr"));
  real.cmd_dealloc_pd = reinterpret_cast<decltype(real.cmd_dealloc_pd)>(real_dlsym(library, "ibv_cmd_dealloc_pd"));
  list_replacements();
  keep_own_calls(real);
}

// Before the program's first call, which may be one of libibverbs' own function.
__attribute__((constructor)) void load_if_the_program_has_it() {
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  static_cast<void>(real_verbs());
  dlclose(library);
}

}  // namespace

const std::array<Replacement, 9>& replacements() { return all_replacements; }

const RealVerbs& real_verbs() {
  pthread_once(&loaded, load);
  return real;
}

// Newer libibverbs register everything by ibv_reg_mr_iova2().
ibv_mr* real_region(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  const RealVerbs& own = real_verbs();
  if (own.reg_mr_iova2 != nullptr) return own.reg_mr_iova2(domain, addr, length, iova, access);
  const int needed = static_cast<int>(access & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE});
  if (iova == reinterpret_cast<uintptr_t>(addr)) return own.reg_mr(domain, addr, length, needed);
  return own.reg_mr_iova != nullptr ? own.reg_mr_iova(domain, addr, length, iova, needed) : nullptr;
}

ibv_mr* register_real(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  return with_room([&] { return real_region(domain, addr, length, iova, access); },
                   [](ibv_mr* region) { return region != nullptr; });
}

}  // namespace pinrail::pinrun
