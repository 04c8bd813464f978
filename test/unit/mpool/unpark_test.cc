// SPDX-License-Identifier: BSD-3-Clause
// A parked registration dies, leaves, and is freed while the thread that has dropped its last reference brings it back.
#include <gtest/gtest.h>
#include <pinrail/component_mpool.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>

#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"

namespace pinrail::state {
namespace {

std::function<void()> after_exchange;  // what other threads do right after the next one

bool exchange_and_go_on(pinrail_registration_t* reg, uint64_t* expected, uint64_t desired) {
  if (!exchange(reg, expected, desired)) return false;
  const std::function<void()> others = std::move(after_exchange);
  after_exchange = nullptr;
  if (others) others();
  return true;
}

}  // namespace
}  // namespace pinrail::state

#include "framework/mpool/pool_area.h"
// The class under a name of its own, because another file of this program tests it as it is.
#define exchange exchange_and_go_on
#define Registrations InterruptedRegistrations
#include "framework/mpool/pool_registrations.h"
#undef exchange
#undef Registrations

namespace pinrail::mpool {
namespace {

pinrail_registration_t* make() {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(0x10000, 4096), nullptr, 0);
  area_of(reg).place = InterruptedRegistrations::kNowhere;
  return reg;
}

void add(InterruptedRegistrations* all, pinrail_registration_t* reg) {
  ASSERT_TRUE(all->reserve(reg));
  all->add(reg);
}

TEST(Unpark, what_has_left_is_not_looked_at_when_its_memory_serves_another_cache) {
  InterruptedRegistrations all(arena::chunks()), of_other_cache(arena::chunks());
  for (int i = 0; i < 3; ++i) add(&of_other_cache, make());
  pinrail_registration_t* const reg = make();
  const pinrail_handle_t handle = {reg, generation_of(reg)};
  add(&all, reg);
  state::publish(reg, state::kIndexed);
  ASSERT_EQ(all.retire_next([](const pinrail_registration_t*) { return true; }), nullptr) << "it is held, so parked";
  ASSERT_EQ(drop(handle), Drop::idle);
  ASSERT_EQ(kill(reg), Killed::owned) << "an event";
  all.remove(reg);  // it was given back
  state::after_exchange = [&] {
    arena::free(reg);
    pinrail_registration_t* const next = make();
    ASSERT_EQ(next, reg) << "the same memory";
    add(&of_other_cache, next);
  };
  all.unpark(handle);
  EXPECT_FALSE(state::after_exchange) << "it was interrupted there";
  EXPECT_EQ(all.active(), 0u);
  EXPECT_EQ(all.active_bytes(), 0u);
  EXPECT_EQ(of_other_cache.check(), nullptr) << of_other_cache.check();
}

}  // namespace
}  // namespace pinrail::mpool
