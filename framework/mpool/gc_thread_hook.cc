// SPDX-License-Identifier: BSD-3-Clause
// Hook context: what happened is written down already; the thread shall come.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "framework/mpool/gc_thread.h"

namespace pinrail::gc {

Word word;

void wake_hook(pinrail_gc_when_t when) {
  const auto wanted = static_cast<uint32_t>(when);
  // An exchange, not a load: it comes before or after the thread's own, and if before, that one sees what we saw to.
  uint32_t seen = word.when.fetch_add(0);
  do {
    if (seen >= wanted) return;
  } while (!word.when.compare_exchange_weak(seen, wanted));
  const int kept = errno;
  syscall(SYS_futex, &word.when, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = kept;
}

}  // namespace pinrail::gc
