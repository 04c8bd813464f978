// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <pinrail/component.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>

#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "base/core/page_counts.h"
#include "base/core/status.h"
#include "base/sync/lock.h"
#include "framework/registrar/request.h"

namespace pinrail::mlock_registrar {

// Registrar/mlock: registrations as locked pages, counted for the whole process.
//
// Owns     the counts of all pages that registrars of this component have locked.
// Threads  register_mem and deregister_mem may run together, also for several registrars.
// Context  API.
//
// The kernel locks and unlocks by address. So a page's lock and its count change under one mutex, which is held across
// the system call: otherwise one thread's last munlock could undo another thread's mlock of the same page. A page is
// unlocked only when its count falls to 0 by a registration whose memory still exists. A count does not prove a lock:
// after an invalidation a counted range may have new, unlocked pages. So a registration always locks its whole range.

// An opened component, one for each copy of Pinrail in the process. Two copies do not know each other's counts.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  pinrail_registrar_t table{};  // of all of its registrars; check_request() reads its limits
  std::atomic<bool> has_registered{false};
  Mutex mutex{LockRank::leaf};
  PageCounts counts GUARDED_BY(mutex);
};

// System calls without libc: under a sanitizer libc's functions do nothing. Return 0, or -1 and errno.
inline int lock_pages(void* addr, size_t length) { return static_cast<int>(syscall(SYS_mlock, addr, length)); }
inline int unlock_pages(void* addr, size_t length) { return static_cast<int>(syscall(SYS_munlock, addr, length)); }

// Registers: locks the range, then counts it. Deregisters: counts down, then unlocks pieces that have no holder. API
// context. Functions that get `counts` are called with the component's mutex held.

