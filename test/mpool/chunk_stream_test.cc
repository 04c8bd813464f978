// SPDX-License-Identifier: BSD-3-Clause
// A large range that is registered piece by piece, some pieces ahead of the caller: pinrail_chunk_stream_*.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/registration/registration.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kPiece = 16 * kPage;
constexpr size_t kPieces = 24;

class ChunkStream : public testing::TestWithParam<uint32_t> {
 protected:
  void make(const PoolOptions& options = {}, const fake::FakeOptions& fake = {}) {
    pool_.reset();
    registrar_ = std::make_unique<fake::FakeRegistrar>(fake);
    pool_ = std::make_unique<Pool>(*registrar_, options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  pinrail_chunk_stream_t* open(uintptr_t base, size_t length, uint32_t flags = PINRAIL_FLAG_PERSISTENT) {
    pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
    options.chunk_size = kPiece;
    options.ahead = GetParam();
    options.flags = flags;
    pinrail_chunk_stream_t* stream = nullptr;
    EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), reinterpret_cast<void*>(base), length, 1, &options, &stream),
              PINRAIL_SUCCESS);
    return stream;
  }
  void expect_nothing_is_left() {
    EXPECT_EQ(registrar_->live_count(), 0u);
    EXPECT_EQ(registrar_->violations(), std::vector<std::string>{});
    EXPECT_TRUE(pool_->invariants_hold());
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  }

  Library library_;
  std::unique_ptr<fake::FakeRegistrar> registrar_;
  std::unique_ptr<Pool> pool_;
};

TEST_P(ChunkStream, hands_out_registrations_of_all_pieces_in_order) {
  make();
  const uintptr_t base = kBase + 3 * kPage + 100;
  const size_t length = kPieces * kPiece - 5 * kPage;
  pinrail_chunk_stream_t* const stream = open(base, length);
  uintptr_t at = base;
  pinrail_handle_t handle;
  void* addr = nullptr;
  size_t bytes = 0;
  while (pinrail_chunk_stream_next(stream, &handle, &addr, &bytes) == PINRAIL_SUCCESS) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(addr), at);
    EXPECT_LE(reinterpret_cast<uintptr_t>(handle.reg->base), at);
    EXPECT_GE(reinterpret_cast<uintptr_t>(handle.reg->base) + handle.reg->length, at + bytes);
    EXPECT_TRUE((at + bytes) % kPiece == 0 || at + bytes == base + length);
    EXPECT_LE(registrar_->live_count(), GetParam() + 1);
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    at += bytes;
  }
  EXPECT_EQ(at, base + length);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// chunk_stream/C4: what was registered ahead shows the device what the program had mapped then.
TEST_P(ChunkStream, a_piece_whose_memory_was_remapped_meanwhile_is_registered_anew) {
  make();
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
  std::vector<pinrail_handle_t> held(kPieces);
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t ready = std::min<size_t>(GetParam(), kPieces - i);
    while (registrar_->live_count() < i + ready) std::this_thread::yield();
    if (i % 5 == 2) pinrail_monitor_report(reinterpret_cast<void*>(kBase + i * kPiece), 2 * kPiece);
    void* addr = nullptr;
    ASSERT_EQ(pinrail_chunk_stream_next(stream, &held[i], &addr, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(addr, reinterpret_cast<void*>(kBase + i * kPiece));
    EXPECT_NE(state::load(held[i].reg) & state::kIndexed, 0u) << "the device has what is mapped now";
  }
  pinrail_handle_t more;
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &more, nullptr, nullptr), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar_->live_count(), kPieces);
  for (const pinrail_handle_t handle : held) EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// For every n: the caller stops after n pieces.
TEST_P(ChunkStream, that_is_closed_half_way_releases_the_rest) {
  for (size_t n = 0; n <= kPieces; ++n) {
    SCOPED_TRACE(n);
    make();
    pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
    std::vector<pinrail_handle_t> held(n);
    for (pinrail_handle_t& handle : held) {
      ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
    }
    EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar_->live_count(), n);
    for (const pinrail_handle_t handle : held) EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    expect_nothing_is_left();
  }
}

