// SPDX-License-Identifier: BSD-3-Clause
// pool_registrations.h - all registrations of one cache that the device knows, and whose turn it is to be evicted.
//
// A hand goes round those that may be idle, and passes by what was hit: once if it is large, up to four times if it is
// small, for a call of the device costs about as much for a page as for a hundred, and a small one takes less of the
// limit (R7). So nothing moves when something is used. What the hand finds referenced is parked behind the others,
// until the drop of its last reference brings it back: so a search does not meet again and again what is held.
//
// Owns     an array of their numbers (registration_arena.h). Not the registrations.
// Threads  all functions under the cache lock. Never in a hook.
//
// pool_registrations/M1  A registration is in the array from before its register_mem until after its deregister_mem,
//     except a victim whose place another one of its pool has taken.
// pool_registrations/M2  [0, active) may be idle; [active, size) are parked: they were found referenced, and either
//     their words have kNotify, or they are dead. So their last drop brings them back, or ends them.
// pool_registrations/M3  What is idle moves only to lower places. So a walk downwards, in several holds of the lock,
//     misses none that was idle when it began.
#ifndef PINRAIL_FRAMEWORK_MPOOL_POOL_REGISTRATIONS_H
#define PINRAIL_FRAMEWORK_MPOOL_POOL_REGISTRATIONS_H

#include <algorithm>
#include <memory>
#include <new>

#include "framework/mpool/pool_area.h"

namespace pinrail::mpool {

// How often the hand passes by a registration that was hit; bytes: what it is charged for. Measured on the recorded
// traces (test/bench/README, Limits).
inline constexpr uint32_t chances_of(uint64_t bytes) {
  return bytes < 16384 ? kMostChances : bytes < 65536 ? 3 : bytes < 262144 ? 2 : 1;
}

class Registrations {
 public:
  static constexpr uint32_t kNowhere = UINT32_MAX;

  explicit Registrations(char* const* chunks) : chunks_(chunks) {}

  size_t size() const { return size_; }
  size_t active() const { return active_; }
  uint64_t active_bytes() const { return active_bytes_; }
  pinrail_registration_t* at(size_t place) const { return arena::numbered(chunks_, numbers_[place]); }

  // Makes room for one more. False: there is no memory, or the registration has no number.
  bool reserve(const pinrail_registration_t* reg) {
    return arena::is_number(arena::number_of(reg)) && (size_ != capacity_ || grow());
  }
  // There is room. New ones come to the end of those that may be idle.
  void add(pinrail_registration_t* reg) {
    if (active_ != size_) put(at(active_), size_);
    ++size_;
    activate(reg);
  }
  void remove(pinrail_registration_t* reg) {
    uint32_t hole = area_of(reg).place;
    if (hole < active_) hole = deactivate(reg);
    if (hole != --size_) put(at(size_), hole);
    area_of(reg).place = kNowhere;
  }
  // reg takes the place of a victim, which the hand has just passed by. more_bytes: how much larger its charge is.
  void replace(pinrail_registration_t* victim, pinrail_registration_t* reg, uint64_t more_bytes) {
    active_bytes_ += more_bytes;
    put(reg, area_of(victim).place);
    area_of(victim).place = kNowhere;
  }
  // The last reference of a parked one was dropped; a thread that takes one meanwhile does no harm. The handle tells
  // whether its memory serves another one by now.
  void unpark(pinrail_handle_t handle) {
    pinrail_registration_t* const reg = handle.reg;
    uint64_t word = state::load(reg);
    uint32_t place;
    do {
      if (state::generation(word) != handle.generation) return;
      // Before the exchange, which tells that it is of this generation: if the registration has died and left, its
      // owner may free it at any time, and another cache gives its memory a place.
      place = __atomic_load_n(&area_of(reg).place, __ATOMIC_RELAXED);
    } while (!state::exchange(reg, &word, word & ~state::kNotify));
    if (place < active_ || place == kNowhere) return;
    if (place != active_) put(at(active_), place);
    activate(reg);
  }

