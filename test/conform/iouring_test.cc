// SPDX-License-Identifier: BSD-3-Clause
// registrar/iouring: the conformance suite, and what is its own.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "test/conform/registrar_conformance.h"
#include "test/support/cases.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

Status open_iouring(const ComponentDevice::Settings& settings, std::unique_ptr<Device>* device_out,
                    std::string* why_out) {
  return ComponentDevice::open("iouring", settings, nullptr, device_out, why_out);
}

Subject iouring_subject() {
  Subject subject;
  subject.name = "iouring";
  subject.open = [](std::unique_ptr<Device>* device_out, std::string* why_out) {
    return open_iouring({}, device_out, why_out);
  };
  subject.pins = true;
  subject.counter = Counter::vm_pin;
  subject.moves_bytes = true;
  subject.has_keys = true;
  subject.limited_by_user = true;
  return subject;
}

JOIN_REGISTRARS(iouring, iouring_subject());

constexpr size_t kSlotsOfOneRing = 16384;
constexpr size_t kOneRing = kSlotsOfOneRing * 4096;  // bytes, when every slot holds a page

class Iouring : public ::testing::Test {
 protected:
  // False, and the case is to be skipped, if there is no io_uring here or too little may be pinned.
  bool open(const ComponentDevice::Settings& settings, size_t needed = kGranted) {
    skip_reason_ = "this user may not pin enough (ulimit -l)";
    if (!may_lock(needed)) return false;
    std::string why;
    const Status status = open_iouring(settings, &device_, &why);
    if (status.ok()) return true;
    EXPECT_TRUE(status.is(PINRAIL_ERR_NOT_AVAILABLE)) << status_name(status.code()) << ": " << why;
    skip_reason_ = "no io_uring here: " + why;
    return false;
  }

  // Registers the same page so many times; how many were taken.
  size_t register_page(const Mapping& mapping, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      held_.push_back(std::make_unique<Registration>(device_->table()));
      last_ = held_.back()->make(mapping.base(), page_size());
      if (last_.ok()) continue;
      held_.pop_back();
      return i;
    }
    return count;
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Registration>> held_;
  Status last_ = success();
  std::string skip_reason_;
};