// For every n: the n-th registrar call fails once. The caller asks again and misses no piece.
TEST_P(ChunkStream, a_piece_that_failed_can_be_asked_for_again) {
  for (uint64_t n = 1; n <= kPieces; ++n) {
    SCOPED_TRACE(n);
    make();
    registrar_->fail_register(n, PINRAIL_ERR_PERM);
    pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
    uintptr_t at = kBase;
    int failures = 0;
    for (;;) {
      pinrail_handle_t handle;
      void* addr = nullptr;
      size_t bytes = 0;
      const pinrail_status_t status = pinrail_chunk_stream_next(stream, &handle, &addr, &bytes);
      if (status == PINRAIL_ERR_NOT_FOUND) break;
      failures += status == PINRAIL_ERR_PERM ? 1 : 0;
      ASSERT_LE(failures, 1);
      if (status != PINRAIL_SUCCESS) continue;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(addr), at);
      at += bytes;
      EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    }
    EXPECT_EQ(at, kBase + kPieces * kPiece);
    EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
    expect_nothing_is_left();
  }
}

// The limit has room for two pieces: the caller must release before it gets the next one.
TEST_P(ChunkStream, under_a_limit_the_caller_releases_and_goes_on) {
  PoolOptions options;
  options.size_limit = 2 * kPiece;
  make(options);
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece, 0);
  std::vector<pinrail_handle_t> held;
  size_t pieces = 0;
  for (;;) {
    pinrail_handle_t handle;
    const pinrail_status_t status = pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr);
    if (status == PINRAIL_ERR_NOT_FOUND) break;
    if (status == PINRAIL_SUCCESS) {
      held.push_back(handle);
      ++pieces;
      continue;
    }
    ASSERT_EQ(status, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    ASSERT_FALSE(held.empty());
    for (const pinrail_handle_t each : held) EXPECT_EQ(pinrail_mpool_deregister(each), PINRAIL_SUCCESS);
    held.clear();
  }
  for (const pinrail_handle_t each : held) EXPECT_EQ(pinrail_mpool_deregister(each), PINRAIL_SUCCESS);
  EXPECT_EQ(pieces, kPieces);
  EXPECT_LE(registrar_->peak_live_bytes(), 2 * kPiece);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  while (pinrail_mpool_evict(pool_->get()) == PINRAIL_SUCCESS) {
  }
  expect_nothing_is_left();
}

TEST_P(ChunkStream, a_pool_with_an_open_stream_is_busy_and_force_ends_the_stream) {
  make();
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
  pinrail_handle_t handle;
  ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar_->live_count(), 0u);
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
}

