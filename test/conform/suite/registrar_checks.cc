// SPDX-License-Identifier: BSD-3-Clause
// The checks of registrars. run_registrar_check() adds to each: counters and descriptors are back where they were.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <set>
#include <vector>

#include "test/conform/suite/registrar.h"
#include "test/support/memory.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

using conform::Verdict;

constexpr size_t kMiB = size_t{1} << 20;
constexpr pinrail_reason_t kReasons[] = {PINRAIL_REASON_RELEASED, PINRAIL_REASON_EVICTED, PINRAIL_REASON_INVALIDATED,
                                         PINRAIL_REASON_FINALIZED};

#define NEEDS_HOST_MEMORY() APPLIES_IF((open.table.kinds & PINRAIL_KIND_HOST) != 0, "it registers no host memory")

std::string number(const char* what, uint64_t value) { return std::string(what) + " " + std::to_string(value); }

// Lengths that are interesting for pages, tables and windows.
std::vector<size_t> lengths_up_to(size_t largest) {
  const size_t page = page_size();
  std::vector<size_t> lengths;
  for (const size_t length : {page, 2 * page, 3 * page, 16 * page, 17 * page, 511 * page, 2 * kMiB, 16 * kMiB}) {
    if (length <= largest) lengths.push_back(length);
  }
  return lengths;
}

void the_table_is_complete(const OpenSubject& open, Verdict* verdict) {
  const pinrail_registrar_t& table = open.table;
  KEEPS("C1", table.size == sizeof(pinrail_registrar_t), "the size of the table is not sizeof(pinrail_registrar_t)");
  KEEPS("C1", table.name != nullptr, "the table has no name");
  KEEPS("C1", table.register_mem != nullptr && table.deregister_mem != nullptr,
        "register_mem or deregister_mem is NULL");
  KEEPS("C1", table.granularity != 0 && (table.granularity & (table.granularity - 1)) == 0,
        "granularity is not a power of two");
  KEEPS("C1", table.kinds != 0, "kinds is 0");
  KEEPS("C1", table.thread_mode >= PINRAIL_THREAD_CONCURRENT && table.thread_mode <= PINRAIL_THREAD_CALLER,
        "thread_mode is none of the three");
  KEEPS("C1", (table.device_read != nullptr) == open.facts.moves_bytes, "only one of device_read and device_write");
  KEEPS("C1", (table.record == nullptr) == (table.wait == nullptr), "only one of record and wait");
}

void every_length_is_registered_and_given_back(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Subject& subject = open.facts;
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(17 * kMiB);
  for (const size_t length : lengths_up_to(16 * kMiB)) {
    verdict->at = number("length", length);
    const size_t before = counted_bytes(subject);
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.at(page_size()), length).ok(), "a valid range is refused");
    KEEPS("R2", subject.counter == Counter::nowhere || counted_bytes(subject) == before + length,
          "the kernel counts another length than was registered");
    KEEPS("R12", registration.give_back().ok(), "deregister_mem returns an error");
    KEEPS("R10", counted_bytes(subject) == before, "deregister_mem leaves pages pinned");
  }
}

void range_and_traits_stay_and_rights_are_not_lowered(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(4 * page_size());
  for (uint32_t rights = 0; rights <= kAllRights; ++rights) {
    verdict->at = number("rights", rights);
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.at(page_size()), 2 * page_size(), rights).ok(), "a valid request is refused");
    KEEPS("C6", registration.reg().base == mapping.at(page_size()) && registration.reg().length == 2 * page_size(),
          "register_mem changes base or length");
    KEEPS("R2", (registration.reg().rights & rights) == rights, "register_mem removes rights that were asked for");
    KEEPS("C6", registration.reg().traits == 0, "register_mem changes the traits");
  }
}

