// SPDX-License-Identifier: BSD-3-Clause
// Threads find while others insert, remove and invalidate, and the memory of registrations is reused; events look
// without the lock whether anything overlaps.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "base/registration/registration_arena.h"
#include "components/rcache/vma/vma.h"
#include "test/support/tasks.h"

namespace pinrail::vma {
namespace {

using test::comes_true;
using test::short_or_long;
using Clock = std::chrono::steady_clock;

constexpr uintptr_t kBase = 0x100000;
constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kPages = 96;

// The thread that drops the last reference of a dead registration frees it, and its memory is reused at once.
struct World {
  Index index{false};
  std::atomic<uint64_t> found{0}, wrong{0}, freed{0}, made{0};

  void free(pinrail_registration_t* reg) {
    ++freed;
    arena::free(reg);
  }
  // What it owns has left the index, or is in it still and dead.
  void end(pinrail_registration_t* reg) {
    index.remove(reg).ignore();
    free(reg);
  }
  void drop_one(pinrail_registration_t* reg, uint64_t generation) {
    const Drop dropped = drop({reg, generation});
    if (dropped == Drop::stale) ++wrong;
    if (dropped == Drop::last) end(reg);
  }
  // Inserts it, with its maker's reference. False: it was refused, or an event has overtaken it.
  bool insert(pinrail_registration_t* reg) {
    pinrail_announcement_t announcement{};  // of a range that no other call and no event asks for
    announcement.base = reinterpret_cast<uintptr_t>(reg);
    announcement.length = 1;
    pinrail_registration_t* none = nullptr;
    index.find_or_announce(&announcement, &none).ignore();
    if (index.publish(&announcement, reg, left, this).ok()) return true;
    index.withdraw(&announcement).ignore();
    return false;
  }
  static void left(void* world, pinrail_registration_t* const* regs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (kill(regs[i]) == Killed::owned) static_cast<World*>(world)->free(regs[i]);
    }
  }
};

void find_some(World* world, unsigned seed, const std::atomic<bool>& stop) {
  std::mt19937 random(seed);
  while (!stop) {
    const Span span = Span::of(kBase + (random() % kPages) * kPage, (1 + random() % 3) * kPage);
    pinrail_registration_t* reg = nullptr;
    if (!world->index.find(Query::of(span.base, span.length(), 1), &reg).ok()) continue;
    if (!span_of(reg).contains(span) || (reg->rights & 1) == 0) ++world->wrong;
    ++world->found;
    world->drop_one(reg, generation_of(reg));
  }
}

void change_some(World* world, unsigned seed, const std::atomic<bool>& stop) {
  std::mt19937 random(seed);
  while (!stop) {
    const Span span = Span::of(kBase + (random() % kPages) * kPage, (1 + random() % 8) * kPage);
    if (random() % 8 == 0) {
      world->index.invalidate_hook(span, World::left, world);
      continue;
    }
    pinrail_registration_t* reg = nullptr;
    if (!arena::allocate(0, 0, &reg).ok()) continue;
    ++world->made;
    set_range(reg, span, nullptr, 0);
    reg->rights = random() % 2 == 0 ? 1 : 3;
    const uint64_t generation = generation_of(reg);
    if (!world->insert(reg)) {
      world->free(reg);
      continue;
    }
    // Sometimes evicts it again, as an evictor does: dead first, removed then.
    const bool evicts = random() % 4 == 0;
    world->drop_one(reg, generation);
    const uint64_t word = state::load(reg);
    if (evicts && state::generation(word) == generation && retire(reg, word)) world->end(reg);
  }
}

// Idle. NULL: it was refused.
pinrail_registration_t* put(World* world, const Span& span, uint32_t traits = 0) {
  pinrail_registration_t* reg = nullptr;
  if (!arena::allocate(0, 0, &reg).ok()) return nullptr;
  ++world->made;
  set_range(reg, span, nullptr, traits);
  reg->rights = 1;
  const uint64_t generation = generation_of(reg);
  if (!world->insert(reg)) {
    world->free(reg);
    return nullptr;
  }
  world->drop_one(reg, generation);
  return reg;
}

// What is in before the event is killed by it, although its neighbours come and go, and it moves in its node.
TEST(VmaStress, an_event_finds_what_is_there_while_others_change_the_index) {
  constexpr uint64_t kLeast = 1000;  // however little of the time is ours
  World world;
  std::atomic<bool> stop{false};
  const auto page = [](uintptr_t number) { return Span::of(kBase + number * kPage, kPage); };
  // On both sides, and more than a node has room for: nodes are split and merged, and it moves from one to another. By
  // turns of its own class and of another one, so that a node of one class becomes one of the other.
  std::thread neighbour([&] {
    for (uint64_t turn = 0; !stop; ++turn) {
      const uint32_t traits = turn % 2 == 0 ? 0 : PINRAIL_TRAIT_RELAXED_ORDERING;
      for (uintptr_t i = 0; i < 80; i += 2) {
        if (i != 40) put(&world, page(i), traits);
      }
      world.index.invalidate_hook({kBase, kBase + 40 * kPage}, World::left, &world);
      world.index.invalidate_hook({kBase + 41 * kPage, kBase + 80 * kPage}, World::left, &world);
    }
  });
  const auto end = Clock::now() + std::chrono::seconds(1);
  for (uint64_t put_in = 0; (Clock::now() < end || put_in < kLeast) && world.wrong == 0; ++put_in) {
    const pinrail_registration_t* reg = put(&world, page(40));
    const uint64_t generation = generation_of(reg);
    world.index.invalidate_hook(page(40), World::left, &world);
    if (generation_of(reg) == generation) ++world.wrong;  // freed, it has the next one
  }
  stop = true;
  neighbour.join();
  EXPECT_EQ(world.wrong, 0u);
  EXPECT_EQ(world.freed, world.made);
}

TEST(VmaStress, finds_stay_right_while_others_change_the_index) {
  World world;
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (unsigned seed = 1; seed <= 2; ++seed) threads.emplace_back(find_some, &world, seed, std::cref(stop));
  for (unsigned seed = 11; seed <= 12; ++seed) threads.emplace_back(change_some, &world, seed, std::cref(stop));
  std::this_thread::sleep_for(std::chrono::seconds(short_or_long(1, 3)));
  EXPECT_TRUE(comes_true([&] { return world.found > 10000; })) << world.found << " found";
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.wrong, 0u);
  EXPECT_EQ(world.index.check(), nullptr) << world.index.check();
  world.index.invalidate_hook({0, UINTPTR_MAX}, World::left, &world);
  EXPECT_EQ(world.index.count(), 0u);
  EXPECT_EQ(world.freed, world.made);
}

}  // namespace
}  // namespace pinrail::vma