// In a forked child. What a child has found wrong is a bit of its exit status.
void expect_child_can_only_close(pinrail_chunk_stream_t* stream) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    pinrail_handle_t handle;
    int wrong = pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr) == PINRAIL_ERR_NOT_AVAILABLE ? 0 : 1;
    wrong |= pinrail_chunk_stream_close(stream) == PINRAIL_SUCCESS ? 0 : 2;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_P(ChunkStream, a_forked_child_can_close_it_and_nothing_else) {
  make();
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
  expect_child_can_only_close(stream);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

TEST_P(ChunkStream, a_forked_child_can_close_it_though_the_pool_was_gone_before) {
  make();
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
  ASSERT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  expect_child_can_only_close(stream);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
}

TEST_P(ChunkStream, a_registrar_for_its_callers_alone_is_called_by_the_caller_alone) {
  fake::FakeOptions fake;
  fake.thread_mode = PINRAIL_THREAD_CALLER;
  make({}, fake);
  std::atomic<bool> strange{false};
  const std::thread::id own = std::this_thread::get_id();
  registrar_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (std::this_thread::get_id() != own) strange = true;
  });
  pinrail_chunk_stream_t* const stream = open(kBase, kPieces * kPiece);
  pinrail_handle_t handle;
  while (pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr) == PINRAIL_SUCCESS) {
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
  EXPECT_FALSE(strange.load());
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

TEST_P(ChunkStream, bad_arguments_change_nothing) {
  make();
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  void* const addr = reinterpret_cast<void*>(kBase);
  EXPECT_EQ(pinrail_chunk_stream_open(nullptr, addr, 1, 1, nullptr, &stream), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), addr, 0, 1, nullptr, &stream), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), addr, 1, 0x100, nullptr, &stream), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), addr, 1, 1, nullptr, nullptr), PINRAIL_ERR_BAD_PARAM);
  options.flags = 0x100;
  EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), addr, 1, 1, &options, &stream), PINRAIL_ERR_BAD_PARAM);
  options.size = 1;
  EXPECT_EQ(pinrail_chunk_stream_open(pool_->get(), addr, 1, 1, &options, &stream), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(pinrail_chunk_stream_close(nullptr), PINRAIL_ERR_BAD_PARAM);
  pinrail_handle_t handle;
  EXPECT_EQ(pinrail_chunk_stream_next(nullptr, &handle, nullptr, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(registrar_->register_calls(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ahead, ChunkStream, testing::Values(0u, 1u, 3u));

pinrail_chunk_stream_t* open_ahead(pinrail_mpool_t* pool, uint32_t flags) {
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = kPiece;
  options.ahead = 3;
  options.flags = flags;
  pinrail_chunk_stream_t* stream = nullptr;
  void* const addr = reinterpret_cast<void*>(kBase);
  EXPECT_EQ(pinrail_chunk_stream_open(pool, addr, kPieces * kPiece, 1, &options, &stream), PINRAIL_SUCCESS);
  return stream;
}

// chunk_stream/C4: an event would end nothing of these, so each piece is registered when the caller asks for it.
TEST(ChunkStreamAhead, nothing_that_bypasses_the_cache_is_kept) {
  const Library library;
  fake::FakeRegistrar registrar;
  Pool pool(registrar);
  pinrail_chunk_stream_t* const stream = open_ahead(pool.get(), PINRAIL_FLAG_CACHE_BYPASS);
  for (size_t i = 0; i < kPieces; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(registrar.live_count(), 0u);
    EXPECT_EQ(registrar.register_calls(), i);
    pinrail_handle_t handle;
    ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.violations(), std::vector<std::string>{});
}

// The device refuses a tile, so that the pool registers the piece alone and does not cache it.
TEST(ChunkStreamAhead, nothing_that_the_pool_does_not_cache_is_kept) {
  const Library library;
  fake::FakeOptions paging;
  paging.on_demand = PINRAIL_ON_DEMAND_EXPLICIT;
  fake::FakeRegistrar registrar(paging);
  registrar.fail_register(1, PINRAIL_ERR_PERM);
  const pinrail_registrar_choice_t lent = lend(registrar);
  pinrail_mpool_t* pool = nullptr;
  ASSERT_EQ(pinrail_mpool_create("odp", &lent, nullptr, nullptr, &pool), PINRAIL_SUCCESS);
  pinrail_chunk_stream_t* const stream = open_ahead(pool, 0);
  for (int i = 0; i < 5000 && (registrar.register_calls() < 2 || registrar.live_count() != 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(registrar.register_calls(), 2u);
  EXPECT_EQ(registrar.live_count(), 0u);
  pinrail_handle_t handle;
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.live_count(), 0u);
}

// The helper thread registers up to `ahead` pieces before the caller asks, and no more.
TEST(ChunkStreamAhead, the_next_pieces_are_registered_before_the_caller_asks) {
  const Library library;
  fake::FakeRegistrar registrar;
  Pool pool(registrar);
  pinrail_chunk_stream_t* const stream = open_ahead(pool.get(), 0);
  for (int i = 0; i < 5000 && registrar.live_count() < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(registrar.live_count(), 3u);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(registrar.live_count(), 3u);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
