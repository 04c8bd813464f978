// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm over a registrar that is out of resources: which of the two statuses the caller gets (R7).
#include <thread>

#include "test/gpu/gpu_library.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kPeer = 1000001;  // a pid that no process has
constexpr uint64_t kBase = 0x10000;

class LentPool : public AnyPool {
 public:
  explicit LentPool(const fake::FakeRegistrar& registrar) {
    PoolOptions options;
    options.leave_pinned = 0;
    make("rgpusm", lend(registrar), options);
  }
  ~LentPool() { EXPECT_EQ(close(), PINRAIL_SUCCESS); }

  pinrail_status_t open(const pinrail_gpu_block_t& block, pinrail_handle_t* handle_out) const {
    return pinrail_mpool_register_remote(pool_, &block, 0, block.length, 0, 0, handle_out);
  }
};

class RgpusmLack : public ::testing::Test {
 protected:
  static fake::FakeOptions remote() {
    fake::FakeOptions options;
    options.kinds = PINRAIL_KIND_REMOTE;
    return options;
  }
  // Opens wanted_, which the registrar refuses each time, and in the nth try calls during().
  template <typename During>
  pinrail_status_t open_refused(uint64_t nth, During&& during) {
    uint64_t tries = 0;
    device_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
      if (++tries == nth) std::thread(during).join();
    });
    device_.fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE);
    pinrail_handle_t none{};
    const pinrail_status_t status = pool_.open(wanted_.block, &none);
    device_.clear_script();
    device_.on_register(nullptr);
    EXPECT_GE(tries, 2u) << "once, and once more";
    return status;
  }
  Library library_{without_threads()};
  fake::FakeRegistrar device_{remote()};
  LentPool pool_{device_};
  const PeerMemory other_{kPeer, kBase, 4096}, wanted_{kPeer, 2 * kBase, 4096};
};

TEST_F(RgpusmLack, with_nothing_else_open_is_for_good) {
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_OUT_OF_RESOURCE);
}

TEST_F(RgpusmLack, with_something_open_is_for_now) {
  pinrail_handle_t held{};
  ASSERT_EQ(pool_.open(other_.block, &held), PINRAIL_SUCCESS);
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
}

TEST_F(RgpusmLack, is_for_now_also_where_the_last_other_one_is_closed_during_the_last_try) {
  pinrail_handle_t held{};
  ASSERT_EQ(pool_.open(other_.block, &held), PINRAIL_SUCCESS);
  EXPECT_EQ(open_refused(2, [&] { EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS); }),
            PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(device_.live_count(), 0u);
}

TEST_F(RgpusmLack, is_for_now_also_where_another_one_came_and_went_during_the_last_try) {
  EXPECT_EQ(open_refused(2,
                         [&] {
                           pinrail_handle_t none{};
                           EXPECT_EQ(pool_.open(other_.block, &none), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
                         }),
            PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

}  // namespace
}  // namespace pinrail::test
