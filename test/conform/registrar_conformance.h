// SPDX-License-Identifier: BSD-3-Clause
// registrar_conformance.h - what every registrar must do. A registrar joins with one small file that describes it and
// says INSTANTIATE_TEST_SUITE_P(its_name, RegistrarConformance, ::testing::Values(subject)), and likewise for
//   RegistrarOfPages  if it really pins: it looks at the memory, and RLIMIT_MEMLOCK bounds it
//   RegistrarOfBytes  if it has device_read and device_write
//
// Threads  as GoogleTest runs them: one case at a time.
#ifndef PINRAIL_TEST_CONFORM_REGISTRAR_CONFORMANCE_H
#define PINRAIL_TEST_CONFORM_REGISTRAR_CONFORMANCE_H

#include <gtest/gtest.h>
#include <pinrail/component.h>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "base/core/status.h"
#include "test/fake/fake_host.h"
#include "test/support/mapping.h"

namespace pinrail::test {

// A registrar that was made, and that its destructor ends.
class Device {
 public:
  virtual ~Device() = default;
  virtual const pinrail_registrar_t& table() const = 0;
};

// One made by a component, driven without the library.
class ComponentDevice : public Device {
 public:
  using Settings = std::map<std::string, std::string>;

  // why_out: the reason in words if there is none.
  static Status open(const char* name, const Settings& settings, void* native, std::unique_ptr<Device>* device_out,
                     std::string* why_out);
  ~ComponentDevice() override;

  const pinrail_registrar_t& table() const override { return registrar_; }
  const fake::FakeHost& host() const { return host_; }
  // Another registrar of the same opened component; end it with end_other().
  Status make_other(pinrail_registrar_t* registrar_out);
  void end_other(pinrail_registrar_t* registrar);

 private:
  explicit ComponentDevice(const pinrail_component_t& component) : component_(component), host_(component) {}
  const pinrail_registrar_ops_t& ops() const { return *static_cast<const pinrail_registrar_ops_t*>(component_.ops); }

  const pinrail_component_t& component_;
  fake::FakeHost host_;
  void* context_ = nullptr;
  bool made_ = false;
  pinrail_registrar_t registrar_{};
};

// Where the kernel counts what is registered.
enum class Counter : uint8_t { nowhere, vm_pin, vm_lck };

struct Subject {
  std::string name;
  std::function<Status(std::unique_ptr<Device>*, std::string* why_out)> open;
  Counter counter = Counter::nowhere;
  bool moves_bytes = false;      // has device_read and device_write
  bool has_keys = false;         // lkeys differ between live registrations
  bool checks_memory = false;    // refuses what is not mapped
  bool limited = false;          // RLIMIT_MEMLOCK bounds it
  bool limited_by_user = false;  // ... over all processes of the user
  bool overlaps_count_once = false;
  size_t largest_transfer = size_t{16} << 20;  // bytes; smaller where moving bytes is slow
};

inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class RegistrarConformance : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override;
  void TearDown() override;

  const pinrail_registrar_t& table() const { return device_->table(); }
  size_t counted() const;  // bytes, by the subject's counter
  bool may_register(size_t bytes) const;

  std::unique_ptr<Device> device_;
  size_t counted_before_ = 0;
  size_t descriptors_before_ = 0;
};

class RegistrarOfPages : public RegistrarConformance {};
class RegistrarOfBytes : public RegistrarConformance {};

// What a case may take for granted that this user may pin or lock; larger ones say NEEDS_PINS(bytes) first.
constexpr size_t kGranted = size_t{1} << 20;
#define NEEDS_PINS(bytes) \
  if (!may_register(bytes)) GTEST_SKIP() << "needs \"ulimit -l\" of " << ((bytes) >> 10) << " KiB"

constexpr uint32_t kAllRights = PINRAIL_RIGHTS_MASK;

// One registration: memory as a pool would lend it, and a register call. It deregisters what was registered.
class Registration {
 public:
  explicit Registration(const pinrail_registrar_t& table);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  Status make(void* addr, size_t length, uint32_t rights = kAllRights, uint32_t traits = 0,
              uint32_t kind = PINRAIL_KIND_HOST);
  Status give_back(pinrail_reason_t reason = PINRAIL_REASON_RELEASED);

  void forget() { live_ = false; }  // the destructor gives nothing back

  // Through device_read and device_write; offsets from the registration's base.
  Status device_read(size_t offset, void* into, size_t length) const;
  Status device_write(size_t offset, const void* from, size_t length) const;

  const pinrail_registration_t& reg() const { return *reg_; }

 private:
  const pinrail_registrar_t& table_;
  pinrail_registration_t* reg_;
  bool live_ = false;
};

// Whether the device sees the contents of that seed (see mapping.h), from mapping offset on; all bytes are compared.
::testing::AssertionResult device_sees(const Registration& registration, uint64_t seed, size_t offset, size_t length);
// Whether the processor sees them.
::testing::AssertionResult processor_sees(const Mapping& mapping, uint64_t seed, size_t offset, size_t length);

}  // namespace pinrail::test

#endif
