// SPDX-License-Identifier: BSD-3-Clause
// Requests with options: pinrail_mpool_register_with(), the options of prepin, and the details of a registration.
#include "test/mpool/pinning.h"

namespace pinrail::test {
namespace {

class RegisterOptions : public Pinning {
 protected:
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
  make();
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

TEST_F(RegisterOptions, keys_of_64_bits_are_kept) {
  make();
  device_->on_register([](const pinrail_register_request_t& request, pinrail_registration_t*) {
    *request.details = {0x1122334455667788, 0x99aabbccddeeff00, 0, 0};
  });
  ASSERT_EQ(reg(kBase, kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(details().lkey, 0x1122334455667788u);
  EXPECT_EQ(details().rkey, 0x99aabbccddeeff00u);
  EXPECT_EQ(details().iova, kBase);
  drop(handle_);
}

TEST_F(RegisterOptions, a_registration_without_details_has_its_own_fields) {
  make();
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
  for (const size_t tail : {0, 1, 7, 8, 24, 63, 64, 200}) {
    SCOPED_TRACE(tail);
    fake::FakeOptions fake;
    fake.tail_size = tail;
    make(fake);
    device_->on_register([tail](const pinrail_register_request_t& request, pinrail_registration_t* reg) {
      auto* const bytes = static_cast<unsigned char*>(pinrail_registration_tail(reg));
      for (size_t i = 0; i < tail; ++i) bytes[i] = 0xff;
      request.details->rkey = 5;
    });
    options_.user_value = 17;
    ASSERT_EQ(reg(kBase, kPage), PINRAIL_SUCCESS);
    EXPECT_EQ(details().lkey, 0u);
    EXPECT_EQ(details().rkey, 5u);
    EXPECT_EQ(details().iova, kBase);
    EXPECT_EQ(details().user_value, 17u);
    drop(handle_);
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  }
}

TEST_F(RegisterOptions, a_persistent_one_serves_later_requests) {
  make();
  options_.user_value = 9;
  ASSERT_EQ(reg(kBase, 4 * kPage, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  const pinrail_handle_t hit = pool_->must(kBase + kPage, kPage);
  EXPECT_EQ(hit.reg, handle_.reg);
  drop(hit);
  drop(handle_);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(RegisterOptions, without_persistent_neither_hits_nor_is_hit) {
  make();
  pool_->use(kBase, 4 * kPage);
  ASSERT_EQ(reg(kBase, kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->register_calls(), 2u);
  drop(handle_);
}

// The chunks of a dmabuf have offsets by their distance to the first range.
TEST_F(RegisterOptions, of_a_prepin_follow_its_chunks) {
  make();
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
  make();
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

TEST_F(RegisterOptions, wrong_ones_change_nothing) {
  make();
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

}  // namespace
}  // namespace pinrail::test
