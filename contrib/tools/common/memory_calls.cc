// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/memory_calls.h"
#include "contrib/tools/common/kernel_numbers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

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

int munmap_raw(void* at, size_t length) { return static_cast<int>(kernel(SYS_munmap, at, length)); }
void* mmap_raw(void* at, size_t length, int protection, int flags, int file, off_t offset) {
  return pointer(kernel(SYS_mmap, at, length, protection, flags, file, offset));
}
void* mremap_raw(void* at, size_t length, size_t new_length, int flags, void* to) {
  return pointer(kernel(SYS_mremap, at, length, new_length, flags, to));
}
int madvise_raw(void* at, size_t length, int advice) {
  return static_cast<int>(kernel(SYS_madvise, at, length, advice));
}
ssize_t process_madvise_raw(int process, const iovec* list, size_t count, int advice, unsigned flags) {
  return kernel(SYS_process_madvise, process, list, count, advice, flags);
}
int remap_file_pages_raw(void* at, size_t length, int protection, size_t page, int flags) {
  return static_cast<int>(kernel(SYS_remap_file_pages, at, length, protection, page, flags));
}
// The raw system call returns the new break.
int brk_raw(void* at) {
  if (pointer(kernel(SYS_brk, at)) == at) return 0;
  errno = ENOMEM;
  return -1;
}
int shmdt_raw(const void* at) { return static_cast<int>(kernel(SYS_shmdt, at)); }
void* shmat_raw(int segment, const void* at, int flags) { return pointer(kernel(SYS_shmat, segment, at, flags)); }
int fallocate_raw(int file, int mode, off_t offset, off_t length) {
  return static_cast<int>(kernel(SYS_fallocate, file, mode, offset, length));
}
int ftruncate_raw(int file, off_t length) { return static_cast<int>(kernel(SYS_ftruncate, file, length)); }
int open_raw(const char* path, int flags, ...) {
  return static_cast<int>(kernel(SYS_openat, AT_FDCWD, path, flags, 0));
}
int truncate_raw(const char* path, off_t length) { return static_cast<int>(kernel(SYS_truncate, path, length)); }

}  // namespace

const Calls kLibcCalls = {munmap,           mmap,     mremap_libc, madvise, process_madvise_libc,
                          remap_file_pages, brk,      shmdt,       shmat,   fallocate,
                          ftruncate,        truncate, open};
const Calls kRawCalls = {munmap_raw,           mmap_raw,     mremap_raw, madvise_raw, process_madvise_raw,
                         remap_file_pages_raw, brk_raw,      shmdt_raw,  shmat_raw,   fallocate_raw,
                         ftruncate_raw,        truncate_raw, open_raw};

}  // namespace pinrail::tools
