// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm over a registrar that is out of resources: which of the two statuses the caller gets (R7).
#include <thread>

#include "test/gpu/gpu_library.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kPeer = 1000001;  // a pid that no process has
constexpr uint64_t kBase = 0x10000;

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
    const pinrail_status_t status = pool_.answer_to(wanted_.block);
    device_.clear_script();
    device_.on_register(nullptr);
    EXPECT_GE(tries, 2u) << "once, and once more";
    return status;
  }
  Library library_{without_threads()};
  fake::FakeRegistrar device_{remote()};
  GpuPool pool_{"rgpusm", *device_.table(), not_kept()};
  const PeerMemory other_{kPeer, kBase, 4096}, wanted_{kPeer, 2 * kBase, 4096};
};

TEST_F(RgpusmLack, with_nothing_else_open_is_for_good) {
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_OUT_OF_RESOURCE);
}

TEST_F(RgpusmLack, with_something_open_is_for_now) {
  const Held held = pool_.hold(other_.block);
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

TEST_F(RgpusmLack, is_for_now_also_where_the_last_other_one_is_closed_during_the_last_try) {
  const pinrail_handle_t held = pool_.must(other_.block);
  EXPECT_EQ(open_refused(2, [&] { drop(held); }), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(device_.live_count(), 0u);
}

TEST_F(RgpusmLack, is_for_now_also_where_another_one_came_and_went_during_the_last_try) {
  const auto come_and_go = [&] { EXPECT_EQ(pool_.answer_to(other_.block), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE); };
  EXPECT_EQ(open_refused(2, come_and_go), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

}  // namespace
}  // namespace pinrail::test
