// SPDX-License-Identifier: BSD-3-Clause
// F2: what a checkpoint leaves at the device, and that nothing of the past life reaches it after a restart.
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr uintptr_t kStride = 0x100000;

uintptr_t place(uintptr_t i) { return kBase + i * kStride; }

// A registrar that is closed and opened again: each life of it is a device of its own.
class Reopened {
 public:
  Reopened() {
    table_ = host_table("reopened", this);
    table_.tail_size = 64;
    table_.register_mem = [](void* self, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
      const pinrail_registrar_t* lent = of(self).device->table();
      return lent->register_mem(lent->context, request, reg);
    };
    table_.deregister_mem = [](void* self, pinrail_registration_t* reg, pinrail_reason_t reason) {
      const pinrail_registrar_t* lent = of(self).device->table();
      return lent->deregister_mem(lent->context, reg, reason);
    };
    table_.tail_init = [](void* self, void*) {
      ++of(self).tails;
      return PINRAIL_SUCCESS;
    };
    table_.tail_fini = [](void* self, void*) { --of(self).tails; };
    table_.restart = [](void* self) {
      ++of(self).restarts;
      if (of(self).in_restart) of(self).in_restart();
      if (of(self).refusal == PINRAIL_SUCCESS) of(self).open();
      return of(self).refusal;
    };
    open();
  }
  ~Reopened() {
    for (const auto& past : past_) EXPECT_EQ(past->violations(), std::vector<std::string>{});
    EXPECT_EQ(device->violations(), std::vector<std::string>{});
  }
  void open() {
    if (device != nullptr) past_.push_back(std::move(device));
    device = std::make_unique<fake::FakeRegistrar>(fake::options_with(&fake::FakeOptions::tail_size, 64));
  }
  const pinrail_registrar_t& table() const { return table_; }

  std::unique_ptr<fake::FakeRegistrar> device;
  std::atomic<int> tails{0};  // made and not finished
  int restarts = 0;           // calls of restart
  std::function<void()> in_restart;
  pinrail_status_t refusal = PINRAIL_SUCCESS;

 private:
  static Reopened& of(void* self) { return *static_cast<Reopened*>(self); }
  std::vector<std::unique_ptr<fake::FakeRegistrar>> past_;
  pinrail_registrar_t table_{};
};

void tell(const Pool& pool, pinrail_ft_state_t state) {
  EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), state), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}

class GrdmaFt : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { ASSERT_EQ(pool_.status, PINRAIL_SUCCESS); }
  void TearDown() override {
    EXPECT_EQ(pool_.close(), PINRAIL_SUCCESS) << "everything was given back";
    EXPECT_EQ(reopened_.device->live_count(), 0u);
    EXPECT_EQ(reopened_.tails, 0);
  }
  // A restart of the process, as its device and its pool see it.
  void restart() { tell(pool_, PINRAIL_FT_RESTART); }
  Library library_;
  Reopened reopened_;
  Pool pool_{reopened_.table(), {GetParam()}};
};

TEST_P(GrdmaFt, a_checkpoint_leaves_what_is_held_and_nothing_else_at_the_device) {
  const pinrail_handle_t held = pool_.must(place(0), kPage),
                         own = pool_.must(place(1), kPage, {}, PINRAIL_FLAG_CACHE_BYPASS),
                         dead = pool_.must(place(2), kPage);
  for (uintptr_t i = 3; i < 300; ++i) pool_.use(place(i), kPage);
  report(place(2), 10 * kStride);  // `dead` and some idle ones
  for (const pinrail_ft_state_t state : {PINRAIL_FT_CHECKPOINT, PINRAIL_FT_TERM}) {
    tell(pool_, state);
    EXPECT_EQ(reopened_.device->live_count(), 3u);
    EXPECT_EQ(pool_.stats().registered_count, 3u);
    EXPECT_EQ(pool_.stats().indexed, 1u);
    EXPECT_EQ(pool_.stats().dead_bytes, 0u);
    EXPECT_TRUE(pool_.has(place(0), kPage));
  }
  for (const pinrail_handle_t handle : {held, own, dead}) drop(handle);
  pool_.use(place(4), kPage);
  tell(pool_, PINRAIL_FT_CHECKPOINT);
  EXPECT_EQ(reopened_.device->live_count(), 0u);
  EXPECT_EQ(pool_.stats().registered_bytes, 0u);
}

