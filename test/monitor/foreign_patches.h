// SPDX-License-Identifier: BSD-3-Clause
// foreign_patches.h - doubles of other runtimes that patch the functions of libc which monitor/patcher patches, in
// their ways, and functions that cannot be patched.
#ifndef PINRAIL_TEST_MONITOR_FOREIGN_PATCHES_H
#define PINRAIL_TEST_MONITOR_FOREIGN_PATCHES_H

#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/patch/system_call.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::test {

constexpr size_t kPageBytes = 4096;
inline void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

#if PINRAIL_CAN_PATCH

// Doubles of other runtimes: what they write over a function, in one memcpy while no thread runs in it.
inline void write_code(uintptr_t function, const std::vector<uint8_t>& bytes) {
  const long page = static_cast<long>(function & ~(kPageBytes - 1));
  patch::system_call_hook(SYS_mprotect, page, 2 * kPageBytes, PROT_READ | PROT_WRITE | PROT_EXEC);
  std::memcpy(at(function), bytes.data(), bytes.size());
  __builtin___clear_cache(static_cast<char*>(at(function)), static_cast<char*>(at(function)) + bytes.size());
  patch::system_call_hook(SYS_mprotect, page, 2 * kPageBytes, PROT_READ | PROT_EXEC);
}

#ifdef __aarch64__
inline std::vector<uint8_t> far_jump(uintptr_t target) {  // ldr x16, target; br x16; target
  std::vector<uint8_t> code = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0};
  std::memcpy(code.data() + 8, &target, sizeof(target));
  return code;
}
#else
inline std::vector<uint8_t> far_jump(uintptr_t target) {  // movabs $target, %r11; jmp *%r11
  std::vector<uint8_t> code = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
  std::memcpy(code.data() + 2, &target, sizeof(target));
  return code;
}
#endif

// Until the monitor's thread has looked for the first time and waits for an alarm: of what is patched afterwards it
// hears by that alone. False: it does not come to that.
inline bool await_sleeping_monitor() {
  return comes_true([] { return sleeps(thread_called("pinrail-monitor")); });
}

// Code that does what the function does, except for errno, and that cannot be patched: the number is not loaded in
// front of the system call.
inline void make_unpatchable(const char* name, int number) {
#ifdef __aarch64__
  // mov x8, number; svc #0; ret: elsewhere, behind a short branch
  const long page = patch::system_call_hook(SYS_mmap, 0, kPageBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const uint32_t words[] = {0xd2800008 | static_cast<uint32_t>(number) << 5, 0xd4000001, 0xd65f03c0};
  std::memcpy(at(static_cast<uintptr_t>(page)), words, sizeof(words));
  auto* const begin = static_cast<char*>(at(static_cast<uintptr_t>(page)));
  __builtin___clear_cache(begin, begin + sizeof(words));
  std::vector<uint8_t> code = far_jump(static_cast<uintptr_t>(page));
  code.insert(code.begin(), {0x01, 0, 0, 0x14});
  write_code(libc_function(name), code);
#else
  // mov %rcx, %r10; mov number, %eax; jmp; syscall; ret
  std::vector<uint8_t> code = {0x49, 0x89, 0xca, 0xb8, 0, 0, 0, 0, 0xeb, 0x00, 0x0f, 0x05, 0xc3};
  std::memcpy(code.data() + 4, &number, sizeof(number));
  write_code(libc_function(name), code);
#endif
}

// As Open MPI does: 13 bytes.
inline void patch_as_open_mpi(const char* name, uintptr_t target) { write_code(libc_function(name), far_jump(target)); }

// Of a library that makes the system call itself and does not call the function that it replaced.
inline long bare_munmap(void* base, size_t length) {
  return patch::system_call_hook(SYS_munmap, reinterpret_cast<long>(base), static_cast<long>(length));
}
inline long bare_madvise(void* base, size_t length, int advice) {
  return patch::system_call_hook(SYS_madvise, reinterpret_cast<long>(base), static_cast<long>(length), advice);
}

// As UCX does: a jump of five bytes, to something near that leads on.
inline void patch_as_ucx(const char* name, uintptr_t target) {
  const uintptr_t function = libc_function(name);
  for (uintptr_t near = function - (size_t{64} << 20);; near -= kPageBytes) {
    const long got = patch::system_call_hook(SYS_mmap, static_cast<long>(near & ~(kPageBytes - 1)), kPageBytes,
                                             PROT_READ | PROT_WRITE | PROT_EXEC,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (patch::is_error_hook(got)) continue;
    const std::vector<uint8_t> on = far_jump(target);
    std::memcpy(at(static_cast<uintptr_t>(got)), on.data(), on.size());
    std::vector<uint8_t> jump = {0xe9, 0, 0, 0, 0};
    const auto relative = static_cast<int32_t>(static_cast<uintptr_t>(got) - (function + 5));
    std::memcpy(jump.data() + 1, &relative, sizeof(relative));
    write_code(function, jump);
    return;
  }
}

#endif

}  // namespace pinrail::test

#endif
