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

}  // namespace pinrail::tools
