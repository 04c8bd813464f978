// SPDX-License-Identifier: BSD-3-Clause
// What the cases of registrar_conformance.cc stand on: devices, registrations, comparisons.
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

#include "test/conform/registrar_conformance.h"
#include "test/support/child.h"
#include "test/support/component_under_test.h"
#include "test/support/proc_status.h"

namespace pinrail::test {
namespace {

// Some kernels (7.2) count pinned pages only for processes that a limit may bind: so one binds us, an infinite one.
class Bound : public ::testing::Environment {
 public:
  void SetUp() override {
    // Best effort: a process that may not raise its limit keeps the limit, and any privilege to exceed it.
    limit_locked_memory(RLIM_INFINITY, false);
  }
};
const ::testing::Environment* const bound = ::testing::AddGlobalTestEnvironment(new Bound);

}  // namespace

Status ComponentDevice::open(const char* name, const Settings& settings, void* native,
                             std::unique_ptr<Device>* device_out, std::string* why_out) {
  const pinrail_component_t* component = component_under_test("registrar", name, why_out);
  if (component == nullptr) return PINRAIL_ERR_NOT_FOUND;
  std::unique_ptr<ComponentDevice> device(new ComponentDevice(*component));
  for (const auto& setting : settings) {
    if (!device->host_.set(setting.first, setting.second)) return PINRAIL_ERR_BAD_PARAM;
  }
  Status status = component->open(device->host_.table(), &device->context_);
  if (status.ok()) status = device->ops().create(device->context_, native, &device->registrar_);
  device->made_ = status.ok();
  const auto lines = device->host_.lines();
  if (!status.ok()) *why_out = lines.empty() ? "no reason was logged" : lines.back();
  if (status.ok()) *device_out = std::move(device);
  return status;
}

ComponentDevice::~ComponentDevice() {
  if (made_) ops().destroy(context_, &registrar_);
  if (context_ != nullptr) component_.close(context_);
}

Status ComponentDevice::make_other(pinrail_registrar_t* registrar_out) {
  return ops().create(context_, nullptr, registrar_out);
}

void ComponentDevice::end_other(pinrail_registrar_t* registrar) { ops().destroy(context_, registrar); }

void RegistrarConformance::SetUp() {
  descriptors_before_ = open_descriptors();
  counted_before_ = counted();
  NEEDS_PINS(kGranted);
  std::string why;
  const Status status = GetParam().open(&device_, &why);
  if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) GTEST_SKIP() << GetParam().name << " is not available here: " << why;
  ASSERT_TRUE(status.ok()) << status_name(status.code()) << ": " << why;
}

// Every case leaves the kernel's counters and the descriptors as it found them.
void RegistrarConformance::TearDown() {
  device_.reset();
  EXPECT_EQ(counted(), counted_before_);
  EXPECT_EQ(open_descriptors(), descriptors_before_);
}

bool RegistrarConformance::may_register(size_t bytes) const {
  return GetParam().counter == Counter::nowhere || may_lock(bytes);
}

size_t RegistrarConformance::counted() const {
  switch (GetParam().counter) {
    case Counter::vm_pin: return vm_pin_bytes();
    case Counter::vm_lck: return vm_lck_bytes();
    case Counter::nowhere: break;
  }
  return 0;
}

Registration::Registration(const pinrail_registrar_t& table) : table_(table) {
  const size_t bytes = sizeof(pinrail_registration_t) + (table.tail_size + 63) / 64 * 64;
  reg_ = static_cast<pinrail_registration_t*>(std::aligned_alloc(64, bytes));
  if (reg_ == nullptr) std::abort();
  std::memset(reg_, 0, bytes);
}

Registration::~Registration() {
  if (live_) {
    EXPECT_TRUE(give_back().ok());
  }
  std::free(reg_);
}

Status Registration::make(void* addr, size_t length, uint32_t rights, uint32_t traits, uint32_t kind) {
  reg_->base = addr;
  reg_->length = length;
  reg_->rights = rights;
  reg_->traits = traits;
  reg_->tail_size = static_cast<uint32_t>(table_.tail_size);
  pinrail_register_request_t request{};
  request.size = sizeof(request);
  request.kind = kind;
  request.rights = rights;
  request.traits = traits;
  request.fd = -1;
  request.addr = addr;
  request.length = length;
  const Status status = table_.register_mem(table_.context, &request, reg_);
  live_ = status.ok();
  return status;
}

Status Registration::give_back(pinrail_reason_t reason) {
  live_ = false;
  return table_.deregister_mem(table_.context, reg_, reason);
}

Status Registration::device_read(size_t offset, void* into, size_t length) const {
  return table_.device_read(table_.context, reg_, offset, into, length);
}

Status Registration::device_write(size_t offset, const void* from, size_t length) const {
  return table_.device_write(table_.context, reg_, offset, from, length);
}

namespace {

::testing::AssertionResult equal(const unsigned char* got, uint64_t seed, size_t offset, size_t length) {
  const std::vector<unsigned char> want = stamped(seed, offset, length);
  if (length == 0 || std::memcmp(got, want.data(), length) == 0) return ::testing::AssertionSuccess();
  size_t at = 0;
  while (got[at] == want[at]) ++at;
  return ::testing::AssertionFailure() << "byte " << offset + at << " is " << unsigned{got[at]} << ", not "
                                       << unsigned{want[at]};
}

}  // namespace

::testing::AssertionResult device_sees(const Registration& registration, uint64_t seed, size_t offset, size_t length) {
  std::vector<unsigned char> got(length, 0x5a);
  const Status status = registration.device_read(offset, got.data(), length);
  if (!status.ok()) return ::testing::AssertionFailure() << "device_read: " << status_name(status.code());
  return equal(got.data(), seed, offset, length);
}

::testing::AssertionResult processor_sees(const Mapping& mapping, uint64_t seed, size_t offset, size_t length) {
  return equal(mapping.base() + offset, seed, offset, length);
}

}  // namespace pinrail::test
