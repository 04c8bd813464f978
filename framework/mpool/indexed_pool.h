// SPDX-License-Identifier: BSD-3-Clause
// indexed_pool.h - what pools of host memory do alike: their registrations are of ranges of pages, and an index
// (framework rcache) finds them and has the calls that make one (announcements).
//
// Self is a pool as engine.h says; leave_index() and count_indexed() stand here.
//
// Owns     its index.
// Threads  as Engine.
// Hook     report_hook().
//
// indexed_pool/W1  A call that waits for another one's announcement to end is counted before it asks the index for the
//     last time, and a call under way wakes it after it has left the index's announcements. Both take the lock of the
//     index in between, so no wakeup is lost.
#ifndef PINRAIL_FRAMEWORK_MPOOL_INDEXED_POOL_H
#define PINRAIL_FRAMEWORK_MPOOL_INDEXED_POOL_H

#include <vector>

#include "framework/mpool/engine.h"

namespace pinrail::mpool {

template <typename Self, typename Settings = PoolSettings>
class IndexedPool : public Engine<Self, Settings> {
 public:
  // Visits the range of each registration in the index that overlaps the span and has the access. Takes the index lock,
  // not while it visits; leaves no reference and records no use.
  using QueryVisit = void (*)(void* arg, uintptr_t base, size_t length);
  Status query(pinrail_thread_t*, Span span, uint32_t access, QueryVisit visit, void* arg) {
    if (rcache_.ops.visit_all == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    const uint32_t rights = access & PINRAIL_RIGHTS_MASK, traits = (access & PINRAIL_TRAITS_MASK) | own_traits_;
    std::vector<Span> spans;
    size_t count = 0;
    do {
      spans.clear();
      spans.reserve(count + kMore);
      count = visit_all(span, [&](const pinrail_registration_t* reg) {
        const bool serves = (rights & ~reg->rights) == 0 && reg->traits == traits && is_indexed(reg);
        if (serves && spans.size() < spans.capacity()) spans.push_back(span_of(reg));
      });
    } while (count > spans.capacity());
    for (const Span& each : spans) visit(arg, each.base, each.length());
    return success();
  }
  // For tests: NULL, or what is broken.
  const char* check() const {
    return rcache_.ops.check(rcache_.module) != PINRAIL_SUCCESS ? "the index is broken" : Base::check();
  }

 protected:
  using Base = Engine<Self, Settings>;
  using Held = std::vector<pinrail_registration_t*>;
  // Drops what is held when its scope ends, also for want of memory.
  struct DropAtEnd {
    IndexedPool* pool;
    pinrail_thread_t* thread;
    Held* held;
    ~DropAtEnd() { pool->drop_all(thread, held); }
  };

  // page: what is registered is whole pages of so many bytes. own_traits: those of all registrations.
  IndexedPool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, size_t page,
              uint32_t own_traits)
      : Base(component, config, settings), page_mask_(page - 1), own_traits_(own_traits) {}
  ~IndexedPool() {
    if (rcache_.ops.destroy != nullptr) rcache_.ops.destroy(rcache_.module);
  }
  Status make_index(uint32_t flags) {
    return this->host_->pools->rcache_create(this->host_, this->settings_.rcache_name.c_str(), flags, &rcache_);
  }
  size_t count_indexed() const { return rcache_.ops.count(rcache_.module); }
  pinrail_reason_t leave_index(pinrail_registration_t* reg, pinrail_reason_t reason) {
    Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: it was taken out when it died
    return is_invalidated(reg) ? PINRAIL_REASON_INVALIDATED : reason;
  }

  // For an event that a monitor reports; `pool` is a Self.
  static void report_hook(void* pool, uintptr_t base, size_t length) {
    static_cast<Self*>(pool)->invalidate_range_hook(Span::of(base, length));
  }

