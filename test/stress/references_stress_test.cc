// SPDX-License-Identifier: BSD-3-Clause
// The counts of many threads' hits, and the index while events come. What takes and drops of references do to each
// other is in test/model.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/hit/pool_counts.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "components/rcache/vma/vma.h"
#include "test/support/threads.h"

namespace pinrail {
namespace {

using Clock = std::chrono::steady_clock;

// Others share a line, and no hit of theirs is lost.
TEST(Threads, threads_that_came_before_many_others_count_their_own_hits) {
  alignas(PoolCounts::Line) static unsigned char memory[PoolCounts::kBytes] = {};
  PoolCounts counts;
  counts.use(memory);
  std::atomic<uint64_t> hits{0};
  const auto crowd = [&](size_t count) {
    std::mutex mutex;
    std::condition_variable all_there;
    size_t ready = 0, shared = 0;
    std::atomic<size_t> done{0};
    test::on_threads(count, [&] {
      const uint32_t index = thread::current()->index;
      std::unique_lock<std::mutex> lock(mutex);
      if (index >= PoolCounts::kAlone) ++shared;
      if (++ready == count) all_there.notify_all();
      all_there.wait(lock, [&] { return ready == count; });
      lock.unlock();
      if (index < PoolCounts::kAlone) return;
      uint64_t own = 0;  // the first of those that share hits until the others have done so
      for (; index == PoolCounts::kAlone ? done + 1 < shared : own < 50000; ++own) counts.add_hit(thread::current());
      hits += own;
      ++done;
    });
    return shared;
  };
  for (int round = 0; round < 4; ++round) crowd(600);
  EXPECT_EQ(counts.sum().hits, hits);
  EXPECT_EQ(crowd(500), 0u);
}

}  // namespace
}  // namespace pinrail

namespace pinrail::vma {
namespace {

// Events look without the lock whether anything overlaps, while others insert and the memory of registrations is
// reused.

constexpr uintptr_t kBase = 0x100000;
constexpr uintptr_t kPage = 4096;

// The thread that drops the last reference of a dead registration frees it, and its memory is reused at once.
struct World {
  Index index{false};
  std::atomic<uint64_t> wrong{0}, freed{0}, made{0};

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

}  // namespace
}  // namespace pinrail::vma
