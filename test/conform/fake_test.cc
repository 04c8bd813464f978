// SPDX-License-Identifier: BSD-3-Clause
// The scriptable fake keeps the contract of a registrar, so that what was tested with it holds for the others.
#include "test/conform/registrar_conformance.h"
#include "test/fake/fake_registrar.h"

namespace pinrail::test {
namespace {

class FakeDevice : public Device {
 public:
  ~FakeDevice() override { EXPECT_EQ(fake_.live_count(), 0u); }
  const pinrail_registrar_t& table() const override { return *fake_.table(); }

 private:
  static fake::FakeOptions options() {
    fake::FakeOptions options;
    options.refused_traits = PINRAIL_TRAIT_ON_DEMAND;
    return options;
  }

  fake::FakeRegistrar fake_{options()};
};

Subject fake_subject() {
  Subject subject;
  subject.name = "fake";
  subject.has_keys = true;
  subject.open = [](std::unique_ptr<Device>* device_out, std::string*) {
    *device_out = std::make_unique<FakeDevice>();
    return success();
  };
  return subject;
}

JOIN_REGISTRARS(fake, fake_subject());

}  // namespace
}  // namespace pinrail::test