namespace {

// Returns whether every page of the span is mapped.
bool mapped(Span span) {
  const size_t page = page_bytes();
  unsigned char residency[1024];
  const size_t step = sizeof(residency) * page;
  for (uintptr_t at = span.base; at < span.end; at += std::min(step, span.end - at)) {
    if (mincore(pointer(at), std::min(step, span.end - at), residency) != 0) return false;
  }
  return true;
}

// Returns whether the span could be locked if its pages could be touched. Leaves pieces locked; the caller unlocks
// them.
bool lockable_untouched(const PageCounts& counts, Span span) {
  bool all = true;
  // Pieces with a holder do not count against a limit again, and must not become locked on fault.
  counts.for_each_unheld(
      span, [&](Span piece) { all = all && mlock2(pointer(piece.base), piece.length(), MLOCK_ONFAULT) == 0; });
  return all;
}

// Translates an errno of mlock. ENOMEM has three causes: a hole, pages that cannot be touched (no access, or behind the
// end of a file), and a limit (bytes, mappings). Only the last is OUT_OF_RESOURCE.
Status status_of(const Component& component, const PageCounts& counts, Span span, int error) {
  if (error == EINVAL || (error == ENOMEM && (!mapped(span) || lockable_untouched(counts, span)))) error = EFAULT;
  return status_of_refusal(component.host, span.length(), error);
}

// munlock stops at a hole; then the span is unlocked page by page. False if a mapped page stays locked.
bool unlock(Span span) {
  if (unlock_pages(pointer(span.base), span.length()) == 0) return true;
  const size_t page = page_bytes();
  bool all = true;
  for (uintptr_t at = span.base; at < span.end; at += page) {
    if (unlock_pages(pointer(at), page) != 0 && mapped(Span::of(at, page))) all = false;
  }
  return all;
}

// Takes the component's mutex. After an error nothing is locked or counted.
Status lock_and_count(Component* component, Span span) {
  Guard guard(component->mutex);
  Status status = success();
  if (lock_pages(pointer(span.base), span.length()) == 0) {
    status = component->counts.add(span);
  } else {
    status = status_of(*component, component->counts, span, errno);
  }
  if (!status.ok()) component->counts.for_each_unheld(span, [](Span piece) { unlock(piece); });
  return status;
}

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t*) {
  auto* const component = static_cast<Component*>(context);
  const Status status = check_request(component->table, *request);
  if (!status.ok()) return status.code();
  if ((request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0 || has_own_iova(*request)) return PINRAIL_ERR_NOT_SUPPORTED;
  if (!component->has_registered.exchange(true)) show(component->host, "locks are taken away");
  return lock_and_count(component, Span::of(request->addr, request->length)).code();
}

// Takes the component's mutex. ERROR: a page stays locked.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  auto* const component = static_cast<Component*>(context);
  const Span span = Span::of(reg->base, reg->length);
  Guard guard(component->mutex);
  // After an invalidation the address may belong to other memory, so only the counts change.
  if (reason == PINRAIL_REASON_INVALIDATED) return component->counts.remove(span, [](Span) {}).code();
  bool unlocked = true;
  const Status status = component->counts.remove(span, [&](Span piece) { unlocked = unlock(piece) && unlocked; });
  if (!status.ok()) return status.code();
  return unlocked ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

namespace {

const char kHelp[] =
#include "components/registrar/mlock/mlock_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {{sizeof(pinrail_param_t), "beside_locks", "no",
                                        "Whether it works in a process that has locked memory itself (mlock, "
                                        "mlockall). The kernel does not count locks: the "
                                        "last deregistration of a page would take the program's lock away.",
                                        PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* component = new (std::nothrow) Component(host);
  if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  // Calls may run together: SERIALIZED would not serialise those of two registrars. The component's mutex does.
  component->table = make_registrar("mlock", component, PINRAIL_KIND_HOST, page_bytes(), register_mem, deregister_mem);
  component->table.pins_nothing = 1;  // mlock is a lock of this process, not a pin that a device knows
  *context_out = component;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Component*>(context); }

// Tries to lock one page. Returns 0 or an errno. ENOMEM is no refusal: the limit may be in use at the moment.
int probe_page() {
  const size_t bytes = page_bytes();
  const OwnPages page(bytes);
  if (!page.is_mapped()) return errno;
  return lock_pages(page.at(), bytes) == 0 || errno == ENOMEM || errno == EAGAIN ? 0 : errno;
}

// Whether the program has locked memory itself. Its locks would be taken away. What registrars of this component have
// locked is not the program's, so the kernel is asked only before the first registration: when all have ended, memory
// that an event has named may still be mapped and locked.
bool has_locks_of_its_own(Component* component) {
  pinrail_param_value_t permitted{};
  const bool is_asked =
      !component->has_registered.load() &&
      (component->host->param(component->host, "beside_locks", &permitted) != PINRAIL_SUCCESS || permitted.i == 0);
  const uint64_t kib = is_asked ? number_in_file("/proc/self/status", "VmLck:", 0) : 0;
  if (kib == 0) return false;
  show(component->host, "memory is locked", {{"kib", NumberText(kib).c_str()}});
  return true;
}

pinrail_status_t create(void* context, void*, pinrail_registrar_t* registrar_out) {
  auto* component = static_cast<Component*>(context);
  const int error = probe_page();
  if (error != 0) {
    return not_available(component->host, "this user may not lock a page (ulimit -l)", ErrnoText(error).c_str()).code();
  }
  if (has_locks_of_its_own(component)) return PINRAIL_ERR_NOT_AVAILABLE;
  *registrar_out = component->table;
  return PINRAIL_SUCCESS;
}

void destroy(void*, pinrail_registrar_t*) {}

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_REGISTRAR_ABI, 20, "registrar", "mlock",
             "Locks pages with mlock: the last resort; madvise fails on memory that stays cached.", open, close, &kOps),
    kHelp, kParams);

}  // namespace
}  // namespace pinrail::mlock_registrar

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::mlock_registrar::kComponent;
