// SPDX-License-Identifier: BSD-3-Clause
// registrar/verbs: the conformance suite, and what is its own. Real only where there is an RDMA device: soft-RoCE in
// a guest (contrib/workshop/rdma-vm) is one.
#include <infiniband/verbs.h>

#include <dlfcn.h>

#include <cstring>

#include "test/conform/registrar_conformance.h"

namespace pinrail::test {
namespace {

Status open_verbs(const ComponentDevice::Settings& settings, void* native, std::unique_ptr<Device>* device_out,
                  std::string* why_out) {
  return ComponentDevice::open("verbs", settings, native, device_out, why_out);
}

Subject verbs_subject() {
  Subject subject;
  subject.name = "verbs";
  subject.open = [](std::unique_ptr<Device>* device_out, std::string* why_out) {
    return open_verbs({}, nullptr, device_out, why_out);
  };
  subject.pins = true;
  subject.counter = Counter::vm_pin;
  subject.moves_bytes = true;
  subject.has_keys = true;
  return subject;
}

JOIN_REGISTRARS(verbs, verbs_subject());

bool libibverbs_is_loaded() { return dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

// Nothing else in this program loads it, either, where there is no device.
TEST(VerbsAbsent, libibverbs_is_not_even_loaded_where_there_is_no_device) {
  std::unique_ptr<Device> device;
  std::string why;
  const Status status = open_verbs({}, nullptr, &device, &why);
  if (status.ok()) GTEST_SKIP() << "there is an RDMA device here";
  EXPECT_TRUE(status.is(PINRAIL_ERR_NOT_AVAILABLE)) << status_name(status.code());
  EXPECT_NE(why.find("/sys/class/infiniband"), std::string::npos) << why;
  EXPECT_FALSE(libibverbs_is_loaded());
}

// libibverbs as the embedder has it, without linking it: this program must start where it is missing.
struct Embedder {
  Embedder() {
    library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    int count = 0;
    ibv_device** devices = function<decltype(ibv_get_device_list)>("ibv_get_device_list")(&count);
    if (devices != nullptr && count > 0) context = function<decltype(ibv_open_device)>("ibv_open_device")(devices[0]);
    if (devices != nullptr) function<decltype(ibv_free_device_list)>("ibv_free_device_list")(devices);
    if (context != nullptr) pd = function<decltype(ibv_alloc_pd)>("ibv_alloc_pd")(context);
  }
  // 0: it was not taken, and nothing is left in it.
  int free_pd() {
    const int error = function<decltype(ibv_dealloc_pd)>("ibv_dealloc_pd")(pd);
    pd = nullptr;
    return error;
  }
  ~Embedder() {
    if (pd != nullptr) free_pd();
    if (context != nullptr) function<decltype(ibv_close_device)>("ibv_close_device")(context);
  }
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library, name));
  }

  void* library = nullptr;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
};

class Verbs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const Status status = open_verbs({}, nullptr, &device_, &why);
    if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) GTEST_SKIP() << "verbs is not available here: " << why;
    ASSERT_TRUE(status.ok()) << why;
  }
  std::unique_ptr<Device> device_;
};

TEST_F(Verbs, without_the_remote_right_nothing_is_moved) {
  const Mapping mapping(page_size());
  Registration read_only(device_->table()), write_only(device_->table());
  ASSERT_TRUE(read_only.make(mapping.base(), page_size(), PINRAIL_ACCESS_REMOTE_READ).ok());
  ASSERT_TRUE(write_only.make(mapping.base(), page_size(), PINRAIL_ACCESS_REMOTE_WRITE).ok());
  unsigned char byte = 0;
  EXPECT_TRUE(read_only.device_read(0, &byte, 1).ok());
  EXPECT_TRUE(read_only.device_write(0, &byte, 1).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_TRUE(write_only.device_write(0, &byte, 1).ok());
  EXPECT_TRUE(write_only.device_read(0, &byte, 1).is(PINRAIL_ERR_NOT_SUPPORTED));
}

TEST_F(Verbs, after_a_transfer_that_fails_the_next_one_works) {
  const Mapping mapping(page_size());
  mapping.fill(31);
  Registration good(device_->table());
  ASSERT_TRUE(good.make(mapping.base(), page_size()).ok());
  struct alignas(64) {
    pinrail_registration_t reg;
    char tail[64];
  } forged;
  std::memcpy(&forged, &good.reg(), sizeof(forged.reg) + device_->table().tail_size);
  forged.reg.rkey ^= 0xffffffu;
  unsigned char byte = 0;
  EXPECT_EQ(device_->table().device_read(device_->table().context, &forged.reg, 0, &byte, 1), PINRAIL_ERR_ERROR);
  EXPECT_TRUE(device_sees(good, 31, 0, page_size()));
  const auto& host = static_cast<ComponentDevice*>(device_.get())->host();
  EXPECT_EQ(host.helps().size(), 1u);
  EXPECT_EQ(host.missing_topics(), std::vector<std::string>{});
}

TEST_F(Verbs, a_lent_protection_domain_is_used_and_left_alone) {
  Embedder embedder;
  ASSERT_NE(embedder.pd, nullptr);
  const Mapping mapping(4 * page_size());
  mapping.fill(32);
  {
    std::unique_ptr<Device> lent;
    std::string why;
    ASSERT_TRUE(open_verbs({{"device", "no such name"}}, embedder.pd, &lent, &why).ok()) << why;
    Registration registration(lent->table());
    ASSERT_TRUE(registration.make(mapping.base(), mapping.length()).ok());
    EXPECT_TRUE(device_sees(registration, 32, 0, mapping.length()));
  }
  EXPECT_EQ(embedder.free_pd(), 0);
}

TEST_F(Verbs, a_named_device_that_does_not_exist_is_not_available) {
  std::unique_ptr<Device> named;
  std::string why;
  EXPECT_TRUE(open_verbs({{"device", "mlx99"}}, nullptr, &named, &why).is(PINRAIL_ERR_NOT_AVAILABLE));
}

TEST_F(Verbs, a_port_that_is_not_active_is_no_device) {
  std::unique_ptr<Device> other;
  std::string why;
  EXPECT_TRUE(open_verbs({{"port", "7"}}, nullptr, &other, &why).is(PINRAIL_ERR_NOT_AVAILABLE));
  EXPECT_NE(why.find("active port"), std::string::npos) << why;
}

}  // namespace
}  // namespace pinrail::test
