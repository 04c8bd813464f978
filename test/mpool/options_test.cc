// SPDX-License-Identifier: BSD-3-Clause
// Requests with options: pinrail_mpool_register_with(), the options of prepin, and the details of a registration.
#include "test/mpool/pinning.h"

#include <pinrail/alloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/registration/registration.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

class RegisterOptions : public Pinning {
 protected:
  void SetUp() override {
    Pinning::SetUp();
    make();
  }
  void make(fake::FakeOptions fake = {}) {
    fake.kinds = PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF;
    make_pool(fake);
    device_->on_register(
        [this](const pinrail_register_request_t& request, pinrail_registration_t*) { requests_.push_back(request); });
  }
  pinrail_status_t reg(uintptr_t base, size_t length, uint32_t flags = 0) {
    return pinrail_mpool_register_with(pool_->get(), address(base), length, 1, flags, &options_, &handle_);
  }
  pinrail_registration_details_t details() const {
    pinrail_registration_details_t read{};
    EXPECT_EQ(pinrail_registration_read_details(handle_.reg, &read), PINRAIL_SUCCESS);
    return read;
  }

  std::vector<pinrail_register_request_t> requests_;
  pinrail_register_options_t options_ = PINRAIL_REGISTER_OPTIONS_INIT;
  pinrail_handle_t handle_{};
};

TEST_F(RegisterOptions, reach_the_registrar_for_the_start_of_the_rounded_range) {
  int argument = 0;
  options_.dmabuf_fd = 7;
  options_.dmabuf_offset = 3 * kPage + 100;
  options_.iova = 0x5000 + 100;
  options_.argument = &argument;
  options_.user_value = 0x123456789abcdef;
  ASSERT_EQ(reg(kBase + 100, kPage), PINRAIL_SUCCESS);
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(requests_[0].kind, uint32_t{PINRAIL_KIND_DMABUF});
  EXPECT_EQ(requests_[0].fd, 7);
  EXPECT_EQ(requests_[0].fd_offset, 3 * kPage);
  EXPECT_EQ(requests_[0].addr, address(kBase));
  EXPECT_EQ(requests_[0].length, 2 * kPage);
  EXPECT_EQ(requests_[0].iova, 0x5000u);
  EXPECT_EQ(requests_[0].argument, &argument);
  EXPECT_EQ(details().iova, 0x5000u);
  EXPECT_EQ(details().user_value, 0x123456789abcdefu);
  EXPECT_EQ(details().lkey, handle_.reg->lkey) << "the registrar set only the keys of 32 bits";
  drop(handle_);
  EXPECT_EQ(device_->live_count(), 0u) << "it was the caller's own";
}

TEST_F(RegisterOptions, a_registration_without_details_has_its_own_fields) {
  handle_ = pool_->must(kBase + 1, kPage);
  EXPECT_EQ(requests_[0].details, nullptr);
  EXPECT_EQ(requests_[0].iova, 0u);
  EXPECT_EQ(details().lkey, handle_.reg->lkey);
  EXPECT_EQ(details().rkey, handle_.reg->rkey);
  EXPECT_EQ(details().iova, kBase);
  EXPECT_EQ(details().user_value, 0u);
  drop(handle_);
}

// The tail of the registrar and the details do not touch: debug builds have guard words behind the tail.
TEST_F(RegisterOptions, details_lie_behind_the_registrars_tail) {
  for (const size_t tail : {0, 1, 7, 8, 24, 63, 64, 200, 65536}) {
    SCOPED_TRACE(tail);
    make(fake::options_with(&fake::FakeOptions::tail_size, tail));
    device_->on_register([tail](const pinrail_register_request_t& request, pinrail_registration_t* reg) {
      auto* const bytes = static_cast<unsigned char*>(pinrail_registration_tail(reg));
      for (size_t i = 0; i < tail; ++i) bytes[i] = 0xff;
      request.details->rkey = 0x99aabbccddeeff00;
    });
    options_.user_value = 17;
    ASSERT_EQ(reg(kBase, kPage), PINRAIL_SUCCESS);
    EXPECT_EQ(details().lkey, 0u);
    EXPECT_EQ(details().rkey, 0x99aabbccddeeff00u);
    EXPECT_EQ(details().iova, kBase);
    EXPECT_EQ(details().user_value, 17u);
    drop(handle_);
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  }
}

