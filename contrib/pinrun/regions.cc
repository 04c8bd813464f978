// SPDX-License-Identifier: BSD-3-Clause
// regions.cc - regions are told from libibverbs' own by a mark that contains their address.
#include "contrib/pinrun/regions.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace pinrail::pinrun {
namespace {

// libibverbs keeps a type of 0 to 3 in the first four bytes. A mark is none of these: addresses end in four zero bits.
constexpr uint64_t kExists = 0x70696e72756e0009, kGone = 0x70696e72756e000b;
constexpr size_t kMarkOffset = sizeof(ibv_mr);
static_assert(offsetof(Region, mark) == kMarkOffset);

uint64_t mark_for(const ibv_mr* mr, uint64_t state) { return reinterpret_cast<uintptr_t>(mr) ^ state; }

bool has_mark(const ibv_mr* mr, uint64_t state) {
  uint64_t mark = 0;
  if (mr != nullptr) std::memcpy(&mark, reinterpret_cast<const char*>(mr) + kMarkOffset, sizeof(mark));
  return mark == mark_for(mr, state);
}

}  // namespace

Region* new_region() {
  auto* region = static_cast<Region*>(std::calloc(1, sizeof(Region)));
  if (region != nullptr) region->mark = mark_for(&region->mr, kExists);
  return region;
}

void free_region(Region* region) { std::free(region); }

Region* region_of(ibv_mr* mr) { return has_mark(mr, kExists) ? reinterpret_cast<Region*>(mr) : nullptr; }

void mark_as_gone(Region* region) { region->mark = mark_for(&region->mr, kGone); }

bool is_gone(const ibv_mr* mr) { return has_mark(mr, kGone); }

}  // namespace pinrail::pinrun
