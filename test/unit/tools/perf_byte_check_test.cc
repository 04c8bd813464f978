// SPDX-License-Identifier: BSD-3-Clause
// perf_byte_check_test.cc - pinrail_perf notices a registration that lies.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>

#include <cstring>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/budget.h"
#include "contrib/tools/perf/memory.h"
#include "test/support/host_table.h"

namespace pinrail::perf {
namespace {

// A device that sees the processor's memory, but for one byte.
struct Device {
  size_t wrong_offset = SIZE_MAX;
  pinrail_status_t status = PINRAIL_SUCCESS;
};

pinrail_status_t accept(void*, const pinrail_register_request_t*, pinrail_registration_t*) { return PINRAIL_SUCCESS; }
pinrail_status_t give_back(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_status_t see(void* context, const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  const auto* device = static_cast<const Device*>(context);
  if (device->status != PINRAIL_SUCCESS) return device->status;
  memcpy(into, static_cast<const char*>(reg->base) + offset, length);
  const size_t wrong = device->wrong_offset;
  if (wrong >= offset && wrong < offset + length) static_cast<char*>(into)[wrong - offset] ^= 1;
  return PINRAIL_SUCCESS;
}

class PerfByteCheck : public testing::Test {
 protected:
  void SetUp() override {
    static const pinrail_setting_t kSettings[] = {
        {"monitor", "external"}, {"mpool_grdma_rights", "asked"}, {"mpool_grdma_extent", "0"}};
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = kSettings;
    options.setting_count = std::size(kSettings);
    ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS);
    table_ = test::host_table("test", &device_);
    table_.register_mem = accept;
    table_.deregister_mem = give_back;
    table_.device_read = see;
    const pinrail_registrar_choice_t choice = {nullptr, &table_, nullptr};
    ASSERT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool_), PINRAIL_SUCCESS);
    ASSERT_TRUE(buffers_.map(1, kSize, Pages::small).ok());
    testing::internal::CaptureStderr();
  }

  void TearDown() override {
    testing::internal::GetCapturedStderr();
    buffers_.unmap();
    if (pool_ != nullptr) {
      EXPECT_EQ(pinrail_mpool_destroy(pool_, 0), PINRAIL_SUCCESS);
    }
    EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  }

  Asked asked() const { return {buffers_.at(0), kSize, PINRAIL_ACCESS_REMOTE_READ, 0, 0}; }

  // Registers the buffer and has it checked as the registrar of that name.
  void check(ByteCheck* bytes, const Asked& asked) {
    pinrail_handle_t handle;
    ASSERT_EQ(pinrail_mpool_register(pool_, buffers_.at(0), kSize, PINRAIL_ACCESS_REMOTE_READ, 0, &handle),
              PINRAIL_SUCCESS);
    bytes->check(asked, handle);
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }

  static constexpr size_t kSize = (3 << 20) + 100;
  Device device_;
  pinrail_registrar_t table_ = {};
  pinrail_mpool_t* pool_ = nullptr;
  Buffers buffers_;
  Errors errors_;
};

TEST_F(PerfByteCheck, a_device_that_sees_what_the_processor_sees_is_no_error) {
  ByteCheck bytes("iouring", &errors_);
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 0u);
  EXPECT_EQ(bytes.compared_bytes(), kSize);
  EXPECT_EQ(bytes.said(), "device");
}

TEST_F(PerfByteCheck, one_wrong_byte_anywhere_is_an_error) {
  uint64_t expected = 0;
  for (const size_t offset : {size_t{0}, size_t{4097}, size_t{1} << 20, kSize - 1}) {
    device_.wrong_offset = offset;
    ByteCheck bytes("iouring", &errors_);
    check(&bytes, asked());
    EXPECT_EQ(errors_.count(), ++expected) << offset;
  }
  device_.wrong_offset = kSize;
  ByteCheck bytes("iouring", &errors_);
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), expected) << "that byte was not requested";
}

TEST_F(PerfByteCheck, samples_take_the_first_and_the_last_bytes_and_little_else) {
  uint64_t expected = 0;
  for (const size_t offset : {size_t{0}, kSize - 1}) {
    device_.wrong_offset = offset;
    ByteCheck bytes("verbs", &errors_);
    check(&bytes, asked());
    EXPECT_EQ(errors_.count(), ++expected) << offset;
    EXPECT_LT(bytes.compared_bytes(), 1024u);
    EXPECT_EQ(bytes.said(), "device, samples");
  }
}

TEST_F(PerfByteCheck, a_range_or_a_right_that_is_not_covered_is_an_error) {
  ByteCheck bytes("iouring", &errors_);
  Asked more = asked();
  more.length = round_up(kSize, page_size()) + 1;
  check(&bytes, more);
  EXPECT_EQ(errors_.count(), 1u);
  Asked before = asked();
  before.addr = static_cast<const char*>(before.addr) - 1;
  check(&bytes, before);
  EXPECT_EQ(errors_.count(), 2u);
  Asked rights = asked();
  rights.access |= PINRAIL_ACCESS_REMOTE_ATOMIC;
  check(&bytes, rights);
  EXPECT_EQ(errors_.count(), 3u);
}

TEST_F(PerfByteCheck, a_hit_on_what_was_made_before_the_memory_changed_is_an_error) {
  ByteCheck bytes("mlock", &errors_);
  check(&bytes, asked());
  Asked later = asked();
  later.changed_at = later.changes = 1;
  check(&bytes, later);
  EXPECT_EQ(errors_.count(), 1u) << "nothing was reported, so that the cache must still have it";
  ASSERT_TRUE(buffers_.remap(0).ok());
  later.changed_at = later.changes = 2;
  check(&bytes, later);
  EXPECT_EQ(errors_.count(), 1u) << "it was reported, so that the registration is a new one";
}

TEST_F(PerfByteCheck, a_device_that_fails_is_an_error_and_one_that_cannot_is_unchecked) {
  ByteCheck bytes("iouring", &errors_);
  device_.status = PINRAIL_ERR_ERROR;
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 1u);
  device_.status = PINRAIL_ERR_NOT_SUPPORTED;
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 1u);
  EXPECT_EQ(bytes.unchecked_bytes(), kSize);
  EXPECT_EQ(bytes.said(), "unchecked");
}

}  // namespace
}  // namespace pinrail::perf
