// SPDX-License-Identifier: BSD-3-Clause
// exports_test.cc - what overlaps is found, whatever its size and whatever changes meanwhile, and little else is looked
// at.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "components/mpool/gpusm/exports.h"

namespace pinrail::gpusm {
namespace {

using Slots = std::set<uint32_t>;

Slots found_in(const Exports& exports, uintptr_t base, size_t length, size_t* looks_out = nullptr) {
  Slots found;
  const size_t looks = exports.for_overlapping_hook(base, base + length, [&](uint32_t slot) { found.insert(slot); });
  if (looks_out != nullptr) *looks_out = looks;
  return found;
}

struct Plain {
  uintptr_t base = 0;
  size_t length = 0;  // 0: none
};

Slots found_plainly(const std::vector<Plain>& all, uintptr_t base, size_t length) {
  Slots found;
  for (uint32_t slot = 0; slot < all.size(); ++slot) {
    if (all[slot].length != 0 && all[slot].base < base + length && all[slot].base + all[slot].length > base) {
      found.insert(slot);
    }
  }
  return found;
}

TEST(Exports, what_overlaps_is_found_and_nothing_else) {
  constexpr uint32_t kSlots = 200;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Exports exports;
    ASSERT_TRUE(exports.create(kSlots).ok());
    std::vector<Plain> all(kSlots);
    const auto some_length = [&] { return size_t{1} + random() % (size_t{1} << random() % 20); };
    for (int step = 0; step < 2000; ++step) {
      const auto slot = static_cast<uint32_t>(random() % kSlots);
      if (all[slot].length != 0) {
        exports.clear(slot);
        all[slot] = {};
      } else {
        all[slot] = {0x10000 + random() % 0x200000, some_length()};
        exports.put(slot, all[slot].base, all[slot].length);
      }
      const uintptr_t base = random() % 0x220000;
      const size_t length = some_length();
      ASSERT_EQ(found_in(exports, base, length), found_plainly(all, base, length)) << "step " << step;
    }
    EXPECT_EQ(found_in(exports, 0, UINTPTR_MAX), found_plainly(all, 0, UINTPTR_MAX));
  }
}

TEST(Exports, ends_of_the_address_space_and_of_a_range_are_exact) {
  Exports exports;
  ASSERT_TRUE(exports.create(4).ok());
  exports.put(0, 1, 1);
  exports.put(1, uintptr_t{1} << 62, (size_t{1} << 63) + 1);
  exports.put(2, UINTPTR_MAX - 4096, 4096);
  EXPECT_EQ(found_in(exports, 0, 1), Slots{});
  EXPECT_EQ(found_in(exports, 1, 1), Slots{0});
  EXPECT_EQ(found_in(exports, 2, 1), Slots{});
  EXPECT_EQ(found_in(exports, uintptr_t{1} << 63, 1), Slots{1});
  EXPECT_EQ(found_in(exports, UINTPTR_MAX - 4097, 1), Slots{});
  EXPECT_EQ(found_in(exports, UINTPTR_MAX - 4097, 2), Slots{2});
  EXPECT_EQ(found_in(exports, 0, UINTPTR_MAX), (Slots{0, 1, 2}));
}

TEST(Exports, an_event_looks_at_what_is_near_and_not_at_all) {
  constexpr uint32_t kSlots = 10000;
  Exports exports;
  ASSERT_TRUE(exports.create(65536).ok());
  std::mt19937_64 random(1);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    exports.put(slot, 0x700000000000 + uintptr_t{slot} * (size_t{4} << 20), size_t{1} << (12 + random() % 9));
  }
  size_t looks = 0, sum = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    const uintptr_t between = 0x700000000000 + (random() % kSlots) * (size_t{4} << 20) + (size_t{3} << 20);
    EXPECT_EQ(found_in(exports, between, 4096, &looks), Slots{});
    sum += looks;
  }
  EXPECT_LT(sum / 1000, 20u) << "on the average";
}

// exports/X1, while chains change under the search.
TEST(Exports, what_stays_is_found_while_others_come_and_go) {
  constexpr uint32_t kSlots = 64;
  constexpr uintptr_t kBase = 0x100000;
  Exports exports;
  ASSERT_TRUE(exports.create(kSlots).ok());
  exports.put(7, kBase, 4096);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    std::mt19937 random(2);
    std::vector<bool> has(kSlots);
    while (!stop) {
      const uint32_t slot = random() % kSlots;
      if (slot == 7) continue;
      if (has[slot]) {
        exports.clear(slot);
      } else {
        exports.put(slot, kBase + 4096 * (random() % 4), 4096);  // the same few chains
      }
      has[slot] = !has[slot];
    }
  });
  uint64_t missed = 0;
  for (int i = 0; i < 300000; ++i) missed += found_in(exports, kBase, 1).count(7) == 1 ? 0 : 1;
  stop = true;
  changer.join();
  EXPECT_EQ(missed, 0u);
}

}  // namespace
}  // namespace pinrail::gpusm