void only_keys_rights_and_tail_are_written(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(4 * page_size());
  Registration registration(open.table);
  const pinrail_registration_t before = registration.reg();
  KEEPS("R2", registration.make(mapping.base(), page_size()).ok(), "a valid range is refused");
  const auto same = [&] {
    const pinrail_registration_t& now = registration.reg();
    return now.pool == before.pool && now.state == before.state && now.used == before.used && now.link == before.link &&
           now.flags == before.flags && now.tail_size == open.table.tail_size;
  };
  KEEPS("C6", same(), "register_mem writes fields of the registration that are the library's");
  KEEPS("C6", registration.tail_kept(), "register_mem writes past the tail that it declared");
  KEEPS("R12", registration.give_back().ok(), "deregister_mem returns an error");
  KEEPS("C6", same(), "deregister_mem writes fields of the registration that are the library's");
  KEEPS("C6", registration.reg().base == mapping.base() && registration.reg().length == page_size(),
        "deregister_mem changes base or length");
  KEEPS("C6", registration.tail_kept(), "deregister_mem writes past the tail that it declared");
}

void what_is_refused_leaves_its_outputs_alone(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(4 * page_size());
  Registration registration(open.table);
  const Status status = registration.make(mapping.base(), page_size(), 0x80000000u);
  KEEPS("R2", !status.ok(), "an unknown right is taken");
  KEEPS("C4", registration.reg().lkey == 0 && registration.reg().rkey == 0, "a call that fails writes lkey or rkey");
  KEEPS("C4", registration.reg().rights == 0x80000000u, "a call that fails writes the rights");
}

void the_device_sees_every_byte_that_the_processor_wrote(const OpenSubject& open, Verdict* verdict) {
  const Subject& subject = open.facts;
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(subject.largest_transfer);
  mapping.fill(2);
  for (const size_t length : lengths_up_to(mapping.length())) {
    verdict->at = number("length", length);
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.base(), length).ok(), "a valid range is refused");
    const std::string differs = device_differs(registration, 2, 0, length);
    KEEPS("R2", differs.empty(), "device_read: " + differs);
  }
}

void the_processor_sees_every_byte_that_the_device_wrote(const OpenSubject& open, Verdict* verdict) {
  const Subject& subject = open.facts;
  NEEDS_PINS(20 * kMiB);
  const Mapping mapping(subject.largest_transfer);
  for (const size_t length : lengths_up_to(mapping.length())) {
    verdict->at = number("length", length);
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.base(), length).ok(), "a valid range is refused");
    KEEPS("R2", registration.device_write(0, stamped(length, 0, length).data(), length).ok(), "device_write fails");
    const std::string differs = processor_differs(mapping, length, 0, length);
    KEEPS("R2", differs.empty(), "device_write: " + differs);
  }
}

