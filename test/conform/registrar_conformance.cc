// SPDX-License-Identifier: BSD-3-Clause
// The cases. TearDown() adds to each: counters and descriptors are back where they were.
#include "test/conform/registrar_conformance.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "test/support/child.h"
#include "test/support/proc_status.h"

namespace pinrail::test {

// Not every registrar is one of these.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegistrarOfPages);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegistrarOfBytes);

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Lengths that are interesting for pages, tables and windows.
std::vector<size_t> lengths_up_to(size_t largest) {
  const size_t page = page_size();
  std::vector<size_t> lengths;
  for (const size_t length : {page, 2 * page, 3 * page, 16 * page, 17 * page, 511 * page, 2 * kMiB, 16 * kMiB}) {
    if (length <= largest) lengths.push_back(length);
  }
  return lengths;
}

TEST_P(RegistrarConformance, the_table_is_complete) {
  EXPECT_EQ(table().size, sizeof(pinrail_registrar_t));
  EXPECT_EQ(GetParam().name, table().name);
  EXPECT_NE(table().register_mem, nullptr);
  EXPECT_NE(table().deregister_mem, nullptr);
  EXPECT_EQ(table().granularity & (table().granularity - 1), 0u);
  EXPECT_NE(table().kinds & PINRAIL_KIND_HOST, 0u);
  EXPECT_EQ(table().device_read != nullptr, GetParam().moves_bytes);
  EXPECT_EQ(table().device_write != nullptr, GetParam().moves_bytes);
}

TEST_P(RegistrarConformance, every_length_is_counted_and_given_back) {
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(17 * kMiB);
  mapping.fill(1);
  for (const size_t length : lengths_up_to(16 * kMiB)) {
    SCOPED_TRACE(length);
    const size_t before = counted();
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.at(page_size()), length).ok());
    if (GetParam().counter != Counter::nowhere) {
      EXPECT_EQ(counted(), before + length);
    }
    EXPECT_TRUE(registration.give_back().ok());
  }
}

TEST_P(RegistrarConformance, range_and_traits_stay_and_rights_are_not_lowered) {
  const Mapping mapping(4 * page_size());
  for (uint32_t rights = 0; rights <= kAllRights; ++rights) {
    SCOPED_TRACE(rights);
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.at(page_size()), 2 * page_size(), rights).ok());
    EXPECT_EQ(registration.reg().base, mapping.at(page_size()));
    EXPECT_EQ(registration.reg().length, 2 * page_size());
    EXPECT_EQ(registration.reg().rights & rights, rights);
    EXPECT_EQ(registration.reg().traits, 0u);
  }
}

TEST_P(RegistrarOfBytes, the_device_sees_every_byte_that_the_processor_wrote) {
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(GetParam().largest_transfer);
  mapping.fill(2);
  for (const size_t length : lengths_up_to(mapping.length())) {
    SCOPED_TRACE(length);
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.base(), length).ok());
    EXPECT_TRUE(device_sees(registration, 2, 0, length));
  }
}

TEST_P(RegistrarOfBytes, the_processor_sees_every_byte_that_the_device_wrote) {
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(GetParam().largest_transfer);
  for (const size_t length : lengths_up_to(mapping.length())) {
    SCOPED_TRACE(length);
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.base(), length).ok());
    EXPECT_TRUE(registration.device_write(0, stamped(length, 0, length).data(), length).ok());
    EXPECT_TRUE(processor_sees(mapping, length, 0, length));
  }
}

TEST_P(RegistrarOfBytes, pieces_at_odd_offsets_touch_nothing_beside_them) {
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  Registration registration(table());
  ASSERT_TRUE(registration.make(mapping.base(), mapping.length()).ok());
  for (const size_t offset : {size_t{0}, size_t{1}, page - 1, page, page + 63, 3 * page - 7}) {
    for (const size_t length : {size_t{0}, size_t{1}, size_t{63}, page, 2 * page + 5}) {
      SCOPED_TRACE(testing::Message() << offset << " +" << length);
      mapping.fill(3);
      EXPECT_TRUE(device_sees(registration, 3, offset, length));
      EXPECT_TRUE(registration.device_write(offset, stamped(4, offset, length).data(), length).ok());
      EXPECT_TRUE(processor_sees(mapping, 3, 0, offset));
      EXPECT_TRUE(processor_sees(mapping, 4, offset, length));
      EXPECT_TRUE(processor_sees(mapping, 3, offset + length, mapping.length() - offset - length));
    }
  }
}

