// SPDX-License-Identifier: BSD-3-Clause
// Hook context: the hook of every patch. syscall() makes any system call: some allocators (tcmalloc, mimalloc) and
// hooks
//      of other runtimes (UCX, Open MPI) use it.
#include <sys/syscall.h>

#include "base/core/kernel_numbers.h"
#include "base/patch/system_call.h"
#include "base/sync/hook_scope.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr long kOpenat2 = 437;  // since Linux 5.6

using CallHook = bool (*)(const Site& site, const long* args, long* result_out);

CallHook hook_of_hook(long number) {
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

// A function that is left out (leave_out) is not reported when syscall() makes its system call either.
bool is_left_out_hook(const Site& site, long number) {
  if (site.function->calls.number != patch::kAnyCall) return false;
  const uint32_t left_out = context_of_hook(site).left_out.load(std::memory_order_relaxed);  // relaxed: set at start
  for (size_t i = 0; left_out != 0 && i < kFunctions; ++i) {
    const bool is_it = kFunctionTable[i].calls.number == number && !kFunctionTable[i].in_loader;
    if (is_it && (left_out >> i & 1) != 0) return true;
  }
  return false;
}

}  // namespace

bool enter_hook(void* site_pointer, long number, const long* args, long* result_out) {
  const auto& site = *static_cast<const Site*>(site_pointer);
  const CallHook hook = hook_of_hook(number);
  const HookScope scope;
  return hook != nullptr && is_active_hook(site) && !is_left_out_hook(site, number) && hook(site, args, result_out);
}

}  // namespace pinrail::patcher

#endif
