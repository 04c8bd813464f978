// SPDX-License-Identifier: BSD-3-Clause
// Find and register: a hit, or a registration of the tiles that the request lies in. API context; the caller holds no
// lock, because a miss calls the registrar. The calling thread may hold references.
#include "components/mpool/odp/odp.h"
#include "framework/registrar/request.h"

namespace pinrail::odp {

bool Pool::hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out) {
  if (!find_indexed(thread, span, access, handle_out)) return false;
  mark_used(handle_out->reg);
  hits_.add(thread);
  return true;
}

// The tiles that the range lies in, or all memory; the range itself where these do not fit (odp/O1).
Span Pool::tiles_of(const Span& span) const {
  const uintptr_t page = page_mask_ + 1;
  if (limits_of_registrar_.on_demand == PINRAIL_ON_DEMAND_IMPLICIT) return {page, UINTPTR_MAX & ~page_mask_};
  Span tiles = span;
  if (!round_out(&tiles, tile_size_)) return span;
  if (tiles.base == 0) tiles.base = page;  // no registration begins at address 0
  const size_t most = limits_of_registrar_.on_demand_max_length;
  const bool fits_device = most == 0 || tiles.length() <= most;
  return fits_device && tiles.length() <= cache_->limits().bytes ? tiles : span;
}

Status Pool::register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                          pinrail_handle_t* handle_out) {
  const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  const uint32_t access = static_cast<uint32_t>(access_and_flags) | PINRAIL_TRAIT_ON_DEMAND;
  Span span;
  if (!pages_of(addr, length, &span)) return PINRAIL_ERR_BAD_PARAM;
  give_back_dead(thread);
  const bool is_own = (flags & PINRAIL_FLAG_CACHE_BYPASS) != 0;
  const uint32_t kept = flags & PINRAIL_FLAG_PERSISTENT;
  if (!is_own && kept == 0 && hit(thread, span, access, handle_out)) return success();
  pinrail_registration_t* reg = nullptr;
  // A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5).
  const Status status =
      is_own || host_->pools->in_registrar(thread) != 0
          ? register_own(thread, {span, access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK, 0}, &reg)
          : miss(thread, span, access, kept, &reg);
  give_back_dead(thread);
  if (status.ok()) *handle_out = {reg, generation_of(reg)};
  return status;
}

Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                  pinrail_handle_t* handle_out) {
  const auto access = static_cast<uint32_t>(access_and_flags);
  Span span;
  if (!pages_of(addr, length, &span)) return PINRAIL_ERR_BAD_PARAM;
  return hit(thread, span, access | PINRAIL_TRAIT_ON_DEMAND, handle_out) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// Announces the registration, unless the index answers by now; waits for a call under way that will answer this one
// (R5). SUCCESS: found. NOT_FOUND, TEMP_OUT_OF_RESOURCE: announced.
pinrail_status_t Pool::announce(pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                pinrail_registration_t** reg_out) {
  Guard guard(misses_mutex_);
  for (;;) {
    const pinrail_status_t status = rcache_.ops.find_or_announce(rcache_.module, thread, announcement, reg_out);
    if (status != PINRAIL_ERR_WOULD_BLOCK) return status;
    miss_ended_.wait(misses_mutex_);
  }
}

void Pool::wake_waiting() {
  Guard guard(misses_mutex_);
  miss_ended_.notify_all();
}

// Registers the tiles of the range, unless another thread does. The outcome is a reference.
Status Pool::miss(pinrail_thread_t* thread, const Span& span, uint32_t access, uint32_t flags,
                  pinrail_registration_t** reg_out) {
  const Span tiles = tiles_of(span);
  pinrail_announcement_t announcement{};
  announcement.base = announcement.asked_base = tiles.base;
  announcement.length = announcement.asked_length = tiles.length();
  announcement.access = access;
  announcement.flags = flags;
  announcement.marks = state::kQuick | (flags != 0 ? state::kTransient : 0);
  const Status begun = announce(thread, &announcement, reg_out);
  if (begun.ok()) {
    hits_.add(thread);
    return begun;
  }
  const bool lacks_memory = begun.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  if (!lacks_memory && !begun.is(PINRAIL_ERR_NOT_FOUND)) return begun;
  Status status = lacks_memory ? Status(rcache_.ops.prepare(rcache_.module, &announcement)) : success();
  bool is_published = false;
  if (status.ok()) status = register_announced(thread, span, &announcement, reg_out, &is_published);
  if (!is_published) Status(rcache_.ops.withdraw(rcache_.module, &announcement)).ignore();
  wake_waiting();
  return status;
}

// What the device refuses of tiles, it may accept of the range alone: then that is registered for the caller.
Status Pool::register_announced(pinrail_thread_t* thread, const Span& span, pinrail_announcement_t* announcement,
                                pinrail_registration_t** reg_out, bool* is_published_out) {
  const uint32_t rights = announcement->access & PINRAIL_RIGHTS_MASK;
  const uint32_t traits = announcement->access & PINRAIL_TRAITS_MASK;
  const Span tiles = Span::of(announcement->base, announcement->length);
  const Status status = make(thread, {tiles, rights, traits, announcement->flags}, reg_out);
  if (!status.ok() && tiles.length() != span.length()) return register_own(thread, {span, rights, traits, 0}, reg_out);
  if (!status.ok()) return status;
  const pinrail_status_t published =
      rcache_.ops.publish(rcache_.module, thread, announcement, *reg_out, displaced_hook, this);
  *is_published_out = published == PINRAIL_SUCCESS;
  if (!*is_published_out) state::publish(*reg_out, state::kDead);  // for the caller alone; its last drop gives it back
  return success();
}

// For the caller alone: it is not in the index, and its last drop gives it back.
Status Pool::register_own(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out) {
  const Status status = make(thread, wanted, reg_out);
  if (status.ok()) state::publish(*reg_out, state::kDead);
  return status;
}

}  // namespace pinrail::odp