void pieces_at_odd_offsets_touch_nothing_beside_them(const OpenSubject& open, Verdict* verdict) {
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  Registration registration(open.table);
  KEEPS("R2", registration.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
  for (const size_t offset : {size_t{0}, size_t{1}, page - 1, page, page + 63, 3 * page - 7}) {
    for (const size_t length : {size_t{0}, size_t{1}, size_t{63}, page, 2 * page + 5}) {
      verdict->at = number("offset", offset) + number(", length", length);
      mapping.fill(3);
      KEEPS("R2", device_differs(registration, 3, offset, length).empty(), "device_read returns other bytes");
      KEEPS("R2", registration.device_write(offset, stamped(4, offset, length).data(), length).ok(),
            "device_write fails");
      KEEPS("R2",
            processor_differs(mapping, 3, 0, offset).empty() && processor_differs(mapping, 4, offset, length).empty() &&
                processor_differs(mapping, 3, offset + length, mapping.length() - offset - length).empty(),
            "device_write writes other bytes");
    }
  }
}

void transfers_outside_of_the_registration_are_refused(const OpenSubject& open, Verdict* verdict) {
  const size_t page = page_size();
  const Mapping mapping(4 * page);
  Registration registration(open.table);
  KEEPS("R2", registration.make(mapping.base(), 2 * page).ok(), "a valid range is refused");
  std::vector<unsigned char> bytes(page);
  KEEPS("R2",
        registration.device_read(page + 1, bytes.data(), page).is(PINRAIL_ERR_BAD_PARAM) &&
            registration.device_write(2 * page + 1, bytes.data(), 0).is(PINRAIL_ERR_BAD_PARAM) &&
            registration.device_write(SIZE_MAX, bytes.data(), 2).is(PINRAIL_ERR_BAD_PARAM),
        "a transfer that leaves the registration is not BAD_PARAM");
  KEEPS("R2", registration.device_read(2 * page, bytes.data(), 0).ok(), "an empty transfer at the end is refused");
}

// Why caches go stale, and the proof that the pin is real.
void after_unmap_and_map_the_old_registration_has_the_old_pages(const OpenSubject& open, Verdict* verdict) {
  const Mapping mapping(64 * page_size());
  mapping.fill(5);
  Registration old_one(open.table);
  KEEPS("R2", old_one.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
  mapping.map_again();
  mapping.fill(6);
  KEEPS("R2", device_differs(old_one, 5, 0, mapping.length()).empty(), "the pages were not pinned");
  Registration new_one(open.table);
  KEEPS("R2", new_one.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
  KEEPS("R2", device_differs(new_one, 6, 0, mapping.length()).empty(), "a new registration has the old pages");
  KEEPS("R2", old_one.device_write(0, stamped(7, 0, mapping.length()).data(), mapping.length()).ok(),
        "device_write fails");
  KEEPS("R2", processor_differs(mapping, 6, 0, mapping.length()).empty(), "the old registration writes to new pages");
  KEEPS("R12", old_one.give_back(PINRAIL_REASON_INVALIDATED).ok(), "deregister_mem returns an error");
  KEEPS("R12", device_differs(new_one, 6, 0, mapping.length()).empty(),
        "deregistering the old one harmed the new registration at its address");
}

void overlapping_registrations_do_not_depend_on_each_other(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Subject& subject = open.facts;
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  mapping.fill(8);
  Registration outer(open.table), inner(open.table);
  const size_t before = counted_bytes(subject);
  KEEPS("R2", outer.make(mapping.base(), 8 * page).ok() && inner.make(mapping.at(2 * page), 2 * page).ok(),
        "overlapping ranges are refused");
  KEEPS("R2",
        subject.counter == Counter::nowhere ||
            counted_bytes(subject) == before + (subject.overlaps_count_once ? 8 : 10) * page,
        "the kernel counts another length than was registered");
  KEEPS("R12", inner.give_back().ok(), "deregister_mem returns an error");
  KEEPS("R12", !subject.overlaps_count_once || counted_bytes(subject) == before + 8 * page,
        "deregistering the inner range unpinned pages of the outer one");
  KEEPS("R12", !subject.moves_bytes || device_differs(outer, 8, 0, 8 * page).empty(),
        "deregistering the inner range harmed the outer registration");
}

void a_range_with_a_hole_is_refused_and_nothing_stays(const OpenSubject& open, Verdict* verdict) {
  const size_t page = page_size();
  const Mapping mapping(8 * page);
  mapping.unmap(3 * page, page);
  const size_t before = counted_bytes(open.facts);
  Registration across(open.table), inside(open.table);
  KEEPS("R2", across.make(mapping.base(), 8 * page).is(PINRAIL_ERR_BAD_PARAM), "a range with a hole is not BAD_PARAM");
  KEEPS("R2", inside.make(mapping.at(3 * page), page).is(PINRAIL_ERR_BAD_PARAM), "unmapped memory is not BAD_PARAM");
  KEEPS("R2", counted_bytes(open.facts) == before, "a refused request leaves pages pinned");
}

void memory_without_access_is_refused_and_nothing_stays(const OpenSubject& open, Verdict* verdict) {
  const Mapping mapping(8 * page_size(), PROT_NONE);
  const size_t before = counted_bytes(open.facts);
  Registration registration(open.table);
  KEEPS("R2", registration.make(mapping.base(), mapping.length()).is(PINRAIL_ERR_BAD_PARAM),
        "memory without access is not BAD_PARAM");
  KEEPS("R2", counted_bytes(open.facts) == before, "a refused request leaves pages pinned");
}

void requests_that_break_the_contract_are_refused(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const size_t page = page_size();
  const Mapping mapping(4 * page);
  void* const addr = mapping.base();
  const pinrail_registrar_t& table = open.table;
  Registration r(table);
  const auto is_bad = [](Status status) { return status.is(PINRAIL_ERR_BAD_PARAM); };
  KEEPS("R2", is_bad(r.make(addr, 0)), "length 0 is not BAD_PARAM");
  KEEPS("R2", is_bad(r.make(addr, SIZE_MAX & ~(page - 1))), "a range that wraps is not BAD_PARAM");
  KEEPS("R2", is_bad(r.make(addr, page, kAllRights + 1)) && is_bad(r.make(addr, page, 0x80000000u)),
        "an unknown right is not BAD_PARAM");
  KEEPS("R2", is_bad(r.make(addr, page, 0, 0x40000u)) && is_bad(r.make(addr, page, 0, 0x1u)),
        "an unknown trait is not BAD_PARAM");
  KEEPS("R2", is_bad(r.make(addr, page, 0, 0, 0)), "kind 0 is not BAD_PARAM");
  if ((table.kinds & PINRAIL_KIND_REMOTE) == 0) {
    KEEPS("R2", r.make(addr, page, 0, 0, PINRAIL_KIND_REMOTE).is(PINRAIL_ERR_NOT_SUPPORTED),
          "a kind that is not among its kinds is not NOT_SUPPORTED");
  }
  if (table.granularity > 1) {
    KEEPS("R2", is_bad(r.make(mapping.at(1), page)) && is_bad(r.make(addr, page + 1)),
          "a range that is no multiple of the granularity is not BAD_PARAM");
  }
  if (table.max_length != 0 && table.max_length < SIZE_MAX / 4) {
    KEEPS("R2", r.make(addr, table.max_length + page).is(PINRAIL_ERR_NOT_SUPPORTED),
          "a range longer than max_length is not NOT_SUPPORTED");
  }
}

void traits_are_taken_or_not_supported(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(page_size());
  Registration on_demand(open.table), relaxed(open.table);
  const Status demand = on_demand.make(mapping.base(), page_size(), 0, PINRAIL_TRAIT_ON_DEMAND);
  KEEPS("R3", demand.ok() || demand.is(PINRAIL_ERR_NOT_SUPPORTED), "ON_DEMAND is neither taken nor NOT_SUPPORTED");
  KEEPS("R3", relaxed.make(mapping.base(), page_size(), kAllRights, PINRAIL_TRAIT_RELAXED_ORDERING).ok(),
        "RELAXED_ORDERING, which permits and does not demand, is refused");
}

void twenty_thousand_registrations_have_keys_of_their_own(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Subject& subject = open.facts;
  constexpr size_t kCount = 20000;
  const size_t page = page_size();
  NEEDS_PINS(kCount * page + kGranted);
  const Mapping mapping(kCount * page);
  if (subject.moves_bytes) mapping.fill(9);
  const size_t before = counted_bytes(subject);
  std::vector<std::unique_ptr<Registration>> registrations;
  std::set<uint32_t> keys;
  for (size_t i = 0; i < kCount; ++i) {
    verdict->at = number("registration", i);
    registrations.push_back(std::make_unique<Registration>(open.table));
    const Status status = registrations.back()->make(mapping.at(i * page), page);
    // A small device may be full; then it must say so.
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE) && i >= 16 && subject.counter == Counter::nowhere) break;
    KEEPS("R7", status.ok(), "a valid range is refused with another status than OUT_OF_RESOURCE");
    KEEPS("R2", !subject.has_keys || keys.insert(registrations.back()->reg().lkey).second,
          "two live registrations have the same lkey");
  }
  KEEPS("R2", subject.counter == Counter::nowhere || counted_bytes(subject) == before + kCount * page,
        "the kernel counts another length than was registered");
  for (size_t i = 0; subject.moves_bytes && i < registrations.size() - 1; i += 997) {
    unsigned char byte = 0;
    KEEPS("R2", registrations[i]->device_read(17, &byte, 1).ok() && byte == stamp(9, i * page + 17),
          "device_read returns other bytes");
  }
}

// Registers, moves bytes and deregisters in its part of the mapping; counts what went wrong.
void churn(const pinrail_registrar_t& table, const Mapping& mapping, size_t first, bool moves,
           std::atomic<int>* wrong) {
  const size_t page = page_size();
  for (size_t round = 0; round < 200; ++round) {
    const size_t offset = (first + round % 3) * page;
    Registration registration(table);
    if (!registration.make(mapping.at(offset), (1 + round % 4) * page).ok()) {
      ++*wrong;
      continue;
    }
    if (moves && round % 8 == 0) {
      unsigned char byte = 0;
      if (!registration.device_read(round, &byte, 1).ok() || byte != stamp(10, offset + round)) ++*wrong;
    }
    if (!registration.give_back(static_cast<pinrail_reason_t>(round % 4)).ok()) ++*wrong;
  }
}

void four_threads_work_at_once_on_overlapping_ranges(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  APPLIES_IF(open.table.thread_mode == PINRAIL_THREAD_CONCURRENT, "it wants one call at a time");
  const Mapping mapping(16 * page_size());
  mapping.fill(10);
  std::atomic<int> wrong{0};
  on_threads(size_t{4}, [&](size_t i) { churn(open.table, mapping, 2 * i, open.facts.moves_bytes, &wrong); });
  KEEPS("R6", wrong.load() == 0, number("calls at the same time fail, where alone they do not:", wrong.load()));
}

// On a busy machine threads run side by side only in some rounds.
constexpr size_t kFewest = 16;

// Runs body(round) again and again, for a while.
template <typename Body>
size_t repeat(const Verdict& verdict, size_t most, Body&& body) {
  const auto end = std::chrono::steady_clock::now() + verdict.trial;
  size_t round = 0;
  while (round < most && (round < kFewest || std::chrono::steady_clock::now() < end) && body(round)) ++round;
  return round;
}

// On so many threads, which begin together.
template <typename Step>
void together(size_t count, const Step& step) {
  std::atomic<size_t> ready{0};
  on_threads(count, [&](size_t i) {
    ++ready;
    while (ready.load() != count) {
    }
    step(i);
  });
}

void threads_at_once_get_keys_of_their_own(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  APPLIES_IF(open.table.thread_mode == PINRAIL_THREAD_CONCURRENT, "it wants one call at a time");
  APPLIES_IF(open.facts.has_keys, "it has no keys");
  constexpr size_t kThreads = 2;
  const size_t each = open.facts.counter == Counter::nowhere ? 4096 : 64, page = page_size();
  const Mapping mapping(kThreads * each * page);
  std::atomic<size_t> wrong{0};
  size_t doubles = 0;
  const size_t rounds = repeat(*verdict, 1000, [&](size_t) {
    std::vector<std::unique_ptr<Registration>> held(kThreads * each);
    for (auto& registration : held) registration = std::make_unique<Registration>(open.table);
    together(kThreads, [&](size_t thread) {
      for (size_t i = thread * each; i < (thread + 1) * each; ++i) {
        const Status status = held[i]->make(mapping.at(i * page), page);
        if (!status.ok() && !status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) ++wrong;
        if (!status.ok()) held[i].reset();
      }
    });
    std::vector<uint32_t> keys;
    for (const auto& registration : held) {
      if (registration != nullptr) keys.push_back(registration->reg().lkey);
    }
    std::sort(keys.begin(), keys.end());
    doubles += std::adjacent_find(keys.begin(), keys.end()) != keys.end() ? 1 : 0;
    together(kThreads, [&](size_t thread) {
      for (size_t i = thread * each; i < (thread + 1) * each; ++i) {
        if (held[i] != nullptr && !held[i]->give_back().ok()) ++wrong;
      }
    });
    return wrong.load() + doubles == 0;
  });
  verdict->at = number("round", rounds);
  KEEPS("R6", wrong.load() == 0, "calls at the same time fail, where alone they do not");
  KEEPS("R6", doubles == 0, "calls at the same time give two live registrations the same lkey");
}

void deregistering_gives_back_what_registering_took(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  constexpr size_t kMost = size_t{1} << 21, kWarm = 64, kTolerated = 4;  // bytes of each call
  const Mapping mapping(page_size());
  Registration registration(open.table);
  Status made = success(), ended = success();
  const auto once = [&](size_t) {
    made = registration.make(mapping.base(), page_size());
    if (made.ok()) ended = registration.give_back();
    return made.ok() && ended.ok();
  };
  for (size_t i = 0; i < kWarm; ++i) once(i);
  const size_t heap = heap_bytes();
  const size_t rounds = repeat(*verdict, kMost, once);
  const size_t left = heap_bytes() - std::min(heap, heap_bytes());
  verdict->at = number("after calls:", rounds + kWarm);
  KEEPS("R7", made.ok(), "what is deregistered makes no room");
  KEEPS("R12", ended.ok(), "deregister_mem returns an error");
  KEEPS("R10", left < (rounds + kWarm) * kTolerated, number("deregister_mem leaves memory allocated, bytes:", left));
}

void every_reason_is_taken(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(4 * page_size());
  for (const auto reason : kReasons) {
    verdict->at = number("reason", reason);
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
    if (reason == PINRAIL_REASON_INVALIDATED) mapping.map_again();
    KEEPS("R12", registration.give_back(reason).ok(), "deregister_mem returns an error");
  }
}

void an_invalidated_one_leaves_the_new_memory_alone(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(16 * page_size());
  mapping.fill(11);
  Registration registration(open.table);
  KEEPS("R2", registration.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
  mapping.map_again();
  mapping.fill(12);
  APPLIES_IF(lock_pages(mapping.base(), mapping.length()), "memory cannot be locked here");
  const size_t locked = vm_lck_bytes();
  KEEPS("R12", registration.give_back(PINRAIL_REASON_INVALIDATED).ok(), "deregister_mem returns an error");
  KEEPS("R12", vm_lck_bytes() == locked, "after INVALIDATED, deregister_mem unlocks memory that is another's by now");
  KEEPS("R12", processor_differs(mapping, 12, 0, mapping.length()).empty(),
        "after INVALIDATED, deregister_mem writes to memory that is another's by now");
}

void memory_that_is_already_gone_can_be_given_back_for_any_reason(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  for (const auto reason : kReasons) {
    verdict->at = number("reason", reason);
    const Mapping mapping(16 * page_size());
    Registration registration(open.table);
    KEEPS("R2", registration.make(mapping.base(), mapping.length()).ok(), "a valid range is refused");
    mapping.unmap(4 * page_size(), 4 * page_size());
    KEEPS("R12", registration.give_back(reason).ok(), "deregister_mem returns an error for memory that is unmapped");
  }
}

// In a child under a real limit: registers pieces until one is refused, gives one back, and asks again.
// {0 or what could not be arranged, refusal's status, how many fitted, status of asking again, how many at last}
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

void a_memlock_limit_says_out_of_resource_and_what_is_given_back_makes_room(const OpenSubject& open, Verdict* verdict) {
  const Subject& subject = open.facts;
  constexpr size_t kLimit = 4 * kMiB, kPiece = kMiB / 4;
  constexpr auto kFit = static_cast<int64_t>(kLimit / kPiece);
  NEEDS_PINS(kLimit);
  ChildAnswer answer{};
  KEEPS("R7", in_child([&] { return fill_up_to_the_limit(subject, kLimit, kPiece); }, &answer),
        "it crashes or hangs under a limit");
  KEEPS("R7", answer[0] == 0,
        number("the child could not arrange its limit (1), its device (2), or one registration (3):", answer[0]));
  KEEPS("R7", answer[1] == PINRAIL_ERR_OUT_OF_RESOURCE, "a range above \"ulimit -l\" is not OUT_OF_RESOURCE");
  KEEPS("R7", answer[2] <= kFit && answer[2] >= kFit - 1, number("registrations that fit:", answer[2]));
  KEEPS("R7", answer[3] == PINRAIL_SUCCESS && answer[4] == answer[2], "what is deregistered makes no room");
}

void no_exception_leaves_it_and_each_status_exists(const OpenSubject& open, Verdict* verdict) {
  NEEDS_HOST_MEMORY();
  const Mapping mapping(4 * page_size());
  for (const size_t length : {size_t{0}, page_size(), SIZE_MAX & ~(page_size() - 1)}) {
    for (const uint32_t kind : {1u, 2u, 4u, 8u, 0u, 3u, 0x80u}) {
      verdict->at = number("length", length) + number(", kind", kind);
      Registration registration(open.table);
      Status status = PINRAIL_SUCCESS;
      try {
        status = registration.make(mapping.base(), length, 0, 0, kind);
      } catch (const std::exception&) {
        verdict->breaks("C4", "register_mem throws");
        return;
      }
      KEEPS("C5", conform::is_status(status.code()),
            number("register_mem returns a code that does not exist:", static_cast<uint64_t>(-status.code())));
    }
  }
}

}  // namespace

bool is_for(const RegistrarCheck& check, const Subject& subject) {
  const bool pages = check.whom == For::pages || check.whom == For::pages_and_bytes;
  const bool bytes = check.whom == For::bytes || check.whom == For::pages_and_bytes;
  return (subject.pins || !pages) && (subject.moves_bytes || !bytes);
}

std::vector<RegistrarCheck> registrar_checks_for(const Subject& subject) {
  std::vector<RegistrarCheck> checks;
  for (const RegistrarCheck& check : registrar_checks()) {
    if (is_for(check, subject)) checks.push_back(check);
  }
  return checks;
}

const std::vector<RegistrarCheck>& registrar_checks() {
#define CHECK_OF(rule, function, whom) \
  { {rule, #function, function}, For::whom }
  static const auto* const checks = new std::vector<RegistrarCheck>{
      CHECK_OF("C1", the_table_is_complete, all),
      CHECK_OF("C4", no_exception_leaves_it_and_each_status_exists, all),
      CHECK_OF("C6", range_and_traits_stay_and_rights_are_not_lowered, all),
      CHECK_OF("C6", only_keys_rights_and_tail_are_written, all),
      CHECK_OF("C4", what_is_refused_leaves_its_outputs_alone, all),
      CHECK_OF("R2", requests_that_break_the_contract_are_refused, all),
      CHECK_OF("R3", traits_are_taken_or_not_supported, all),
      CHECK_OF("R2", every_length_is_registered_and_given_back, all),
      CHECK_OF("R2", the_device_sees_every_byte_that_the_processor_wrote, bytes),
      CHECK_OF("R2", the_processor_sees_every_byte_that_the_device_wrote, bytes),
      CHECK_OF("R2", pieces_at_odd_offsets_touch_nothing_beside_them, bytes),
      CHECK_OF("R2", transfers_outside_of_the_registration_are_refused, bytes),
      CHECK_OF("R2", after_unmap_and_map_the_old_registration_has_the_old_pages, pages_and_bytes),
      CHECK_OF("R12", overlapping_registrations_do_not_depend_on_each_other, all),
      CHECK_OF("R2", a_range_with_a_hole_is_refused_and_nothing_stays, pages),
      CHECK_OF("R2", memory_without_access_is_refused_and_nothing_stays, pages),
      CHECK_OF("R7", twenty_thousand_registrations_have_keys_of_their_own, all),
      CHECK_OF("R6", four_threads_work_at_once_on_overlapping_ranges, all),
      CHECK_OF("R6", threads_at_once_get_keys_of_their_own, all),
      CHECK_OF("R7", deregistering_gives_back_what_registering_took, all),
      CHECK_OF("R12", every_reason_is_taken, all),
      CHECK_OF("R12", an_invalidated_one_leaves_the_new_memory_alone, all),
      CHECK_OF("R12", memory_that_is_already_gone_can_be_given_back_for_any_reason, all),
      CHECK_OF("R7", a_memlock_limit_says_out_of_resource_and_what_is_given_back_makes_room, pages)};
#undef CHECK_OF
  return *checks;
}

}  // namespace pinrail::test
