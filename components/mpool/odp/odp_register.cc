// SPDX-License-Identifier: BSD-3-Clause
// Find and register: a hit, or a registration of the tiles that the request lies in. API context; the caller holds no
// lock, because a miss calls the registrar. The calling thread may hold references.
#include "components/mpool/odp/odp.h"
#include "framework/registrar/request.h"

namespace pinrail::odp {

bool Pool::hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_registration_t** reg_out) {
  const bool is_hit = find_indexed(thread, span, access, reg_out);
  if (is_hit) count_hit(thread, *reg_out);
  return is_hit;
}

// The tiles that the range lies in, or all memory; the range itself where these do not fit (odp/O1).
Span Pool::tiles_of(const Span& span) const {
  const uintptr_t page = page_mask_ + 1;
  if (has_all_memory()) return {page, UINTPTR_MAX & ~page_mask_};
  Span tiles = span;
  if (!round_out(&tiles, settings_.tile_size)) return span;
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
  drain(thread, SIZE_MAX);
  const bool is_own = (flags & PINRAIL_FLAG_CACHE_BYPASS) != 0;
  const uint32_t kept = flags & PINRAIL_FLAG_PERSISTENT;
  pinrail_registration_t* reg = nullptr;
  Status status = success();
  if (is_own || kept != 0 || !hit(thread, span, access, &reg)) {
    // A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5).
    status = is_own || thread->in_registrar != 0
                 ? register_own(thread, {span, access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK, 0}, &reg)
                 : miss(thread, span, access, kept, &reg);
    drain(thread, SIZE_MAX);
  }
  if (status.ok()) *handle_out = handle_of(reg);
  return status;
}

Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                  pinrail_handle_t* handle_out) {
  const uint32_t access = static_cast<uint32_t>(access_and_flags) | PINRAIL_TRAIT_ON_DEMAND;
  Span span;
  pinrail_registration_t* reg;
  if (!pages_of(addr, length, &span)) return PINRAIL_ERR_BAD_PARAM;
  if (!hit(thread, span, access, &reg)) return PINRAIL_ERR_NOT_FOUND;
  *handle_out = handle_of(reg);
  return success();
}

// Registers the tiles of the range, unless another thread does. The outcome is a reference.
Status Pool::miss(pinrail_thread_t* thread, const Span& span, uint32_t access, uint32_t flags,
                  pinrail_registration_t** reg_out) {
  const Span tiles = tiles_of(span);
  pinrail_announcement_t announcement{};
  announcement.base = tiles.base;
  announcement.length = tiles.length();
  announcement.access = access;
  announcement.flags = flags;
  announcement.marks = state::kQuick | (flags != 0 ? state::kTransient : 0);
  Status status = find_or_announce(thread, &announcement, reg_out);
  if (status.ok()) count_hit(thread, *reg_out);
  if (!status.is(PINRAIL_ERR_NOT_FOUND)) return status;
  bool is_published = false;
  status = register_announced(thread, span, &announcement, reg_out, &is_published);
  if (is_published) {
    wake_waiters();
  } else {
    withdraw(&announcement);
  }
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

// A registration that only the calling thread knows.
Status Pool::make(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out) {
  count_relaxed(&misses_);
  pinrail_registration_t* reg;
  Status status = alloc(wanted.span, wanted.rights, wanted.traits, limits_of_registrar_.tail_size, &reg);
  if (!status.ok()) return status;
  reg->flags = wanted.flags;
  mpool::Cache::Tries tries;
  status = admit(thread, reg, &tries);
  if (status.ok()) {
    status = call_registrar(thread, device_request(reg, PINRAIL_KIND_HOST), reg, mpool::Room::made);
    if (!status.ok()) dismiss(reg);
  }
  if (status.ok()) {
    *reg_out = reg;
  } else {
    host_->registrations->free(host_, reg);
  }
  return status;
}

// An insert has made them superfluous. The index calls it under its lock.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (kill(regs[i]) == Killed::owned) static_cast<Pool*>(pool)->push_hook(regs[i], regs[i], regs[i]->length);
  }
}

// One registration of all memory takes nothing of the limit.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  Base::counters(stats_out);
  if (has_all_memory()) stats_out->size_limit = UINT64_MAX;
}

}  // namespace pinrail::odp
