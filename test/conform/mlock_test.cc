// SPDX-License-Identifier: BSD-3-Clause
// registrar/mlock: the conformance suite, and the counts of pages that it keeps for the whole process.
#include <sys/mman.h>

#include "test/conform/registrar_conformance.h"
#include "test/fake/fake_registrar.h"
#include "test/support/cases.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

Status open_mlock(std::unique_ptr<Device>* device_out, std::string* why_out) {
  return ComponentDevice::open("mlock", {}, nullptr, device_out, why_out);
}

Subject mlock_subject() {
  Subject subject;
  subject.name = "mlock";
  subject.open = open_mlock;
  subject.pins = true;
  subject.counter = Counter::vm_lck;
  subject.overlaps_count_once = true;
  return subject;
}

JOIN_REGISTRARS(mlock, mlock_subject());

class Mlock : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const Status status = open_mlock(&device_, &why);
    if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) GTEST_SKIP() << "mlock is not available here: " << why;
    ASSERT_TRUE(status.ok()) << why;
    before_ = vm_lck_bytes();
  }
  size_t locked_pages() const { return (vm_lck_bytes() - before_) / page_size(); }
  const pinrail_registrar_t& table() const { return device_->table(); }

  const size_t page_ = page_size();
  const Mapping mapping_{16 * page_};
  std::unique_ptr<Device> device_;
  size_t before_ = 0;
};

// The kernel does not count locks.
TEST(MlockBesideLocks, it_is_not_used_in_a_process_with_locks_of_its_own_unless_that_is_permitted) {
  const Mapping own(page_size());
  if (!lock_pages(own.base(), page_size())) GTEST_SKIP() << "memory cannot be locked here";
  std::string why;
  std::unique_ptr<Device> device;
  EXPECT_TRUE(open_mlock(&device, &why).is(PINRAIL_ERR_NOT_AVAILABLE));
  EXPECT_TRUE(ComponentDevice::open("mlock", {{"beside_locks", "yes"}}, nullptr, &device, &why).ok()) << why;
}

TEST_F(Mlock, the_first_registration_says_once_that_locks_of_the_program_are_taken_away) {
  Registration first(table()), second(table());
  ASSERT_TRUE(first.make(mapping_.base(), page_).ok());
  ASSERT_TRUE(second.make(mapping_.base() + page_, page_).ok());
  const std::vector<fake::FakeHelp> helps = static_cast<ComponentDevice&>(*device_).host().helps();
  ASSERT_EQ(helps.size(), 1U);
  EXPECT_EQ(helps[0].topic, "locks are taken away");
}

TEST_F(Mlock, an_outer_registration_that_goes_unlocks_only_what_the_inner_one_does_not_hold) {
  Registration outer(table()), inner(table());
  ASSERT_TRUE(outer.make(mapping_.base(), 8 * page_).ok());
  ASSERT_TRUE(inner.make(mapping_.at(2 * page_), 2 * page_).ok());
  EXPECT_TRUE(outer.give_back(PINRAIL_REASON_EVICTED).ok());
  EXPECT_EQ(locked_pages(), 2u);
}

TEST_F(Mlock, two_registrars_of_one_component_share_their_counts) {
  auto* device = static_cast<ComponentDevice*>(device_.get());
  pinrail_registrar_t other{};
  {
    Registration ours(table());
    ASSERT_TRUE(ours.make(mapping_.base(), 4 * page_).ok());
    ASSERT_TRUE(device->make_other(&other).ok()) << "it is refused for the locks of the first";
    Registration theirs(other);
    ASSERT_TRUE(theirs.make(mapping_.at(2 * page_), 4 * page_).ok());
    EXPECT_TRUE(ours.give_back().ok());
    EXPECT_EQ(locked_pages(), 4u);
  }
  device->end_other(&other);
  EXPECT_EQ(locked_pages(), 0u);
}

// What an event has ended may be mapped and locked still, as after an madvise() that the kernel refuses for that.
TEST_F(Mlock, what_an_event_has_left_locked_is_not_taken_for_the_programs) {
  auto* device = static_cast<ComponentDevice*>(device_.get());
  {
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping_.base(), page_).ok());
    EXPECT_TRUE(registration.give_back(PINRAIL_REASON_INVALIDATED).ok());
  }
  EXPECT_EQ(locked_pages(), 1u) << "else this test tries nothing";
  pinrail_registrar_t first = table(), next{};
  device->end_other(&first);
  EXPECT_TRUE(device->make_other(&next).ok());  // in the place of the first, which the device ends
}

