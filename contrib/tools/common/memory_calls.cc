// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/memory_events.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

namespace pinrail::tools {
namespace {

void* mremap_libc(void* at, size_t length, size_t new_length, int flags, void* to) {
  return mremap(at, length, new_length, flags, to);
}

// Looked up at run time, because some C libraries lack the function.
ssize_t process_madvise_libc(int process, const iovec* list, size_t count, int advice, unsigned flags) {
  using Function = ssize_t(int, const iovec*, size_t, int, unsigned);
  static auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "process_madvise"));
  if (function != nullptr) return function(process, list, count, advice, flags);
  errno = ENOSYS;
  return -1;
}

void* pointer(long result) { return reinterpret_cast<void*>(result); }  // NOLINT(performance-no-int-to-ptr): a mapping

#ifdef __x86_64__
// A raw system call by the processor's instruction, as from a statically linked libc: the function syscall() could be
// patched.
long kernel_words(long number, const long (&words)[6]) {
  register long r10 __asm__("r10") = words[3];
  register long r8 __asm__("r8") = words[4];
  register long r9 __asm__("r9") = words[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(words[0]), "S"(words[1]), "d"(words[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

template <typename... Args>
long kernel(long number, Args... args) {
  return kernel_words(number, {(long)args...});  // NOLINT: the kernel takes pointers and integers alike
}
#else
template <typename... Args>
long kernel(long number, Args... args) {
  return syscall(number, args...);
}
#endif

template <long kNumber, typename Result, typename... Args>
Result raw(Args... args) {
  const long result = kernel(kNumber, args...);
  if constexpr (std::is_pointer_v<Result>) {
    return pointer(result);
  } else {
    return static_cast<Result>(result);
  }
}
// The raw system call returns the new break.
int brk_raw(void* at) {
  if (pointer(kernel(SYS_brk, at)) == at) return 0;
  errno = ENOMEM;
  return -1;
}
int open_raw(const char* path, int flags, ...) {
  return static_cast<int>(kernel(SYS_openat, AT_FDCWD, path, flags, 0));
}

}  // namespace

const Calls kLibcCalls = {munmap,           mmap,     mremap_libc, madvise, process_madvise_libc,
                          remap_file_pages, brk,      shmdt,       shmat,   fallocate,
                          ftruncate,        truncate, open};
const Calls kRawCalls = {
    raw<SYS_munmap>,           raw<SYS_mmap>,     raw<SYS_mremap>, raw<SYS_madvise>, raw<SYS_process_madvise>,
    raw<SYS_remap_file_pages>, brk_raw,           raw<SYS_shmdt>,  raw<SYS_shmat>,   raw<SYS_fallocate>,
    raw<SYS_ftruncate>,        raw<SYS_truncate>, open_raw};

// A minimal shared object: headers, an empty symbol table, and zeroed data.

namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_NONE;  // the loader refuses it, so this machine lacks the event
#endif

struct Image {
  ElfW(Ehdr) header;
  ElfW(Phdr) segments[3];
  ElfW(Dyn) dynamic[6];
  ElfW(Sym) symbols[1];
  uint32_t hash[4];  // one bucket and one symbol, both empty
  char strings[8];
};
static_assert(sizeof(Image) <= kLibraryData);

ElfW(Ehdr) header() {
  ElfW(Ehdr) head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_ident[EI_VERSION] = EV_CURRENT;
  head.e_type = ET_DYN;
  head.e_machine = kMachine;
  head.e_version = EV_CURRENT;
  head.e_phoff = offsetof(Image, segments);
  head.e_ehsize = sizeof(ElfW(Ehdr));
  head.e_phentsize = sizeof(ElfW(Phdr));
  head.e_phnum = 3;
  return head;
}

ElfW(Phdr) segment(uint32_t type, size_t at, size_t file_bytes, size_t bytes, size_t align) {
  ElfW(Phdr) made{};
  made.p_type = type;
  made.p_flags = PF_R | PF_W;  // PT_GNU_STACK too: without it the loader makes stacks executable
  made.p_offset = made.p_vaddr = made.p_paddr = at;
  made.p_filesz = file_bytes;
  made.p_memsz = bytes;
  made.p_align = align;
  return made;
}

ElfW(Dyn) entry(int64_t tag, uint64_t value) {
  ElfW(Dyn) made{};
  made.d_tag = tag;
  made.d_un.d_val = value;
  return made;
}

Image image(size_t data_bytes) {
  Image made{};
  made.header = header();
  made.segments[0] = segment(PT_LOAD, 0, kLibraryData, kLibraryData + data_bytes, kLibraryData);
  made.segments[1] =
      segment(PT_DYNAMIC, offsetof(Image, dynamic), sizeof(made.dynamic), sizeof(made.dynamic), sizeof(void*));
  made.segments[2] = segment(PT_GNU_STACK, 0, 0, 0, 16);
  made.dynamic[0] = entry(DT_HASH, offsetof(Image, hash));
  made.dynamic[1] = entry(DT_STRTAB, offsetof(Image, strings));
  made.dynamic[2] = entry(DT_SYMTAB, offsetof(Image, symbols));
  made.dynamic[3] = entry(DT_STRSZ, sizeof(made.strings));
  made.dynamic[4] = entry(DT_SYMENT, sizeof(ElfW(Sym)));
  made.hash[0] = made.hash[1] = 1;
  return made;
}

}  // namespace

int make_library(size_t data_bytes) {
  const int file = memfd_create("pinrail-library", MFD_CLOEXEC);
  if (file < 0) return -1;
  char page[kLibraryData] = {};
  const Image made = image(data_bytes);
  std::memcpy(page, &made, sizeof(made));
  if (write(file, page, sizeof(page)) == static_cast<ssize_t>(sizeof(page))) return file;
  close(file);
  return -1;
}

}  // namespace pinrail::tools