TEST_F(Iouring, opens_another_ring_when_the_slots_run_out_which_moves_bytes_too_and_closes_all) {
  const size_t descriptors = open_descriptors();
  if (!open({{"max_rings", "3"}}, 3 * kOneRing)) GTEST_SKIP() << skip_reason_;
  const Mapping mapping(page_size());
  mapping.fill(21);
  EXPECT_EQ(open_descriptors(), descriptors + 1);
  EXPECT_EQ(register_page(mapping, kSlotsOfOneRing), kSlotsOfOneRing);
  EXPECT_EQ(open_descriptors(), descriptors + 1);
  EXPECT_EQ(register_page(mapping, kSlotsOfOneRing + 1), kSlotsOfOneRing + 1);
  EXPECT_EQ(open_descriptors(), descriptors + 3);
  EXPECT_EQ(held_[kSlotsOfOneRing]->reg().lkey >> 14, 1u);
  EXPECT_TRUE(device_sees(*held_[kSlotsOfOneRing], 21, 0, page_size()));
  held_.clear();
  device_.reset();
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(Iouring, says_out_of_resource_when_no_ring_may_be_added_and_takes_slots_that_come_back) {
  if (!open({{"max_rings", "1"}}, 2 * kOneRing)) GTEST_SKIP() << skip_reason_;
  const Mapping mapping(page_size());
  EXPECT_EQ(register_page(mapping, kSlotsOfOneRing + 1), kSlotsOfOneRing);
  EXPECT_TRUE(last_.is(PINRAIL_ERR_OUT_OF_RESOURCE));
  held_.erase(held_.begin() + 77, held_.begin() + 1077);
  EXPECT_EQ(register_page(mapping, 1001), 1000u);
}

TEST_F(Iouring, memory_that_cannot_be_written_is_refused_and_keeps_no_slot) {
  if (!open({{"max_rings", "1"}}, 2 * kOneRing)) GTEST_SKIP() << skip_reason_;
  const Mapping unwritable(page_size(), PROT_READ), mapping(page_size());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(register_page(unwritable, 1), 0u);
  EXPECT_TRUE(last_.is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(register_page(mapping, kSlotsOfOneRing), kSlotsOfOneRing);
}

TEST_F(Iouring, a_registration_that_was_forgotten_is_unpinned_with_its_registrar) {
  const size_t pinned = vm_pin_bytes();
  if (!open({})) GTEST_SKIP() << skip_reason_;
  const Mapping mapping(page_size());
  Registration forgotten(device_->table());
  ASSERT_TRUE(forgotten.make(mapping.base(), page_size()).ok());
  forgotten.forget();
  device_.reset();
  EXPECT_EQ(vm_pin_bytes(), pinned);
}

TEST_F(Iouring, the_longest_registration_is_taken) {
  if (!open({}, kOneRing + (size_t{1} << 30))) GTEST_SKIP() << skip_reason_;
  const size_t length = device_->table().max_length;
  // One small file, mapped over and over: a gibibyte of addresses that costs no memory.
  const size_t piece = size_t{1} << 20;
  const Mapping mapping(length, PROT_NONE);
  const int file = memfd_create("small", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(piece)), 0);
  for (size_t offset = 0; offset < length; offset += piece) {
    void* at = mmap(mapping.at(offset), piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    ASSERT_EQ(at, mapping.at(offset));
  }
  close(file);
  Registration registration(device_->table());
  EXPECT_TRUE(registration.make(mapping.base(), length).ok());
}

// The bytes go through a file in memory: writing it would end the process.
TEST_F(Iouring, where_no_file_may_be_that_long_no_byte_is_moved) {
  if (!open({})) GTEST_SKIP() << skip_reason_;
  device_.reset();
  const ChildAnswer answer = answer_of([this] {
    const rlimit limit = {4096, 4096};
    if (!open({}) || setrlimit(RLIMIT_FSIZE, &limit) != 0) return ChildAnswer{};
    const Mapping mapping(2 * page_size());
    Registration registration(device_->table());
    std::vector<char> bytes(8192);
    const Status made = registration.make(mapping.base(), 2 * page_size());
    const auto read = [&](size_t length) { return registration.device_read(0, bytes.data(), length).code(); };
    const auto write = [&](size_t length) { return registration.device_write(0, bytes.data(), length).code(); };
    return ChildAnswer{made.code(), read(4096), write(4096), read(8192), write(8192)};
  });
  EXPECT_EQ(answer,
            (ChildAnswer{PINRAIL_SUCCESS, PINRAIL_SUCCESS, PINRAIL_SUCCESS, PINRAIL_ERR_ERROR, PINRAIL_ERR_ERROR}));
}

// As a program that closes every descriptor and then opens files of its own.
bool give_number_to(int number, int file) { return number >= 0 && dup2(file, number) == number && close(file) == 0; }

// A program may have closed it: what it writes there would get into a ring, or among the bytes of a transfer.
TEST_F(Iouring, neither_a_ring_nor_the_file_of_transfers_becomes_standard_error) {
  if (!open({})) GTEST_SKIP() << skip_reason_;
  device_.reset();
  const ChildAnswer answer = answer_of([this] {
    close(STDERR_FILENO);
    const bool opened = open({});
    const Mapping mapping(page_size());
    Registration registration(device_->table());
    char byte = 0;
    const Status made = registration.make(mapping.base(), page_size());
    const Status moved = registration.device_read(0, &byte, 1);
    return ChildAnswer{opened, made.code(), moved.code(), descriptor_of("[io_uring]", 0) > STDERR_FILENO,
                       fcntl(STDERR_FILENO, F_GETFD) < 0};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, PINRAIL_SUCCESS, PINRAIL_SUCCESS, 1, 1}));
}

TEST_F(Iouring, a_number_that_the_program_has_given_to_its_own_file_is_left_open) {
  if (!open({})) GTEST_SKIP() << skip_reason_;
  device_.reset();
  for (const bool is_ring : {false, true}) {
    const ChildAnswer answer = answer_of([this, is_ring] {
      if (!open({})) return ChildAnswer{};
      const int number = descriptor_of("[io_uring]");
      io_uring_params params{};
      const int file =
          is_ring ? static_cast<int>(syscall(SYS_io_uring_setup, 2, &params)) : memfd_create("own", MFD_CLOEXEC);
      if (!give_number_to(number, file)) return ChildAnswer{};
      device_.reset();
      return ChildAnswer{1, fcntl(number, F_GETFD) >= 0};
    });
    EXPECT_EQ(answer, (ChildAnswer{1, 1})) << is_ring;
  }
}

// The kernel's words about the table of buffers of the program's ring.
std::string table_of(int ring) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(ring));
  std::string line, text;
  bool is_table = false;
  while (std::getline(info, line)) {
    if (line.rfind("UserBufs", 0) == 0) is_table = true;
    if (line.rfind("PollList", 0) == 0) is_table = false;
    if (is_table) text += line + "\n";
  }
  return text;
}

