// SPDX-License-Identifier: BSD-3-Clause
// Registers: locks the range, then counts it. Deregisters: counts down, then unlocks pieces that have no holder. API
// context. Functions that get `counts` are called with the component's mutex held.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/core/own_component.h"
#include "components/registrar/mlock/mlock.h"
#include "framework/registrar/request.h"

namespace pinrail::mlock_registrar {
namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): spans are numbers, system calls take pointers
void* address(uintptr_t at) { return reinterpret_cast<void*>(at); }

// Returns whether every page of the span is mapped.
bool mapped(Span span) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  unsigned char residency[1024];
  const size_t step = sizeof(residency) * page;
  for (uintptr_t at = span.base; at < span.end; at += std::min(step, span.end - at)) {
    if (mincore(address(at), std::min(step, span.end - at), residency) != 0) return false;
  }
  return true;
}

// Returns whether the span could be locked if its pages could be touched. Leaves pieces locked; the caller unlocks
// them.
bool lockable_untouched(const PageCounts& counts, Span span) {
  bool all = true;
  // Pieces with a holder do not count against a limit again, and must not become locked on fault.
  counts.for_each_unheld(
      span, [&](Span piece) { all = all && mlock2(address(piece.base), piece.length(), MLOCK_ONFAULT) == 0; });
  return all;
}

// ENOMEM has three causes: a hole, pages that cannot be touched (no access, or behind the end of a file), and a limit
// (bytes, mappings). Only the last is OUT_OF_RESOURCE.
Status status_of_enomem(const PageCounts& counts, Span span) {
  if (!mapped(span) || lockable_untouched(counts, span)) return PINRAIL_ERR_BAD_PARAM;
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Translates an errno of mlock; prints a message for an unexpected one.
Status status_of(const Component& component, const PageCounts& counts, Span span, int error) {
  switch (error) {
    case ENOMEM: return status_of_enomem(counts, span);
    case EAGAIN: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case EPERM: return PINRAIL_ERR_PERM;
    case EINVAL: return PINRAIL_ERR_BAD_PARAM;
    default: break;
  }
  show_errno(component.host, "register failed", span.length(), error);
  return PINRAIL_ERR_ERROR;
}

// munlock stops at a hole; then the span is unlocked page by page. False if a mapped page stays locked.
bool unlock(Span span) {
  if (unlock_pages(address(span.base), span.length()) == 0) return true;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bool all = true;
  for (uintptr_t at = span.base; at < span.end; at += page) {
    if (unlock_pages(address(at), page) != 0 && mapped(Span::of(at, page))) all = false;
  }
  return all;
}

// Undoes a lock that was not counted.
void unlock_unheld(const PageCounts& counts, Span span) {
  counts.for_each_unheld(span, [](Span piece) { unlock(piece); });
}

// Takes the component's mutex. After an error nothing is locked or counted.
Status lock_and_count(Component* component, Span span) {
  Guard guard(component->mutex);
  Status status = success();
  if (lock_pages(address(span.base), span.length()) == 0) {
    status = component->counts.add(span);
  } else {
    status = status_of(*component, component->counts, span, errno);
  }
  if (!status.ok()) unlock_unheld(component->counts, span);
  return status;
}

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t*) {
  auto* registrar = static_cast<Registrar*>(context);
  const Status status = check_request(registrar->limits, *request);
  if (!status.ok()) return status.code();
  if ((request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0 || has_own_iova(*request)) return PINRAIL_ERR_NOT_SUPPORTED;
  Component* const component = registrar->component;
  if (!component->is_told.exchange(true)) show(component->host, "locks are taken away");
  return lock_and_count(component, Span::of(request->addr, request->length)).code();
}

// Takes the component's mutex. ERROR: a page stays locked.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  Component* component = static_cast<Registrar*>(context)->component;
  const Span span = Span::of(reg->base, reg->length);
  Guard guard(component->mutex);
  // After an invalidation the address may belong to other memory, so only the counts change.
  if (reason == PINRAIL_REASON_INVALIDATED) return component->counts.remove(span, [](Span) {}).code();
  bool unlocked = true;
  const Status status = component->counts.remove(span, [&](Span piece) { unlocked = unlock(piece) && unlocked; });
  if (!status.ok()) return status.code();
  return unlocked ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::mlock_registrar