  // The next one that is idle, has no chance left, and for which may_evict(reg) is true: dead now, and the caller's.
  // Chances do not count after kMostPassedBy of them, so that no request walks over all, nor in the last round, because
  // other threads may hit all the time. The rounds begin again after each that is parked, for the hand has passed by
  // what fills its place. NULL: there is none.
  template <typename MayEvict>
  pinrail_registration_t* retire_next(MayEvict&& may_evict) {
    size_t steps = kRounds * active_, passed_by = 0;
    while (steps != 0) {
      if (hand_ >= active_) hand_ = 0;
      pinrail_registration_t* const reg = at(hand_);
      const uint64_t word = state::load(reg);
      if (state::references(word) != 0 && park(reg, word)) {
        steps = kRounds * active_;
        continue;
      }
      ++hand_;
      const bool do_chances_count = --steps >= active_ && passed_by < kMostPassedBy;
      const bool is_idle = (word & state::kIndexed) != 0 && state::references(word) == 0;
      if (!is_idle || !may_evict(reg)) continue;
      if (do_chances_count && take_chance(reg, chances_of(charge_of(reg)))) {
        ++passed_by;
      } else if (retire(reg, word)) {
        return reg;
      }
    }
    return nullptr;
  }

  // Calls is_enough(reg) for those that seem idle until it returns true; whether it did. Parks what is referenced.
  template <typename IsEnough>
  bool visit_idle(IsEnough&& is_enough) {
    for (size_t place = active_; place-- != 0;) {
      if (place >= active_) continue;
      pinrail_registration_t* const reg = at(place);
      const uint64_t word = state::load(reg);
      if (state::references(word) != 0) {
        park(reg, word);
      } else if ((word & state::kIndexed) != 0 && is_enough(reg)) {
        return true;
      }
    }
    return false;
  }

  // pool_registrations/M2. NULL: it holds.
  const char* check() const {
    for (size_t place = 0; place < size_; ++place) {
      if (area_of(at(place)).place != place) return "a registration is not where it says";
      const bool is_parked = (state::load(at(place)) & (state::kNotify | state::kDead)) != 0;
      if (place >= active_ && !is_parked) return "what is parked would not tell its last drop";
    }
    return hand_ <= capacity_ ? nullptr : "the hand points nowhere";
  }

 private:
  static constexpr size_t kRounds = kMostChances + 1;  // so looks at a word that others change all the time end, too
  static constexpr size_t kMostPassedBy = 1024;

  // Makes room for more numbers. False: there is no memory, and nothing has changed. It allocates under the lock of the
  // cache, which no hook takes; the array is rarely too short.
  bool grow() {
    const uint32_t more = capacity_ / 8 + 64;
    std::unique_ptr<uint32_t[]> numbers(new (std::nothrow) uint32_t[capacity_ + more]);
    if (numbers == nullptr) return false;
    std::copy_n(numbers_.get(), size_, numbers.get());
    numbers.swap(numbers_);
    capacity_ += more;
    return true;
  }

  void put(pinrail_registration_t* reg, uint32_t place) {
    numbers_[place] = static_cast<uint32_t>(arena::number_of(reg));
    area_of(reg).place = place;
  }
  // Puts it at the end of those that may be idle, where there is a hole.
  void activate(pinrail_registration_t* reg) {
    active_bytes_ += charge_of(reg);
    put(reg, active_++);
  }
  // Takes it from among those that may be idle, and returns the hole that is left behind these. The last one fills its
  // place: where the hand has passed, which is the last turn, or has still to come, where it keeps about its turn.
  uint32_t deactivate(const pinrail_registration_t* reg) {
    const uint32_t hole = area_of(reg).place;
    active_bytes_ -= charge_of(reg);
    if (hole != --active_) put(at(active_), hole);
    return active_;
  }

  // Parks what is referenced: the drop of its last reference sees that. False: it is being made, or its word has
  // changed.
  bool park(pinrail_registration_t* reg, uint64_t word) {
    if ((word & (state::kIndexed | state::kDead)) == 0) return false;
    const bool is_dead = (word & state::kDead) != 0;
    if (!is_dead && !state::exchange(reg, &word, word | state::kNotify)) return false;
    const bool is_at_hand = area_of(reg).place == hand_;
    const uint32_t hole = deactivate(reg);
    put(reg, hole);
    if (is_at_hand && hand_ < active_) ++hand_;  // what has filled its place, often the newest, waits for its turn
    return true;
  }

  char* const* const chunks_;
  std::unique_ptr<uint32_t[]> numbers_;
  uint32_t capacity_ = 0, size_ = 0, active_ = 0;
  uint32_t hand_ = 0;  // where the evictor goes on
  uint64_t active_bytes_ = 0;
};

}  // namespace pinrail::mpool

#endif