TEST_F(Mlock, a_late_invalidation_does_not_unlock_a_newer_registration_at_the_address) {
  Registration old_one(table()), new_one(table());
  ASSERT_TRUE(old_one.make(mapping_.base(), 16 * page_).ok());
  mapping_.map_again();
  ASSERT_EQ(locked_pages(), 0u);
  ASSERT_TRUE(new_one.make(mapping_.base(), 16 * page_).ok());
  EXPECT_EQ(locked_pages(), 16u);
  EXPECT_TRUE(old_one.give_back(PINRAIL_REASON_INVALIDATED).ok());
  EXPECT_EQ(locked_pages(), 16u);
  EXPECT_TRUE(new_one.give_back().ok());
  EXPECT_EQ(locked_pages(), 0u);
}

TEST_F(Mlock, new_memory_below_a_dead_registration_is_locked_although_it_is_counted) {
  Registration dead(table());
  ASSERT_TRUE(dead.make(mapping_.base(), 16 * page_).ok());
  mapping_.map_again();
  Registration inner(table());
  ASSERT_TRUE(inner.make(mapping_.at(4 * page_), 4 * page_).ok());
  EXPECT_EQ(locked_pages(), 4u);
  EXPECT_TRUE(dead.give_back(PINRAIL_REASON_INVALIDATED).ok());
  EXPECT_TRUE(inner.give_back().ok());
  EXPECT_EQ(locked_pages(), 0u);
}

TEST_F(Mlock, a_hole_in_what_goes_does_not_keep_the_rest_locked) {
  Registration registration(table());
  ASSERT_TRUE(registration.make(mapping_.base(), 16 * page_).ok());
  mapping_.unmap(4 * page_, page_);
  EXPECT_TRUE(registration.give_back().ok());
  EXPECT_EQ(locked_pages(), 0u);
}

TEST_F(Mlock, a_refused_range_unlocks_what_it_locked_but_nothing_that_is_held) {
  Registration held(table()), refused(table());
  ASSERT_TRUE(held.make(mapping_.at(2 * page_), 2 * page_).ok());
  mapping_.unmap(8 * page_, page_);
  EXPECT_TRUE(refused.make(mapping_.base(), 16 * page_).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(locked_pages(), 2u);
}

TEST_F(Mlock, a_page_without_access_inside_is_no_matter_of_resources) {
  ASSERT_EQ(mprotect(mapping_.at(5 * page_), page_, PROT_NONE), 0);
  Registration registration(table());
  EXPECT_TRUE(registration.make(mapping_.base(), 16 * page_).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(locked_pages(), 0u);
}

TEST_F(Mlock, memory_that_can_only_be_read_is_taken) {
  const Mapping mapping(4 * page_, PROT_READ);
  Registration registration(table());
  EXPECT_TRUE(registration.make(mapping.base(), mapping.length(), 0).ok());
  EXPECT_EQ(locked_pages(), 4u);
}

TEST(MlockForbidden, a_user_who_may_lock_nothing_has_none) {
  const ChildAnswer answer = answer_of([] {
    if (!limit_locked_memory(0, false)) return ChildAnswer{1};
    std::unique_ptr<Device> device;
    std::string why;
    const Status status = open_mlock(&device, &why);
    return ChildAnswer{status.code(), why.find("ulimit -l") != std::string::npos};
  });
  EXPECT_EQ(answer[0], PINRAIL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(answer[1], 1);
}

// The scriptable fake keeps the contract of a registrar, so that what was tested with it holds for the others.

class FakeDevice : public Device {
 public:
  ~FakeDevice() override { EXPECT_EQ(fake_.live_count(), 0u); }
  const pinrail_registrar_t& table() const override { return *fake_.table(); }

 private:
  fake::FakeRegistrar fake_{fake::options_with(&fake::FakeOptions::refused_traits, PINRAIL_TRAIT_ON_DEMAND)};
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
