// SPDX-License-Identifier: BSD-3-Clause
// mlock.h - registrar/mlock: registrations as locked pages, counted for the whole process.
//
// Owns     the counts of all pages that registrars of this component have locked.
// Threads  register_mem and deregister_mem may run together, also for several registrars.
// Context  API.
//
// The kernel locks and unlocks by address. So a page's lock and its count change under one mutex, which is held across
// the system call: otherwise one thread's last munlock could undo another thread's mlock of the same page. A page is
// unlocked only when its count falls to 0 by a registration whose memory still exists. A count does not prove a lock:
// after an invalidation a counted range may have new, unlocked pages. So a registration always locks its whole range.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_MLOCK_MLOCK_H
#define PINRAIL_COMPONENTS_REGISTRAR_MLOCK_MLOCK_H

#include <pinrail/component.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/core/page_counts.h"
#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::mlock_registrar {

// An opened component, one for each copy of Pinrail in the process. Two copies do not know each other's counts.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  std::atomic<unsigned> registrars{0};
  std::atomic<bool> is_told{false};  // that a lock of the program's may be taken away
  Mutex mutex{LockRank::leaf};
  PageCounts counts GUARDED_BY(mutex);
};

struct Registrar {
  Component* component;
  pinrail_registrar_t limits;  // the table that the pool calls; check_request() reads its limits
};

// System calls without libc: under a sanitizer libc's functions do nothing. Return 0, or -1 and errno.
inline int lock_pages(void* addr, size_t length) { return static_cast<int>(syscall(SYS_mlock, addr, length)); }
inline int unlock_pages(void* addr, size_t length) { return static_cast<int>(syscall(SYS_munlock, addr, length)); }

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason);

}  // namespace pinrail::mlock_registrar

#endif