  // Rounds the range out to whole pages. False: they begin at address 0 or end above the last one.
  bool to_pages(Span* span) const { return round_out(span, page_mask_ + 1) && span->base != 0; }
  // Whether the index answers: then the caller holds a registration. The caller counts a hit, or not.
  bool find_indexed(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_registration_t** reg_out) {
    return rcache_.ops.find(rcache_.module, thread, span.base, span.length(), access, reg_out) == PINRAIL_SUCCESS;
  }
  // Calls visit(reg), under the index's lock, for all that is in the index and overlaps the span. Returns how many.
  template <typename Visit>
  size_t visit_all(const Span& span, Visit&& visit) {
    const auto call = [](void* arg, pinrail_registration_t* reg) { (*static_cast<decltype(&visit)>(arg))(reg); };
    return rcache_.ops.visit_all(rcache_.module, span.base, span.length(), call, &visit);
  }
  // All that is in the index and overlaps the span, each with a reference. May throw bad_alloc, without references.
  void find_all(pinrail_thread_t* thread, const Span& span, Held* held_out) {
    size_t count = 0;
    do {
      drop_all(thread, held_out);
      held_out->reserve(count + kMore);
      count = visit_all(span, [&](pinrail_registration_t* reg) {
        if (held_out->size() < held_out->capacity() && take(reg, state::load(reg))) held_out->push_back(reg);
      });
    } while (count > held_out->capacity());
  }
  void drop_all(pinrail_thread_t* thread, Held* held) {
    for (pinrail_registration_t* reg : *held) this->deregister(thread, handle_of(reg)).ignore();
    held->clear();
  }

  // A registration of the range that the device and the index do not know yet. tail: bytes, the registrar's at first.
  Status alloc(const Span& span, uint32_t rights, uint32_t traits, size_t tail, pinrail_registration_t** reg_out) {
    const Status status = this->host_->registrations->alloc(this->host_, tail, sizeof(Area), reg_out);
    if (!status.ok()) return status;
    set_range(*reg_out, span, this->config_.pool, traits);
    (*reg_out)->rights = rights;
    this->mark_own(*reg_out);
    return status;
  }

  // Announces a call, unless the index answers by now. Waits for a call under way that will answer this one (R5).
  // SUCCESS: found, and the caller holds it. NOT_FOUND: announced. Others: errors.
  pinrail_status_t find_or_announce(pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                    pinrail_registration_t** reg_out) {
    const pinrail_status_t status = rcache_.ops.find_or_announce(rcache_.module, thread, announcement, reg_out);
    return status == PINRAIL_ERR_WOULD_BLOCK ? wait(thread, announcement, reg_out) : status;
  }
  // Ends an announcement that lasts. Returns whether an event has overtaken it.
  bool withdraw(pinrail_announcement_t* announcement) {
    const pinrail_status_t status = rcache_.ops.withdraw(rcache_.module, announcement);
    wake_waiters();
    return status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
  void wake_waiters() {
    if (waiters_.load(std::memory_order_relaxed) == 0) return;  // relaxed: indexed_pool/W1
    Guard guard(waiting_mutex_);
    ended_.notify_all();
  }

  const uintptr_t page_mask_;
  const uint32_t own_traits_;
  pinrail_rcache_t rcache_{};

 private:
  static constexpr size_t kMore = 64;  // for what comes meanwhile

  // If the call that it waits for fails, this one goes on by itself. That call may be about to end: looks some more
  // times before it sleeps, for about as long as falling asleep and waking take.
  __attribute__((noinline)) pinrail_status_t wait(pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                                  pinrail_registration_t** reg_out) {
    constexpr int kLooks = 8, kPausesPerLook = 8;
    for (int looks = 0; looks < kLooks; ++looks) {
      for (int i = 0; i < kPausesPerLook; ++i) FutexLock::pause();
      const pinrail_status_t status = rcache_.ops.find_or_announce(rcache_.module, thread, announcement, reg_out);
      if (status != PINRAIL_ERR_WOULD_BLOCK) return status;
    }
    Guard guard(waiting_mutex_);
    waiters_.fetch_add(1, std::memory_order_relaxed);  // relaxed: indexed_pool/W1
    pinrail_status_t status;
    for (;;) {
      status = rcache_.ops.find_or_announce(rcache_.module, thread, announcement, reg_out);
      if (status != PINRAIL_ERR_WOULD_BLOCK) break;
      ended_.wait(waiting_mutex_);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return status;
  }

  Mutex waiting_mutex_{LockRank::pending};
  Condition ended_;
  std::atomic<uint32_t> waiters_{0};  // changes under waiting_mutex_
};

}  // namespace pinrail::mpool

#endif