TEST_P(RegistrarOfBytes, transfers_outside_of_the_registration_are_refused) {
  const size_t page = page_size();
  const Mapping mapping(4 * page);
  Registration registration(table());
  ASSERT_TRUE(registration.make(mapping.base(), 2 * page).ok());
  std::vector<unsigned char> bytes(page);
  EXPECT_TRUE(registration.device_read(page + 1, bytes.data(), page).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(registration.device_write(2 * page + 1, bytes.data(), 0).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(registration.device_write(SIZE_MAX, bytes.data(), 2).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(registration.device_read(2 * page, bytes.data(), 0).ok());
}

// Why caches go stale, and the proof that the pin is real.
TEST_P(RegistrarOfBytes, after_unmap_and_map_the_old_registration_has_the_old_pages) {
  const Mapping mapping(64 * page_size());
  mapping.fill(5);
  Registration old_one(table());
  ASSERT_TRUE(old_one.make(mapping.base(), mapping.length()).ok());
  mapping.map_again();
  mapping.fill(6);
  EXPECT_TRUE(device_sees(old_one, 5, 0, mapping.length()));
  Registration new_one(table());
  ASSERT_TRUE(new_one.make(mapping.base(), mapping.length()).ok());
  EXPECT_TRUE(device_sees(new_one, 6, 0, mapping.length()));
  EXPECT_TRUE(old_one.device_write(0, stamped(7, 0, mapping.length()).data(), mapping.length()).ok());
  EXPECT_TRUE(processor_sees(mapping, 6, 0, mapping.length()));
  EXPECT_TRUE(old_one.give_back(PINRAIL_REASON_INVALIDATED).ok());
  EXPECT_TRUE(device_sees(new_one, 6, 0, mapping.length()));
}

TEST_P(RegistrarConformance, overlapping_registrations_do_not_depend_on_each_other) {
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  mapping.fill(8);
  Registration outer(table()), inner(table());
  const size_t before = counted();
  ASSERT_TRUE(outer.make(mapping.base(), 8 * page).ok());
  ASSERT_TRUE(inner.make(mapping.at(2 * page), 2 * page).ok());
  if (GetParam().counter != Counter::nowhere) {
    EXPECT_EQ(counted(), before + (GetParam().overlaps_count_once ? 8 : 10) * page);
  }
  EXPECT_TRUE(inner.give_back().ok());
  if (GetParam().overlaps_count_once) {
    EXPECT_EQ(counted(), before + 8 * page);
  }
  if (GetParam().moves_bytes) {
    EXPECT_TRUE(device_sees(outer, 8, 0, 8 * page));
  }
}

TEST_P(RegistrarOfPages, a_range_with_a_hole_is_refused_and_nothing_stays) {
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  mapping.unmap(3 * page, page);
  const size_t before = counted();
  Registration across(table()), inside(table());
  EXPECT_TRUE(across.make(mapping.base(), 8 * page).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(inside.make(mapping.at(3 * page), page).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counted(), before);
}

TEST_P(RegistrarOfPages, memory_without_access_is_refused_and_nothing_stays) {
  const Mapping mapping(8 * page_size(), PROT_NONE);
  const size_t before = counted();
  Registration registration(table());
  EXPECT_TRUE(registration.make(mapping.base(), mapping.length()).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counted(), before);
}

TEST_P(RegistrarConformance, requests_that_break_the_contract_are_refused) {
  const size_t page = page_size();
  const Mapping mapping(4 * page);
  void* const addr = mapping.base();
  Registration r(table());
  EXPECT_TRUE(r.make(addr, 0).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, SIZE_MAX & ~(page - 1)).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, kAllRights + 1).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, 0x80000000u).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, 0, 0x40000u).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, 0, 0x1u).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, 0, 0, 0).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(r.make(addr, page, 0, 0, PINRAIL_KIND_REMOTE).is(PINRAIL_ERR_NOT_SUPPORTED));
  if (table().granularity > 1) {
    EXPECT_TRUE(r.make(mapping.at(1), page).is(PINRAIL_ERR_BAD_PARAM));
    EXPECT_TRUE(r.make(addr, page + 1).is(PINRAIL_ERR_BAD_PARAM));
  }
  if (table().max_length != 0 && table().max_length < SIZE_MAX / 4) {
    EXPECT_TRUE(r.make(addr, table().max_length + page).is(PINRAIL_ERR_NOT_SUPPORTED));
  }
}

