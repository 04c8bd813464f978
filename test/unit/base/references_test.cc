// SPDX-License-Identifier: BSD-3-Clause
// Which reference slots registrations use: neighbours of a slab must not share one, because the second of two then
// takes the longer way at each hit.
#include "base/registration/references.h"

#include <gtest/gtest.h>

#include <set>

namespace pinrail {
namespace {

constexpr size_t kRow = references::kNearSlots - 1;
constexpr uintptr_t kSlab = uintptr_t{0x7ff8dc800000};

// The number of different slots of a row of registrations that begins at a line of a slab.
template <typename SlotOf>
size_t slots_of_row(size_t first_line, size_t lines_apart, SlotOf slot_of) {
  std::set<size_t> slots;
  for (size_t i = 0; i < kRow; ++i) {
    const uintptr_t address = kSlab + (first_line + i * lines_apart) * references::kLine;
    slots.insert(slot_of(reinterpret_cast<pinrail_registration_t*>(address)));  // NOLINT(performance-no-int-to-ptr)
  }
  return slots.size();
}

TEST(ReferenceSlots, neighbours_use_different_ones_wherever_their_row_begins) {
  for (size_t first = 0; first < 4 * references::kNearSlots; ++first) {
    for (const size_t apart : {1, 2}) {
      EXPECT_EQ(slots_of_row(first, apart, references::near_of), kRow) << "line " << first << ", each " << apart;
      EXPECT_EQ(slots_of_row(first, apart, references::far_of), kRow) << "line " << first << ", each " << apart;
    }
  }
}

TEST(ReferenceSlots, each_slot_is_used) {
  std::set<size_t> near, far;
  for (size_t line = 0; line < 2 * references::kFarSlots; ++line) {
    const uintptr_t address = kSlab + line * references::kLine;
    auto* const reg = reinterpret_cast<pinrail_registration_t*>(address);  // NOLINT(performance-no-int-to-ptr)
    near.insert(references::near_of(reg));
    far.insert(references::far_of(reg));
  }
  EXPECT_EQ(near.size(), references::kNearSlots);
  EXPECT_EQ(far.size(), references::kFarSlots);
}

}  // namespace
}  // namespace pinrail
