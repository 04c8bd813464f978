// SPDX-License-Identifier: BSD-3-Clause
// pinning.h - ranges that are pinned ahead of their use, by a call or by a job, in chunks or whole.
#ifndef PINRAIL_TEST_MPOOL_PINNING_H
#define PINRAIL_TEST_MPOOL_PINNING_H

#include <pinrail/pin.h>

#include <vector>

#include "test/support/library.h"

namespace pinrail::test {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kChunk = 16 * kPage;

inline void* address(uintptr_t at) { return reinterpret_cast<void*>(at); }  // NOLINT(performance-no-int-to-ptr)
inline pinrail_range_t range(uintptr_t base, size_t length) { return {address(base), length}; }
using Ranges = std::vector<pinrail_range_t>;

inline pinrail_prepin_options_t in_chunks(uint32_t flags = 0, uint32_t threads = 0, size_t chunk = kChunk) {
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = chunk;
  options.flags = flags;
  options.threads = threads;
  return options;
}
// Waits for a job that succeeds.
inline void finish(pinrail_prepin_t* job) {
  EXPECT_EQ(pinrail_prepin_wait(job, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_prepin_free(job), PINRAIL_SUCCESS);
}

// A test leaves in its pool what it likes.
class Pinning : public OnePool<Pool> {
 protected:
  void SetUp() override { make(settings_); }
  void TearDown() override {}

  pinrail_status_t pin(const Ranges& ranges, uint32_t flags = 0, pinrail_status_t* statuses = nullptr) const {
    const pinrail_prepin_options_t options = in_chunks(flags, 0, chunk_);
    return pinrail_mpool_prepin(pool_->get(), ranges.data(), ranges.size(), 1, &options, statuses);
  }
  pinrail_prepin_t* start(const Ranges& ranges, uint32_t threads = 1, uint32_t flags = 0) const {
    const pinrail_prepin_options_t options = in_chunks(flags, threads);
    pinrail_prepin_t* job = nullptr;
    EXPECT_EQ(pinrail_mpool_prepin_start(pool_->get(), ranges.data(), ranges.size(), 1, &options, &job),
              PINRAIL_SUCCESS);
    return job;
  }
  pinrail_status_t unpin(const Ranges& ranges) const {
    return pinrail_mpool_unpin(pool_->get(), ranges.data(), ranges.size(), 1);
  }
  // Nor was it before the pool's end.
  void expect_nothing_is_left() {
    EXPECT_EQ(device_->live_count(), 0u);
    OnePool::expect_nothing_is_left();
  }
  uint64_t calls() const { return device_->register_calls(); }

  Settings settings_;
  size_t chunk_ = kChunk;  // of pin()
};
// With rights=all a pool asks once more after a refusal, for the rights that were asked for.
class PinningAsked : public Pinning {
 protected:
  PinningAsked() { settings_ = {{"mpool_grdma_rights", "asked"}}; }
};

}  // namespace pinrail::test

#endif