TEST_P(RegistrarConformance, on_demand_is_not_supported_and_relaxed_ordering_is_taken) {
  const Mapping mapping(page_size());
  Registration on_demand(table()), relaxed(table());
  EXPECT_TRUE(on_demand.make(mapping.base(), page_size(), 0, PINRAIL_TRAIT_ON_DEMAND).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_TRUE(relaxed.make(mapping.base(), page_size(), kAllRights, PINRAIL_TRAIT_RELAXED_ORDERING).ok());
}

TEST_P(RegistrarConformance, twenty_thousand_registrations_have_keys_of_their_own) {
  constexpr size_t kCount = 20000;
  const size_t page = page_size();
  NEEDS_PINS(kCount * page + kGranted);
  const Mapping mapping(kCount * page);
  mapping.fill(9);
  const size_t before = counted();
  std::vector<std::unique_ptr<Registration>> registrations;
  std::set<uint32_t> keys;
  for (size_t i = 0; i < kCount; ++i) {
    registrations.push_back(std::make_unique<Registration>(table()));
    ASSERT_TRUE(registrations.back()->make(mapping.at(i * page), page).ok()) << i;
    keys.insert(registrations.back()->reg().lkey);
  }
  if (GetParam().has_keys) {
    EXPECT_EQ(keys.size(), kCount);
  }
  if (GetParam().counter != Counter::nowhere) {
    EXPECT_EQ(counted(), before + kCount * page);
  }
  if (!GetParam().moves_bytes) return;
  for (size_t i = 0; i < kCount; i += 997) {
    unsigned char byte = 0;
    EXPECT_TRUE(registrations[i]->device_read(17, &byte, 1).ok());
    EXPECT_EQ(byte, stamp(9, i * page + 17)) << i;
  }
}

// Registers, moves bytes and deregisters in its part of the mapping; counts what went wrong.
void churn(const pinrail_registrar_t& table, const Mapping& mapping, size_t first, bool moves,
           std::atomic<int>* wrong) {
  const size_t page = page_size();
  for (size_t round = 0; round < 200; ++round) {
    const size_t offset = (first + round % 3) * page;
    Registration registration(table);
    if (!registration.make(mapping.at(offset), (1 + round % 4) * page).ok()) ++*wrong;
    if (moves && round % 8 == 0) {
      unsigned char byte = 0;
      if (!registration.device_read(round, &byte, 1).ok() || byte != stamp(10, offset + round)) ++*wrong;
    }
    if (!registration.give_back(static_cast<pinrail_reason_t>(round % 4)).ok()) ++*wrong;
  }
}

TEST_P(RegistrarConformance, four_threads_work_at_once_on_overlapping_ranges) {
  if (table().thread_mode != PINRAIL_THREAD_CONCURRENT) GTEST_SKIP() << GetParam().name << " wants one at a time";
  const Mapping mapping(16 * page_size());
  mapping.fill(10);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { churn(table(), mapping, 2 * i, GetParam().moves_bytes, &wrong); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(RegistrarConformance, every_reason_is_taken) {
  const Mapping mapping(4 * page_size());
  for (const auto reason :
       {PINRAIL_REASON_RELEASED, PINRAIL_REASON_EVICTED, PINRAIL_REASON_INVALIDATED, PINRAIL_REASON_FINALIZED}) {
    SCOPED_TRACE(static_cast<int>(reason));
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.base(), mapping.length()).ok());
    if (reason == PINRAIL_REASON_INVALIDATED) mapping.map_again();
    EXPECT_TRUE(registration.give_back(reason).ok());
  }
}

TEST_P(RegistrarConformance, an_invalidated_one_leaves_the_locks_of_new_memory_alone) {
  const Mapping mapping(16 * page_size());
  mapping.fill(11);
  Registration registration(table());
  ASSERT_TRUE(registration.make(mapping.base(), mapping.length()).ok());
  mapping.map_again();
  ASSERT_TRUE(lock_pages(mapping.base(), mapping.length()));
  const size_t locked = vm_lck_bytes();
  EXPECT_TRUE(registration.give_back(PINRAIL_REASON_INVALIDATED).ok());
  EXPECT_EQ(vm_lck_bytes(), locked);
}

TEST_P(RegistrarConformance, memory_that_is_already_gone_can_be_given_back_for_any_reason) {
  for (const auto reason :
       {PINRAIL_REASON_RELEASED, PINRAIL_REASON_EVICTED, PINRAIL_REASON_INVALIDATED, PINRAIL_REASON_FINALIZED}) {
    SCOPED_TRACE(static_cast<int>(reason));
    const Mapping mapping(16 * page_size());
    Registration registration(table());
    ASSERT_TRUE(registration.make(mapping.base(), mapping.length()).ok());
    mapping.unmap(4 * page_size(), 4 * page_size());
    EXPECT_TRUE(registration.give_back(reason).ok());
  }
}

// In a child under a real limit: registers pieces until one is refused, gives one back, and asks again.
// {refusals' status, how many fitted, status of asking again, how many after all were given back}
ChildAnswer fill_up_to_the_limit(const Subject& subject, size_t limit, size_t piece) {
  if (!limit_locked_memory(limit, subject.limited_by_user)) return {1};
  std::unique_ptr<Device> device;
  std::string why;
  if (!subject.open(&device, &why).ok()) return {2};
  const Mapping mapping(4 * limit);
  std::vector<std::unique_ptr<Registration>> held;
  const auto fill = [&] {
    for (size_t offset = 0; offset < mapping.length(); offset += piece) {
      held.push_back(std::make_unique<Registration>(device->table()));
      const Status status = held.back()->make(mapping.at(offset), piece);
      if (status.ok()) continue;
      held.pop_back();
      return status;
    }
    return success();
  };
  const Status refused = fill();
  const auto fitted = static_cast<int64_t>(held.size());
  if (held.empty()) return {3};
  held.front().reset();
  Registration again(device->table());
  const Status again_status = again.make(mapping.at(mapping.length() - piece), piece);
  if (again_status.ok()) again.give_back().ignore();
  held.clear();
  fill().ignore();
  const auto refilled = static_cast<int64_t>(held.size());
  held.clear();
  return {0, refused.code(), fitted, again_status.code(), refilled};
}

TEST_P(RegistrarOfPages, a_memlock_limit_says_out_of_resource_and_what_is_given_back_makes_room) {
  constexpr size_t kLimit = 4 * kMiB, kPiece = kMiB / 4;
  NEEDS_PINS(kLimit);
  ChildAnswer answer{};
  ASSERT_TRUE(in_child([] { return fill_up_to_the_limit(GetParam(), kLimit, kPiece); }, &answer));
  ASSERT_EQ(answer[0], 0) << "the child could not arrange its limit (1), its device (2), or one registration (3)";
  EXPECT_EQ(answer[1], PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_LE(answer[2], static_cast<int64_t>(kLimit / kPiece));
  EXPECT_GE(answer[2], static_cast<int64_t>(kLimit / kPiece) - 1);
  EXPECT_EQ(answer[3], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[4], answer[2]);
}

}  // namespace
}  // namespace pinrail::test
