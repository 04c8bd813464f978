// SPDX-License-Identifier: BSD-3-Clause
// work.cc - where the regions lie, and in which order they are used.
#include "test/bench/work.h"

#include <sys/mman.h>

#include <algorithm>

#include "test/bench/fail.h"

namespace pinrail::bench {

namespace {

constexpr size_t kAlignment = 2u << 20;
// Pages before the first region and behind the last one, for an invalidation may take its neighbours with it.
constexpr uint32_t kGap = 512;
constexpr uint32_t kStrangers = 1024;
constexpr uint16_t kStrangerPages = 16;

// xorshift64: the same sequence in every program.
class Random {
 public:
  uint32_t below(uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>((state_ >> 32) * bound >> 32);
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15u;
};

// Long enough that each region comes up about four times, short enough that small ones stay in the nearest cache.
size_t sequence_length(size_t regions) {
  size_t length = 2048;
  while (length < 4 * regions && length < (1u << 20)) length *= 2;
  return length;
}

char* reserve(size_t bytes) {
  void* const start = mmap(nullptr, bytes + kAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) fail("address space cannot be reserved");
  const uintptr_t address = reinterpret_cast<uintptr_t>(start);
  return reinterpret_cast<char*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

Work::Work(Shape shape, uint32_t regions, size_t length) {
  place(shape, regions, length);
  const Step last = regions_.back();
  strangers_at_ = (last.page + last.pages) / kGap * kGap + 2 * kGap;
  base_ = reserve((strangers_at_ + kStrangers * kStrangerPages) * kPage);
}

void Work::place(Shape shape, uint32_t regions, size_t length) {
  Random random;
  regions_.reserve(regions);
  uint32_t page = shape == Shape::aligned ? kGap : kGap + 1;
  for (uint32_t i = 0; i < regions; ++i) {
    uint16_t pages = static_cast<uint16_t>(length / kPage);
    if (shape == Shape::odd_sizes) pages = static_cast<uint16_t>(1 + 2 * random.below(16));
    regions_.push_back({page, pages, 0});
    page += pages;
    if (shape == Shape::odd) page += 2;
    if (shape == Shape::odd_sizes) page += 1 + 2 * random.below(8);
  }
}

size_t Work::span_length() const {
  const Step last = regions_.back();
  return (last.page + last.pages - regions_.front().page) * kPage;
}

Sequence Work::random(unsigned percent) const {
  Random random;
  Sequence sequence(sequence_length(regions_.size()));
  for (Step& step : sequence) {
    step = regions_[random.below(static_cast<uint32_t>(regions_.size()))];
    step.invalidate_first = random.below(100) < percent ? 1 : 0;
  }
  return sequence;
}

Sequence Work::in_order() const {
  Sequence sequence(sequence_length(regions_.size()));
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = regions_[i % regions_.size()];
  return sequence;
}

Sequence Work::churn() const {
  constexpr uint32_t kHot = 8;   // a part of this many of the regions
  constexpr size_t kMissOf = 8;  // steps
  Random random;
  Sequence sequence(sequence_length(regions_.size()));
  const auto hot = static_cast<uint32_t>(regions_.size() / kHot);
  size_t cold = hot;
  for (size_t i = 0; i < sequence.size(); ++i) {
    sequence[i] = i % kMissOf == 0 ? regions_[cold] : regions_[random.below(hot)];
    if (i % kMissOf == 0 && ++cold == regions_.size()) cold = hot;
  }
  return sequence;
}

Sequence Work::only(size_t region) const { return Sequence(sequence_length(1), regions_[region]); }

Sequence Work::strangers() const {
  Random random;
  Sequence sequence(sequence_length(kStrangers));
  for (Step& step : sequence) step = {strangers_at_ + random.below(kStrangers) * kStrangerPages, kStrangerPages, 0};
  return sequence;
}

Shape shape_of(const std::string& name) {
  if (name == "aligned") return Shape::aligned;
  if (name == "odd") return Shape::odd;
  if (name == "odd_sizes") return Shape::odd_sizes;
  fail("no such shape of regions", name.c_str());
}

}  // namespace pinrail::bench
