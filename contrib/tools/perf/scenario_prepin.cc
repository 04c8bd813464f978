// SPDX-License-Identifier: BSD-3-Clause
// scenario_prepin.cc - memory that is registered ahead of its use needs no further call of the registrar, and the
// answers of pinrail_mpool_query() agree with a list of what is pinned.
#include <pinrail/pin.h>

#include <random>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;

// The calls of the registrar that the pool has made for register calls.
uint64_t device_calls(const Session& session) {
  const pinrail_mpool_stats_t stats = session.stats();
  return stats.misses + stats.retries + stats.races;
}

Result pin(const Session& session, const std::vector<pinrail_range_t>& ranges) {
  const pinrail_status_t status =
      pinrail_mpool_prepin(session.pool(), ranges.data(), ranges.size(), kAccess, nullptr, nullptr);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("pinrail_mpool_prepin", status);
}

Result send(const Session& session, void* addr, size_t length) {
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(session.pool(), addr, length, kAccess, 0, &handle);
  if (status == PINRAIL_SUCCESS) status = pinrail_mpool_deregister(handle);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("a send", status);
}

Result run_sends(const Options& options, const Session& session, Figures* figures) {
  constexpr size_t kBytes = size_t{1} << 20;
  const uint64_t sends = options.iterations != 0 ? options.iterations : 1000000;
  const FreshMemory memory(kBytes);
  if (!memory.is_mapped()) return Result::bad("no memory");
  const std::vector<pinrail_range_t> range = {{memory.at(), kBytes}};
  const uint64_t before = device_calls(session);
  Result result = pin(session, range);
  const uint64_t began = now_ns();
  std::mt19937 random(1);
  for (uint64_t i = 0; i < sends && result.ok(); ++i) {
    const size_t offset = random() % kBytes;
    result = send(session, memory.at(offset), 1 + random() % (kBytes - offset));
  }
  const uint64_t took = now_ns() - began;
  if (!result.ok()) return result;
  figures->add(text("registrar calls of a prepin and %llu sends", static_cast<unsigned long long>(sends)),
               device_calls(session) - before, "calls", Bound::exactly, 1);
  figures->add("one send inside pinned memory", static_cast<double>(took) / static_cast<double>(sends), "ns");
  return unpin(session, range);
}

Result run_tensors(const Session& session, Figures* figures) {
  constexpr size_t kTensors = 1265;
  std::mt19937 random(2);
  std::vector<pinrail_range_t> tensors;
  const FreshMemory memory(size_t{32} << 20);
  if (!memory.is_mapped()) return Result::bad("no memory");
  size_t at = 0;
  for (size_t i = 0; i < kTensors; ++i) {
    const size_t length = 1 + random() % 20000;
    tensors.push_back({memory.at(at), length});
    at += length + random() % 64;
  }
  const uint64_t before = device_calls(session);
  Result result = pin(session, tensors);
  for (size_t i = 0; i < kTensors && result.ok(); ++i) result = send(session, tensors[i].addr, tensors[i].length);
  if (!result.ok()) return result;
  figures->add("registrar calls of 1265 tensors in one allocation", device_calls(session) - before, "calls",
               Bound::exactly, 1);
  return unpin(session, tensors);
}

// Slots of three pages with a gap behind each; each is pinned or not.
class Slots {
 public:
  static constexpr size_t kSlots = 24, kPagesOfSlot = 4;
  explicit Slots(const FreshMemory& memory) : memory_(memory) {}

  bool is_pinned(size_t slot) const { return pinned_[slot]; }
  void flip(size_t slot) { pinned_[slot] = !pinned_[slot]; }
  pinrail_range_t range(size_t slot) const {
    return {memory_.at(slot * kPagesOfSlot * page_size()), (kPagesOfSlot - 1) * page_size()};
  }
  // How many pages of the memory query() misjudges.
  size_t differences(const Session& session) const {
    const size_t pages = kSlots * kPagesOfSlot;
    std::vector<pinrail_range_t> parts(pages);
    pinrail_pinned_t pinned;
    size_t count = 0;
    if (pinrail_mpool_query(session.pool(), memory_.at(), pages * page_size(), kAccess, &pinned, parts.data(),
                            parts.size(), &count) != PINRAIL_SUCCESS) {
      return pages;
    }
    std::vector<bool> found(pages);
    for (size_t i = 0; i < count; ++i) {
      const auto first = static_cast<size_t>(static_cast<char*>(parts[i].addr) - memory_.at()) / page_size();
      for (size_t page = 0; page < parts[i].length / page_size(); ++page) found[first + page] = true;
    }
    size_t wrong = 0;
    for (size_t page = 0; page < pages; ++page) {
      const bool is_in = pinned_[page / kPagesOfSlot] && page % kPagesOfSlot != kPagesOfSlot - 1;
      wrong += found[page] == is_in ? 0 : 1;
    }
    return wrong;
  }

 private:
  const FreshMemory& memory_;
  bool pinned_[kSlots] = {};
};

Result run_queries(const Session& session, Figures* figures) {
  constexpr int kSteps = 2000;
  const FreshMemory memory(Slots::kSlots * Slots::kPagesOfSlot * page_size());
  if (!memory.is_mapped()) return Result::bad("no memory");
  Slots slots(memory);
  std::mt19937 random(3);
  size_t wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    const size_t slot = random() % Slots::kSlots;
    Result result = slots.is_pinned(slot) ? unpin(session, {slots.range(slot)}) : pin(session, {slots.range(slot)});
    if (!result.ok()) return result;
    slots.flip(slot);
    wrong += slots.differences(session);
  }
  figures->add("pages that query misjudges in 2000 random pins", wrong, "pages", Bound::exactly, 0);
  for (size_t slot = 0; slot < Slots::kSlots; ++slot) {
    if (!slots.is_pinned(slot)) continue;
    Result result = unpin(session, {slots.range(slot)});
    if (!result.ok()) return result;
  }
  return Result::good();
}

}  // namespace

Result run_prepin(const Options& options, const Session& session, Figures* figures_out) {
  Result result = run_sends(options, session, figures_out);
  if (result.ok()) result = run_tensors(session, figures_out);
  if (result.ok()) result = run_queries(session, figures_out);
  return result;
}

}  // namespace pinrail::perf
