// SPDX-License-Identifier: BSD-3-Clause
// Find, register and deregister: hits, and waiting for the maker; events. API context but for what ends in _hook; the
// caller holds no lock, because it may wait, and a drop may call the registrar. The calling thread may hold references.
#include "base/sync/lock.h"
#include "components/mpool/mrall/mrall.h"

namespace pinrail::mrall {
namespace {

constexpr int kTries = 100;  // each fails only if an event touches the range between the maker's insert and the find

}  // namespace

// Makes the demand and waits until a round has answered it.
Status Pool::demand(Demand* demand) {
  work_.ask(demand);
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
  work_.wait(*demand);
  return demand->status;
}

// A hit, or what the maker registers meanwhile (mrall/A1).
Status Pool::find_or_wait(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out) {
  pinrail_registration_t* reg = nullptr;
  if (find_indexed(thread, span, access, &reg)) {
    count_hit(thread, reg);
    *handle_out = handle_of(reg);
    return success();
  }
  // The maker may wait for the registrar's function that this thread is in.
  if (host_->pools->in_registrar(thread) != 0) return PINRAIL_ERR_BUSY;
  count_relaxed(&misses_);
  for (int tries = 0; tries < kTries; ++tries) {
    Demand own;
    own.span = span;
    own.rights = access & PINRAIL_RIGHTS_MASK;
    own.is_exact = tries != 0;
    const Status status = demand(&own);
    if (!status.ok()) return status;
    if (!find_indexed(thread, span, access, &reg)) continue;
    *handle_out = handle_of(reg);
    return success();
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

Status Pool::register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                          pinrail_handle_t* handle_out) {
  const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  const auto access = static_cast<uint32_t>(access_and_flags);
  Span span;
  if (!pages_of(addr, length, &span)) return PINRAIL_ERR_BAD_PARAM;
  if ((flags & PINRAIL_FLAG_CACHE_BYPASS) != 0 || (access & PINRAIL_TRAITS_MASK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const size_t most = limits_of_registrar_.max_length;
  if (most != 0 && span.length() > most) return PINRAIL_ERR_NOT_SUPPORTED;
  return find_or_wait(thread, span, access, handle_out);
}

// Only memory that a register call would get is found, but what is not registered is NOT_FOUND.
Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                  pinrail_handle_t* handle_out) {
  const auto access = static_cast<uint32_t>(access_and_flags);
  const Status status = register_mem(thread, addr, length, access, handle_out);
  const bool is_refusal = !status.ok() && !status.is(PINRAIL_ERR_BAD_PARAM) && !status.is(PINRAIL_ERR_BUSY);
  return is_refusal ? Status(PINRAIL_ERR_NOT_FOUND) : status;
}

// A hook, the maker or an insert has killed what leaves so before the pool ends.
pinrail_reason_t Pool::leave_index(pinrail_registration_t* reg, pinrail_reason_t reason) {
  // relaxed: a statistic
  if (mpool::is_invalidated(reg)) dead_bytes_.fetch_sub(reg->length, std::memory_order_relaxed);
  return Base::leave_index(reg, reason);
}

Status Pool::progress(pinrail_thread_t* thread) {
  return host_->pools->in_registrar(thread) != 0 ? Status(PINRAIL_ERR_BUSY) : catch_up();
}

// Everything is looked at once, and then what events have touched meanwhile.
Status Pool::catch_up() {
  Demand everything;
  everything.span = kEverything;
  Status status = demand(&everything);
  for (int i = 0; i < kTries && status.ok() && work_.is_behind(); ++i) {
    Demand nothing;
    status = demand(&nothing);
  }
  return status;
}

// Hook context: hides what an event touches, and queues it for the maker. The interrupted thread may hold references;
// it holds none of the locks that are taken here (HookMutex).

// Marks it as dead. Without references the maker gives it back, otherwise its last drop does (engine/P1).
void Pool::kill_hook(pinrail_registration_t* reg) {
  const size_t length = reg->length;  // if it is held, another thread may end it as soon as it is dead
  dead_bytes_.fetch_add(length, std::memory_order_relaxed);  // relaxed: a statistic
  mpool::mark_invalidated_hook(reg);
  const Killed killed = kill(reg);
  if (killed == Killed::no) dead_bytes_.fetch_sub(length, std::memory_order_relaxed);
  if (killed == Killed::owned) gc_list.push(reg, reg, length);
}

// The index calls it under its lock; the caller holds the lock of the work. What remains of their ranges is registered
// again, so all of it is queued.
void Pool::invalidated_hook(void* pool_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  assert_held(pool->work_.mutex, LockRank::pending);
  for (size_t i = 0; i < count; ++i) {
    pool->work_.touch_locked_hook(span_of(regs[i]));
    pool->kill_hook(regs[i]);
    mpool::count_one_hook(&pool->invalidations_);
  }
}

// An insert has made them superfluous.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<Pool*>(pool)->kill_hook(regs[i]);
}

// mrall/A2. Monitors report what is new in the same way as what goes away: either way the maker looks at the range, in
// whole pages, because it registers whole pages.
void Pool::invalidate_range_hook(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_mask_ + 1)) pages.base &= ~page_mask_;
  {
    Guard guard(work_.mutex);
    rcache_.ops.invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, this);
    work_.touch_locked_hook(pages);
  }
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
}

// For an event that a monitor reports.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  static_cast<Pool*>(pool)->invalidate_range_hook(Span::of(base, length));
}

// API context. No registrar is called, and nothing is allocated.

void Work::ask(Demand* demand) {
  Guard guard(mutex);
  demand->next = demands_;
  demands_ = demand;
}

void Work::wait(const Demand& demand) {
  Guard guard(mutex);
  while (!demand.is_done) changed_.wait(mutex);
}

bool Work::begin_round(bool is_due, Ranges* touched_out, Demand** demands_out) {
  Guard guard(mutex);
  if (pauses_ != 0 || (!is_due && touched_.count == 0 && demands_ == nullptr)) return false;
  is_running_ = true;
  *touched_out = touched_;
  *demands_out = demands_;
  touched_.count = 0;
  demands_ = nullptr;
  return true;
}

void Work::end_round(Demand* demands, const Ranges& left) {
  Guard guard(mutex);
  for (size_t i = 0; i < left.count; ++i) touched_.add_hook(left.spans[i]);
  for (Demand* at = demands; at != nullptr; at = at->next) at->is_done = true;
  is_running_ = false;
  changed_.notify_all();
}

bool Work::is_behind() {
  Guard guard(mutex);
  return touched_.count != 0;
}

void Work::pause() {
  Guard guard(mutex);
  ++pauses_;
  while (is_running_) changed_.wait(mutex);
}

void Work::resume() {
  Guard guard(mutex);
  --pauses_;
}

}  // namespace pinrail::mrall
