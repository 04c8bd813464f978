// SPDX-License-Identifier: BSD-3-Clause
// Hook context. The caller has already recorded the event; this only wakes the thread.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "framework/mpool/gc_thread.h"

namespace pinrail::gc {

Word word;

// Raises the word to `when` and wakes the thread, unless an equal or more urgent wake is pending. Preserves errno.
void wake_hook(pinrail_gc_when_t when) {
  const auto wanted = static_cast<uint32_t>(when);
  // A read-modify-write, not a load: it is ordered with the thread's exchange. If it comes first, that exchange makes
  // the thread see what the caller wrote before.
  uint32_t seen = word.when.fetch_add(0);
  do {
    if (seen >= wanted) return;
  } while (!word.when.compare_exchange_weak(seen, wanted));
  const int kept = errno;
  syscall(SYS_futex, &word.when, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = kept;
}

}  // namespace pinrail::gc