TEST_P(GrdmaFt, a_checkpoint_is_of_one_pool_though_others_share_its_cache) {
  Pool other(reopened_.table(), {GetParam()});
  const pinrail_handle_t held = other.must(place(7), kPage);
  pool_.use(place(0), kPage);
  other.use(place(1), kPage);
  const uint64_t others = other.stats().indexed;
  tell(pool_, PINRAIL_FT_CHECKPOINT);
  EXPECT_EQ(pool_.stats().indexed, 0u);
  EXPECT_EQ(other.stats().indexed, others);
  EXPECT_EQ(reopened_.device->live_count(), others);
  drop(held);
  EXPECT_EQ(other.close(), PINRAIL_SUCCESS);
}

TEST_P(GrdmaFt, nothing_of_the_past_life_is_given_to_the_device) {
  std::vector<pinrail_handle_t> held;
  for (int i = 0; i < 4; ++i) pool_.use(place(0), kPage);  // so that this thread remembers it
  held.push_back(pool_.must(place(0), kPage));
  held.push_back(pool_.must(place(0), kPage));
  held.push_back(pool_.must(place(1), kPage, {}, PINRAIL_FLAG_CACHE_BYPASS));
  held.push_back(pool_.must(place(2), kPage, {}, PINRAIL_FLAG_PERSISTENT));
  std::thread([&] { held.push_back(pool_.must(place(3), kPage)); }).join();
  held.push_back(pool_.must(place(4), kPage));
  report(place(4), kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);  // dead, and known to be held
  for (uintptr_t i = 8; i < 200; ++i) pool_.use(place(i), kPage);
  report(place(8), 8 * kStride);  // dead, and not yet drained
  const fake::FakeRegistrar& past = *reopened_.device;
  const uint64_t given_back = past.deregister_calls();

  restart();
  EXPECT_EQ(reopened_.tails, 0) << "what tail_init made was finished";
  const pinrail_mpool_stats_t figures = pool_.stats();
  EXPECT_EQ(figures.registered_bytes + figures.registered_count + figures.indexed + figures.dead_bytes, 0u);
  EXPECT_EQ(figures.pinned_bytes, 0u);
  EXPECT_EQ(pinrail_mpool_evict(pool_.get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
  for (uintptr_t i = 0; i < 200; ++i) EXPECT_FALSE(pool_.has(place(i), kPage)) << i;

  const fake::FakeRegistrar& device = *reopened_.device;
  const pinrail_handle_t fresh = pool_.must(place(0), kPage);
  EXPECT_EQ(device.register_calls(), 1u);
  EXPECT_EQ(fresh.reg->lkey, device.live()[0].lkey);
  pool_.use(place(0), kPage);
  EXPECT_EQ(device.register_calls(), 1u) << "a hit";
  for (const pinrail_handle_t handle : held) {
    drop(handle);
    EXPECT_TRUE(pool_.invariants_hold());
  }
  for (size_t i = 1; i < held.size(); ++i) {
    EXPECT_EQ(pinrail_mpool_deregister(held[i]), PINRAIL_ERR_BAD_PARAM) << "it was good for one, " << i;
  }
  EXPECT_EQ(past.deregister_calls(), given_back);
  EXPECT_EQ(device.deregister_calls(), 0u);
  EXPECT_EQ(device.live_count(), 1u);
  drop(fresh);
}

TEST_P(GrdmaFt, memory_of_registrations_without_references_is_reused_after_the_checkpoint) {
  std::set<pinrail_registration_t*> seen;
  for (int life = 0; life < 100; ++life) {
    for (uintptr_t i = 0; i < 8; ++i) {
      const pinrail_handle_t handle = pool_.must(place(i), kPage);
      seen.insert(handle.reg);
      drop(handle);
    }
    restart();
  }
  EXPECT_LE(seen.size(), 32u);
}

TEST_P(GrdmaFt, inside_the_registrar_it_is_refused_and_nothing_changes) {
  const pinrail_handle_t held = pool_.must(place(0), kPage);
  pinrail_status_t inside = PINRAIL_SUCCESS;
  reopened_.device->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    inside = pinrail_mpool_ft_event(pool_.get(), PINRAIL_FT_RESTART);
  });
  pool_.use(place(1), kPage);
  reopened_.device->on_register(nullptr);
  EXPECT_EQ(inside, PINRAIL_ERR_BUSY);
  EXPECT_TRUE(pool_.has(place(0), kPage));
  drop(held);
}

