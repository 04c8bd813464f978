// SPDX-License-Identifier: BSD-3-Clause
// Hook context: functions that all hooks use.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

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
  const long got = patch::system_call_hook(SYS_process_vm_readv, patch::system_call_hook(SYS_getpid),
                                           reinterpret_cast<long>(&local), 1, reinterpret_cast<long>(&remote), 1, 0);
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
  patch::system_call_hook(SYS_futex, reinterpret_cast<long>(&context->alarm), FUTEX_WAKE_PRIVATE, 1);
}

}  // namespace pinrail::patcher

#endif