int ring_of_the_program() {
  static char page[4096] __attribute__((aligned(4096)));
  io_uring_params params{};
  const auto ring = static_cast<int>(syscall(SYS_io_uring_setup, 2, &params));
  const iovec buffers[] = {{page, sizeof(page)}, {page, sizeof(page)}, {page, sizeof(page)}};
  return syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, 3) == 0 ? ring : -1;
}

// What was registered goes with the ring; the next registration makes another one. The program's ring stays its own.
TEST_F(Iouring, a_ring_of_the_program_that_has_the_number_is_left_alone) {
  if (!open({})) GTEST_SKIP() << skip_reason_;
  device_.reset();
  const ChildAnswer answer = answer_of([this] {
    const Mapping mapping(2 * page_size());
    const std::set<int> ours = numbers_opened_by([this] { static_cast<void>(open({})); });
    Registration before(device_->table()), after(device_->table()), more(device_->table());
    const Status first = before.make(mapping.base(), page_size());
    const bool taken = ours.size() == 1 && take_over(ours, ring_of_the_program);
    const std::string table = table_of(*ours.begin());
    const Status second = after.make(mapping.base() + page_size(), page_size());
    char bytes[8] = {};
    const Status dead = before.device_read(0, bytes, sizeof(bytes));
    const Status moved = after.device_read(0, bytes, sizeof(bytes));
    const Status gone = before.give_back();
    const bool same = !table.empty() && table_of(*ours.begin()) == table;
    const Status ended = after.give_back();
    device_.reset();
    return ChildAnswer{taken && gone.ok() && ended.ok(), first.code(), second.code(), dead.code(), moved.code(), same,
                       table_of(*ours.begin()) == table};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, PINRAIL_SUCCESS, PINRAIL_SUCCESS, PINRAIL_ERR_ERROR, PINRAIL_SUCCESS, 1, 1}));
}

TEST(IouringSwitchedOff, it_is_not_available_and_says_why_and_without_a_descriptor_it_is_out_of_resource) {
  struct {
    long system_call;
    int error;
    pinrail_status_t status;
  } const kRefusals[] = {{SYS_io_uring_setup, ENOSYS, PINRAIL_ERR_NOT_AVAILABLE},
                         {SYS_io_uring_setup, EPERM, PINRAIL_ERR_NOT_AVAILABLE},
                         {SYS_io_uring_register, EINVAL, PINRAIL_ERR_NOT_AVAILABLE},  // no sparse tables
                         {SYS_io_uring_setup, EMFILE, PINRAIL_ERR_OUT_OF_RESOURCE}};
  for (const auto& refusal : kRefusals) {
    const ChildAnswer answer = answer_of([&] {
      if (!refuse_system_call(refusal.system_call, refusal.error)) return ChildAnswer{1};
      std::unique_ptr<Device> device;
      std::string why;
      const Status status = open_iouring({}, &device, &why);
      return ChildAnswer{status.code(), why.find("errno") != std::string::npos};
    });
    EXPECT_EQ(answer, (ChildAnswer{refusal.status, 1})) << refusal.error;
  }
}

TEST(IouringSwitchedOff, a_user_who_may_lock_nothing_has_none) {
  const ChildAnswer answer = answer_of([] {
    if (!limit_locked_memory(0, true)) return ChildAnswer{1};
    std::unique_ptr<Device> device;
    std::string why;
    return ChildAnswer{open_iouring({}, &device, &why).code()};
  });
  EXPECT_EQ(answer[0], PINRAIL_ERR_NOT_AVAILABLE);
}

}  // namespace
}  // namespace pinrail::test