TEST_P(GrdmaFt, a_registrar_that_refuses_a_restart_is_asked_again_and_nothing_has_changed) {
  const pinrail_handle_t held = pool_.must(place(0), kPage);
  pool_.use(place(1), kPage);
  const pinrail_mpool_stats_t before = pool_.stats();
  // -15: of the type, but no status.
  for (const pinrail_status_t refusal : {PINRAIL_ERR_OUT_OF_RESOURCE, static_cast<pinrail_status_t>(-15)}) {
    reopened_.refusal = refusal;
    EXPECT_EQ(pinrail_mpool_ft_event(pool_.get(), PINRAIL_FT_RESTART),
              refusal == PINRAIL_ERR_OUT_OF_RESOURCE ? refusal : PINRAIL_ERR_ERROR);
    EXPECT_TRUE(pool_.invariants_hold());
    EXPECT_EQ(pool_.stats().registered_count, before.registered_count);
    EXPECT_EQ(pool_.stats().indexed, before.indexed);
    EXPECT_EQ(reopened_.device->live_count(), before.registered_count);
  }
  EXPECT_EQ(reopened_.restarts, 2);
  reopened_.refusal = PINRAIL_SUCCESS;
  restart();
  EXPECT_EQ(reopened_.restarts, 3);
  tell(pool_, PINRAIL_FT_CHECKPOINT);
  tell(pool_, PINRAIL_FT_CONTINUE);
  EXPECT_EQ(reopened_.restarts, 3) << "of a restart alone";
  drop(held);
}

INSTANTIATE_TEST_SUITE_P(LeavePinned, GrdmaFt, ::testing::Values(0, 1));

// It would call the device of the past life for what this thread has abandoned.
TEST(GrdmaFtThread, a_restart_waits_for_the_gc_thread) {
  Library library(Settings{{"mpool_grdma_gc_thread", "always"}});
  Reopened reopened;
  Pool pool(reopened.table());
  std::atomic<bool> began{false}, ended{false};
  const fake::FakeRegistrar& past = *reopened.device;
  reopened.device->on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    began = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ended = true;
  });
  pool.use(place(0), kPage);
  pool.use(place(1), kPage);
  report(place(0), kPage);
  while (!began) std::this_thread::yield();
  tell(pool, PINRAIL_FT_RESTART);
  EXPECT_TRUE(ended);
  EXPECT_EQ(past.deregister_calls(), 1u);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  pool.use(place(0), kPage);
  report(place(0), kPage);
  while (reopened.device->live_count() != 0) std::this_thread::yield();  // it goes on afterwards
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

// That it does not come is true however long one looks.
TEST(GrdmaFtThread, the_gc_thread_does_not_come_while_a_registrar_hears_of_a_restart) {
  Library library(Settings{{"mpool_grdma_gc_thread", "always"}, {"mpool_grdma_gc_limit", "1"}});
  Reopened reopened;
  Pool pool(reopened.table());
  const fake::FakeRegistrar& past = *reopened.device;
  pool.use(place(0), kPage);
  reopened.in_restart = [] {
    report(place(0), kPage);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  tell(pool, PINRAIL_FT_RESTART);
  EXPECT_EQ(past.deregister_calls(), 0u);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

TEST(GrdmaFtThread, checkpoints_come_while_threads_use_the_pool) {
  Library library;
  Reopened reopened;
  Pool pool(reopened.table());
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::atomic<uint64_t> wrong{0};
  Team threads(3u, [&](unsigned seed) {
    std::mt19937 random(seed);
    pinrail_handle_t kept{};
    for (; !stop; ++rounds) {
      const pinrail_handle_t handle = pool.must(place(random() % 32), kPage);
      if (!reopened.device->is_live(handle.reg)) ++wrong;  // held, and yet given back
      if (kept.reg != nullptr && !reopened.device->is_live(kept.reg)) ++wrong;
      if (kept.reg != nullptr && pinrail_mpool_deregister(kept) != PINRAIL_SUCCESS) ++wrong;
      kept = handle;
      if (random() % 64 == 0) report(place(random() % 32), kPage);
    }
    if (kept.reg != nullptr && pinrail_mpool_deregister(kept) != PINRAIL_SUCCESS) ++wrong;
  });
  do {
    tell(pool, PINRAIL_FT_CHECKPOINT);
  } while (rounds < 12000);
  stop = true;
  threads.join();
  EXPECT_EQ(wrong, 0u);
  tell(pool, PINRAIL_FT_CHECKPOINT);
  EXPECT_EQ(reopened.device->live_count(), 0u);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
