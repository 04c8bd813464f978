// SPDX-License-Identifier: BSD-3-Clause
// Hook context: functions that all hooks use, and the hook of every patch.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "base/sync/hook_scope.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {

// acquire: pairs with the release store in try_install_locked().
Context& context_of_hook(const Site& site) { return *site.context.load(std::memory_order_acquire); }

// Keeps F1: reads the word before it touches anything else of the library.
bool is_active_hook(const Site& site) {
  const Context& context = context_of_hook(site);
  return context.host.load(std::memory_order_acquire) != nullptr &&  // acquire: pairs with the release store in begin()
         context.alive->load(std::memory_order_relaxed) != 0;  // relaxed: the kernel writes it before the child runs
}

// Reports the range to the library, which rounds it out to pages, unless the context is stopped or inherited by a
// forked child.
void report_hook(const Site& site, uintptr_t base, size_t length) {
  if (length == 0 || !is_active_hook(site)) return;
  Context& context = context_of_hook(site);
  // The count rises before the second load of host; stop() clears host and then waits for the count. Both are seq_cst.
  context.in_flight.fetch_add(1);
  if (const pinrail_host_t* host = context.host.load()) {
    const int kept = errno;
    host->monitor_report_hook(host, base, length);
    errno = kept;
  }
  context.in_flight.fetch_sub(1);
}

// relaxed: it is constant, and written before `context`.
long call_original_hook(const Site& site, long number, const long* args) {
  const ForeignScope theirs;  // the call may sleep, and a signal handler may run meanwhile or leave by longjmp
  const patch::Record* const original = site.original.load(std::memory_order_relaxed);
  long result;
  if (original != nullptr && patch::call_original_hook(original, number, args, &result)) return result;
  return patch::system_call_hook(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

// Where a seccomp filter forbids the call, the memory is read as it is.
bool read_own_memory_hook(long address, void* copy_out, size_t length) {
  const auto* const from = reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr): an argument
  const iovec local{copy_out, length}, remote{const_cast<void*>(from), length};
  const long got =
      patch::system_call_hook(SYS_process_vm_readv, patch::system_call_hook(SYS_getpid), &local, 1, &remote, 1, 0);
  if (got == -EFAULT) return false;
  if (got < 0) std::memcpy(copy_out, from, length);
  return got < 0 || static_cast<size_t>(got) == length;
}

// The probe's subscriber: records that a range inside the scratch memory was reported.
void probe_hook(void* context_pointer, uintptr_t base, size_t length) {
  auto* context = static_cast<Context*>(context_pointer);
  const bool inside = base >= context->probe_base.load() && base + length <= context->probe_end.load();
  if (inside) context->probe_seen.store(true);
}

// Wakes the checking thread.
void raise_alarm_hook(Context* context) {
  context->alarm.fetch_add(1);
  patch::system_call_hook(SYS_futex, &context->alarm, FUTEX_WAKE_PRIVATE, 1);
}

// Hook context: the hook of every patch. syscall() makes any system call: some allocators (tcmalloc, mimalloc) and
// hooks of other runtimes (UCX, Open MPI) use it.

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