// What the allocator keeps free makes room for them.
TEST_F(RegisterOptions, get_the_room_of_free_slabs) {
  make_pool({}, at_most_bytes(40 << 20));
  void* at = nullptr;
  ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 100, 0, PINRAIL_NODE_ANY, &at), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_mpool_free(pool_->get(), at), PINRAIL_SUCCESS);
  ASSERT_EQ(reg(kBase, 20 << 20), PINRAIL_SUCCESS);
  drop(handle_);
}

TEST_F(RegisterOptions, a_persistent_one_serves_later_requests) {
  options_.user_value = 9;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  const pinrail_handle_t hit = pool_->must(kBase + kPage, kPage);
  EXPECT_EQ(hit.reg, handle_.reg);
  drop(hit);
  drop(handle_);
  EXPECT_EQ(device_->live_count(), 0u);
}

// At another address of the device, of other memory, or with another value it would be a wrong one.
TEST_F(RegisterOptions, of_a_persistent_request_are_those_of_what_it_hits) {
  options_.iova = 0x40000000;
  options_.user_value = 9;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  const pinrail_handle_t first = handle_;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  EXPECT_EQ(handle_.reg, first.reg);
  drop(handle_);
  options_.iova += kPage;
  ASSERT_EQ(reg(kBase + kPage, kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  EXPECT_EQ(handle_.reg, first.reg);
  drop(handle_);
  for (const uint64_t iova : {uint64_t{0}, uint64_t{0x40000000}, uint64_t{0x50000000}}) {
    options_.iova = iova;
    ASSERT_EQ(reg(kBase + kPage, kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
    EXPECT_NE(handle_.reg, first.reg);
    EXPECT_EQ(details().iova, iova != 0 ? iova : kBase + kPage);
    drop(handle_);
  }
  options_.iova = 0x40000000;
  options_.user_value = 10;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  EXPECT_EQ(details().user_value, 10u);
  drop(handle_);
  options_.user_value = 9;
  options_.dmabuf_fd = 7;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  EXPECT_EQ(requests_.back().kind, uint32_t{PINRAIL_KIND_DMABUF});
  drop(handle_);
  drop(first);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(RegisterOptions, without_persistent_neither_hits_nor_is_hit) {
  pool_->use(kBase, 4 * kPage);
  ASSERT_EQ(reg(kBase, kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->register_calls(), 2u);
  drop(handle_);
}

// The chunks of a dmabuf have offsets by their distance to the first range.
TEST_F(RegisterOptions, of_a_prepin_follow_its_chunks) {
  options_.dmabuf_fd = 7;
  options_.dmabuf_offset = 16 * kPage;
  options_.iova = 0x40000000;
  pinrail_prepin_options_t prepin = PINRAIL_PREPIN_OPTIONS_INIT;
  prepin.registration = &options_;
  prepin.chunk_size = 4 * kPage;
  const pinrail_range_t range = {address(kBase), 12 * kPage};
  ASSERT_EQ(pinrail_mpool_prepin(pool_->get(), &range, 1, 1, &prepin, nullptr), PINRAIL_SUCCESS);
  ASSERT_EQ(requests_.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests_[i].fd, 7);
    EXPECT_EQ(requests_[i].fd_offset, (16 + 4 * i) * kPage);
    EXPECT_EQ(requests_[i].iova, 0x40000000 + 4 * i * kPage);
  }
  pool_->use(kBase + 5 * kPage, kPage);
  EXPECT_EQ(device_->register_calls(), 3u);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &range, 1, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  // The second range would begin before the dmabuf.
  const pinrail_range_t ranges[] = {{address(kBase + 64 * kPage), kPage}, {address(kBase), kPage}};
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), ranges, 2, 1, &prepin, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(RegisterOptions, of_a_prepin_have_no_address_below_the_first_page) {
  pinrail_prepin_options_t prepin = PINRAIL_PREPIN_OPTIONS_INIT;
  prepin.registration = &options_;
  const pinrail_range_t ranges[] = {{address(kBase + 4 * kPage), kPage}, {address(kBase), kPage}};
  testing::internal::CaptureStderr();
  for (const uint64_t iova : {uint64_t{4 * kPage}, uint64_t{3 * kPage}}) {
    options_.iova = iova;  // the second range's would be 0, which asks for none, or negative
    EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), ranges, 2, 1, &prepin, nullptr), PINRAIL_ERR_BAD_PARAM);
  }
  const pinrail_range_t ascending[] = {{address(kBase), kPage}, {address(kBase + 4 * kPage), kPage}};
  options_.iova = UINT64_MAX - 2 * kPage + 1;
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), ascending, 2, 1, &prepin, nullptr), PINRAIL_ERR_BAD_PARAM);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("called pinrail_mpool_prepin, and a range's iova"), std::string::npos) << said;
  EXPECT_EQ(device_->live_count(), 0u);
}

