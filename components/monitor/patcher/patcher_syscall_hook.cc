// SPDX-License-Identifier: BSD-3-Clause
// Hook context: syscall(). Some allocators (tcmalloc, mimalloc) and hooks of other runtimes (UCX, Open MPI) use it for
//      their system calls. A call that concerns memory is passed to the hook of the function with that name.
#include <sys/syscall.h>

#include <cerrno>

#include "base/core/kernel_numbers.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr long kOpenat2 = 437;  // since Linux 5.6

using HookFunction = long (*)(void* layer, const long* args);

}  // namespace

// The kernel returns the new break, not a status, and libc's variable is not changed.
long raw_brk_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  const long now = patch::system_call_hook(SYS_brk, 0);
  const auto asked = static_cast<uintptr_t>(args[0]);
  const auto end = static_cast<uintptr_t>(now);
  const Span gone = asked != 0 ? below_break_hook(asked, end) : Span{end, end};
  report_hook(layer, gone.base, gone.length());
  const long result = call_original_hook(layer, SYS_brk, args);
  report_hook(layer, gone.base, gone.length());
  const auto reached = static_cast<uintptr_t>(result);
  const uintptr_t above = round_up_hook(end, kPage);  // the page in which the heap ended was there before
  if (!patch::is_error_hook(result) && reached > above) report_hook(layer, above, reached - above);
  return result;
}

namespace {

HookFunction hook_of_hook(long number) {
  switch (number) {
    case SYS_munmap: return munmap_hook;
    case SYS_mmap: return mmap_hook;
    case SYS_mremap: return mremap_hook;
    case SYS_madvise: return madvise_hook;
    case SYS_mprotect: return mprotect_hook;
    case SYS_process_madvise: return process_madvise_hook;
    case SYS_remap_file_pages: return remap_file_pages_hook;
    case SYS_brk: return brk_hook;
    case SYS_shmdt: return shmdt_hook;
    case SYS_shmat: return shmat_hook;
    case SYS_fallocate: return fallocate_hook;
    case SYS_ftruncate: return ftruncate_hook;
    case SYS_truncate: return truncate_hook;
#ifdef SYS_open
    case SYS_open: return open_hook;
    case SYS_creat: return creat_hook;
#endif
    case SYS_openat: return openat_hook;
    case kOpenat2: return openat2_hook;
    default: return nullptr;
  }
}

// A function that is left out (leave_out) is not reported here either.
bool is_left_out_hook(const Layer& layer, HookFunction hook) {
  const uint32_t left_out = context_of_hook(layer).left_out.load(std::memory_order_relaxed);  // relaxed: set at start
  for (size_t i = 0; left_out != 0 && i < kFunctions; ++i) {
    if (kFunctionTable[i].hook == hook && !kFunctionTable[i].in_loader) return (left_out >> i & 1) != 0;
  }
  return false;
}

}  // namespace

// Replaces syscall(): calls the hook for that system call, or makes the call.
long syscall_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  const long given[6] = {args[1], args[2], args[3], args[4], args[5], args[patch::kStackArgs]};
  const HookFunction hook = hook_of_hook(args[0]);
  if (hook == nullptr || !is_active_hook(layer) || is_left_out_hook(layer, hook)) {
    return call_original_hook(layer, args[0], given);
  }
  return hook == brk_hook ? raw_brk_hook(layer_pointer, given) : hook(layer_pointer, given);
}

}  // namespace pinrail::patcher

#endif