// No monitor of host memory sees that a GPU's memory is freed, and what is there next has the same address.
TEST_F(RegisterOptions, a_dmabuf_is_found_again_only_where_the_program_reports_all_memory) {
  const Mapping memory(kPage);
  const auto base = reinterpret_cast<uintptr_t>(memory.base());
  for (const char* const monitor : {"external", "patcher"}) {
    pool_.reset();
    library_.reset();
    library_ = std::make_unique<Library>(Settings{{"monitor", monitor}});
    if (pinrail_monitors_at_work()[0] == 0) GTEST_SKIP() << "monitor patcher does not work here";
    make();
    options_.dmabuf_fd = 7;
    ASSERT_EQ(reg(base, kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
    EXPECT_EQ(pool_->has(base, kPage), monitor == std::string_view("external")) << monitor;
    drop(handle_);
  }
}

TEST_F(RegisterOptions, wrong_ones_change_nothing) {
  options_.dmabuf_fd = 7;
  options_.dmabuf_offset = 50;
  EXPECT_EQ(reg(kBase + 100, kPage), PINRAIL_ERR_BAD_PARAM) << "the page begins before the dmabuf";
  options_ = PINRAIL_REGISTER_OPTIONS_INIT;
  options_.iova = 100;
  EXPECT_EQ(reg(kBase + 100, kPage), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->register_calls(), 0u);
  fake::FakeRegistrar host_only;
  const Pool pool(host_only);
  options_ = PINRAIL_REGISTER_OPTIONS_INIT;
  options_.dmabuf_fd = 7;
  EXPECT_EQ(pinrail_mpool_register_with(pool.get(), address(kBase), kPage, 1, 0, &options_, &handle_),
            PINRAIL_ERR_NOT_SUPPORTED);
}

// A large range that is registered piece by piece, some pieces ahead of the caller: pinrail_chunk_stream_*.

constexpr size_t kPiece = 16 * kPage;
constexpr size_t kPieces = 24;

pinrail_chunk_stream_t* open_stream(const Pool& pool, uint32_t ahead, uint32_t flags, uintptr_t base = kBase,
                                    size_t length = kPieces * kPiece) {
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = kPiece;
  options.ahead = ahead;
  options.flags = flags;
  pinrail_chunk_stream_t* stream = nullptr;
  EXPECT_EQ(pinrail_chunk_stream_open(pool.get(), address(base), length, 1, &options, &stream), PINRAIL_SUCCESS);
  return stream;
}
void close(pinrail_chunk_stream_t* stream) { EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS); }

class ChunkStream : public Pinning, public testing::WithParamInterface<uint32_t> {
 protected:
  pinrail_chunk_stream_t* open(uintptr_t base = kBase, size_t length = kPieces * kPiece,
                               uint32_t flags = PINRAIL_FLAG_PERSISTENT) const {
    return open_stream(*pool_, GetParam(), flags, base, length);
  }
};

TEST_P(ChunkStream, hands_out_registrations_of_all_pieces_in_order) {
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
    EXPECT_LE(device_->live_count(), GetParam() + 1);
    drop(handle);
    at += bytes;
  }
  EXPECT_EQ(at, base + length);
  close(stream);
  expect_nothing_is_left();
}

// api_chunks/C4: what was registered ahead shows the device what the program had mapped then.
TEST_P(ChunkStream, a_piece_whose_memory_was_remapped_meanwhile_is_registered_anew) {
  pinrail_chunk_stream_t* const stream = open();
  std::vector<pinrail_handle_t> held(kPieces);
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t ready = std::min<size_t>(GetParam(), kPieces - i);
    while (device_->live_count() < i + ready) std::this_thread::yield();
    if (i % 5 == 2) pinrail_monitor_report(reinterpret_cast<void*>(kBase + i * kPiece), 2 * kPiece);
    void* addr = nullptr;
    ASSERT_EQ(pinrail_chunk_stream_next(stream, &held[i], &addr, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(addr, reinterpret_cast<void*>(kBase + i * kPiece));
    EXPECT_NE(state::load(held[i].reg) & state::kIndexed, 0u) << "the device has what is mapped now";
  }
  pinrail_handle_t more;
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &more, nullptr, nullptr), PINRAIL_ERR_NOT_FOUND);
  close(stream);
  EXPECT_EQ(device_->live_count(), kPieces);
  for (const pinrail_handle_t handle : held) drop(handle);
  expect_nothing_is_left();
}

// For every n: the caller stops after n pieces.
TEST_P(ChunkStream, that_is_closed_half_way_releases_the_rest) {
  for (size_t n = 0; n <= kPieces; ++n) {
    SCOPED_TRACE(n);
    make_pool();
    pinrail_chunk_stream_t* const stream = open();
    std::vector<pinrail_handle_t> held(n);
    for (pinrail_handle_t& handle : held) {
      ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
    }
    close(stream);
    EXPECT_EQ(device_->live_count(), n);
    for (const pinrail_handle_t handle : held) drop(handle);
    expect_nothing_is_left();
  }
}

// For every n: the n-th registrar call fails once. The caller asks again and misses no piece.
TEST_P(ChunkStream, a_piece_that_failed_can_be_asked_for_again) {
  for (uint64_t n = 1; n <= kPieces; ++n) {
    SCOPED_TRACE(n);
    make_pool();
    device_->fail_register(n, PINRAIL_ERR_PERM);
    pinrail_chunk_stream_t* const stream = open();
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
      drop(handle);
    }
    EXPECT_EQ(at, kBase + kPieces * kPiece);
    close(stream);
    expect_nothing_is_left();
  }
}

// The limit has room for two pieces: the caller must release before it gets the next one.
TEST_P(ChunkStream, under_a_limit_the_caller_releases_and_goes_on) {
  make_pool({}, at_most_bytes(2 * kPiece));
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
    for (const pinrail_handle_t each : held) drop(each);
    held.clear();
  }
  for (const pinrail_handle_t each : held) drop(each);
  EXPECT_EQ(pieces, kPieces);
  EXPECT_LE(device_->peak_live_bytes(), 2 * kPiece);
  close(stream);
  pool_->evict_all();
  expect_nothing_is_left();
}

TEST_P(ChunkStream, a_pool_with_an_open_stream_is_busy_and_force_ends_the_stream) {
  pinrail_chunk_stream_t* const stream = open();
  pinrail_handle_t handle;
  ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
  drop(handle);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_ERR_NOT_FOUND);
  close(stream);
}

TEST_P(ChunkStream, a_forked_child_can_close_it_and_nothing_else_though_the_pool_may_be_gone) {
  for (const bool is_pool_gone : {false, true}) {
    make_pool();
    pinrail_chunk_stream_t* const stream = open();
    EXPECT_EQ(is_pool_gone ? pool_->close(PINRAIL_DESTROY_FORCE) : PINRAIL_SUCCESS, PINRAIL_SUCCESS);
    expect_success_in_child([&] {
      alarm(60);
      pinrail_handle_t handle;
      const int wrong =
          pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr) == PINRAIL_ERR_NOT_AVAILABLE ? 0 : 1;
      return wrong | (pinrail_chunk_stream_close(stream) == PINRAIL_SUCCESS ? 0 : 2);
    });
    close(stream);
  }
}

TEST_P(ChunkStream, a_registrar_for_its_callers_alone_is_called_by_the_caller_alone) {
  make_pool(fake::options_with(&fake::FakeOptions::thread_mode, PINRAIL_THREAD_CALLER));
  std::atomic<bool> strange{false};
  const std::thread::id own = std::this_thread::get_id();
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (std::this_thread::get_id() != own) strange = true;
  });
  pinrail_chunk_stream_t* const stream = open();
  pinrail_handle_t handle;
  while (pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr) == PINRAIL_SUCCESS) drop(handle);
  EXPECT_FALSE(strange.load());
  close(stream);
  expect_nothing_is_left();
}

INSTANTIATE_TEST_SUITE_P(Ahead, ChunkStream, testing::Values(0u, 1u, 3u));

class ChunkStreamAhead : public Pinning {
 protected:
  static constexpr uint32_t kAhead = 3;
};

// api_chunks/C4: an event would end nothing of these, so each piece is registered when the caller asks for it.
TEST_F(ChunkStreamAhead, nothing_that_bypasses_the_cache_is_kept) {
  pinrail_chunk_stream_t* const stream = open_stream(*pool_, kAhead, PINRAIL_FLAG_CACHE_BYPASS);
  for (size_t i = 0; i < kPieces; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(device_->live_count(), 0u);
    EXPECT_EQ(calls(), i);
    pinrail_handle_t handle;
    ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
    drop(handle);
  }
  close(stream);
  expect_nothing_is_left();
}

// The device refuses a tile, so that the pool registers the piece alone and does not cache it.
TEST_F(ChunkStreamAhead, nothing_that_the_pool_does_not_cache_is_kept) {
  fake::FakeRegistrar device(fake::options_with(&fake::FakeOptions::on_demand, PINRAIL_ON_DEMAND_EXPLICIT));
  device.fail_register(1, PINRAIL_ERR_PERM);
  Pool pool(lend(device), {PINRAIL_UNSET}, "odp");
  pinrail_chunk_stream_t* const stream = open_stream(pool, kAhead, 0);
  EXPECT_TRUE(comes_true([&] { return device.deregister_calls() == 1 && device.live_count() == 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(device.register_calls(), 2u);
  EXPECT_EQ(device.live_count(), 0u);
  pinrail_handle_t handle;
  EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
  drop(handle);
  close(stream);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(device.live_count(), 0u);
}

// api_chunks/C4: the device has less room than before, so a piece that is registered anew needs that of those behind
// it.
TEST_F(ChunkStreamAhead, what_is_ready_behind_a_piece_does_not_keep_it_out) {
  pinrail_chunk_stream_t* const stream = open_stream(*pool_, kAhead, 0);
  EXPECT_TRUE(comes_true([&] { return device_->live_count() == kAhead; }));
  pinrail_monitor_report(address(kBase), kPiece);
  device_->set_capacity(kPiece, 1);
  for (size_t i = 0; i < kPieces; ++i) {
    SCOPED_TRACE(i);
    pinrail_handle_t handle;
    void* addr = nullptr;
    ASSERT_EQ(pinrail_chunk_stream_next(stream, &handle, &addr, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(addr, address(kBase + i * kPiece));
    drop(handle);
  }
  close(stream);
  pool_->evict_all();
  expect_nothing_is_left();
}

// Up to `ahead` pieces before the caller asks, and no more.
TEST_F(ChunkStreamAhead, the_next_pieces_are_registered_before_the_caller_asks) {
  pinrail_chunk_stream_t* const stream = open_stream(*pool_, kAhead, 0);
  EXPECT_TRUE(comes_true([&] { return device_->live_count() == kAhead; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(device_->live_count(), kAhead);
  close(stream);
}

}  // namespace
}  // namespace pinrail::test
