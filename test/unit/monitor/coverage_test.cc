// SPDX-License-Identifier: BSD-3-Clause
// coverage_test.cc - a range is covered if every event that can happen to its mappings is seen, and verdicts are
// remembered until an event touches them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "framework/monitor/coverage.h"
#include "framework/monitor/findings.h"
#include "framework/monitor/known_mappings_hook.h"
#include "framework/monitor/loaded_objects.h"
#include "framework/monitor/mapping.h"
#include "framework/monitor/monitor.h"
#include "framework/monitor/own_calls.h"
#include "framework/monitor/started_hook.h"
#include "framework/monitor/subscriptions_hook.h"
#include "test/support/cases.h"
#include "test/support/threads.h"

namespace pinrail::monitor {
namespace {

constexpr uintptr_t kPage = 4096;

// A world of a test's own: what is mapped, and what is seen there.
struct World {
  std::vector<pinrail_mapping_t> mappings;
  uint32_t seen = PINRAIL_EVENTS_ALL;
  int looks = 0;
  Span asked;  // the last mapping that was asked about
  std::string said;
  Coverage* event_comes_to = nullptr;  // during a lookup
  std::function<void()> meanwhile;     // happens once between a look and what follows from it
};
World world;

bool find_in_world(uintptr_t at, pinrail_mapping_t* mapping_out) {
  ++world.looks;
  for (const pinrail_mapping_t& mapping : world.mappings) {
    if (mapping.end <= at) continue;
    *mapping_out = mapping;
    return true;
  }
  return false;
}
uint32_t ask_world(const pinrail_mapping_t& mapping) {
  world.asked = {mapping.base, mapping.end};
  if (const auto meanwhile = std::exchange(world.meanwhile, nullptr)) meanwhile();
  if (world.event_comes_to != nullptr) world.event_comes_to->forget_hook({mapping.base, mapping.base + kPage});
  return world.seen;
}
void hear(const std::string& line) { world.said += line; }

class CoverageTest : public testing::Test {
 protected:
  CoverageTest() {
    world = {};
    map(10, 10, PINRAIL_MAPPING_ANONYMOUS);
    map(20, 10, PINRAIL_MAPPING_SHARED_FILE);
    map(40, 10, PINRAIL_MAPPING_ANONYMOUS);
    coverage.start({}, 0);
  }
  static void map(uintptr_t first, uintptr_t count, pinrail_mapping_kind_t kind) {
    world.mappings.push_back({sizeof(pinrail_mapping_t), first * kPage, (first + count) * kPage, 0, 0, 0, kind, 1});
  }
  bool covers(uintptr_t first, uintptr_t count = 1) {
    return coverage.covers({first * kPage, (first + count) * kPage});
  }

  Coverage coverage{find_in_world, ask_world, hear};
};

TEST_F(CoverageTest, a_mapping_is_looked_at_once_and_again_where_an_event_was) {
  EXPECT_TRUE(covers(12, 3) && covers(10, 10) && covers(19));
  EXPECT_EQ(world.looks, 1);
  EXPECT_TRUE(covers(45));
  coverage.forget_hook({49 * kPage, 60 * kPage});
  EXPECT_TRUE(covers(12) && covers(45, 4));
  EXPECT_EQ(world.looks, 2);
  EXPECT_TRUE(covers(48, 2));
  EXPECT_EQ(world.looks, 3);
  coverage.start({}, 0);
  world.seen = 0;
  EXPECT_FALSE(covers(12) || covers(13));
  EXPECT_EQ(world.looks, 4) << "a refusal is remembered, too";
}

TEST_F(CoverageTest, private_memory_around_a_range_ends_at_holes_files_and_what_is_not_writable) {
  map(60, 10, PINRAIL_MAPPING_ANONYMOUS);
  map(70, 10, PINRAIL_MAPPING_HEAP);
  map(80, 10, PINRAIL_MAPPING_ANONYMOUS);
  world.mappings.back().is_writable = 0;
  const auto around = [&](uintptr_t first, uintptr_t end, uintptr_t most_first, uintptr_t most_end) {
    const Span found = coverage.private_around({first * kPage, end * kPage}, {most_first * kPage, most_end * kPage});
    return std::pair{found.base / kPage, found.end / kPage};
  };
  using Pages = std::pair<uintptr_t, uintptr_t>;
  EXPECT_EQ(around(15, 16, 12, 18), (Pages{12, 18}));
  EXPECT_EQ(around(15, 16, 0, 30), (Pages{10, 20})) << "a hole, and a file";
  EXPECT_EQ(around(65, 75, 40, 90), (Pages{60, 80})) << "two mappings of one kind";
  EXPECT_EQ(around(22, 23, 10, 30), (Pages{22, 23})) << "a file";
  EXPECT_EQ(around(85, 86, 60, 90), (Pages{85, 86})) << "not writable";
  EXPECT_EQ(around(55, 56, 40, 70), (Pages{55, 56})) << "a hole";
  coverage.forget_hook({62 * kPage, 63 * kPage});
  EXPECT_EQ(around(65, 66, 60, 70), (Pages{60, 70})) << "across an event";
}

TEST_F(CoverageTest, each_event_that_can_happen_must_be_seen) {
  constexpr uint32_t kAny = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                            PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_SHMAT_OVER;
  constexpr uint32_t kMemory = kAny | PINRAIL_EVENT_GUARD_INSTALL | PINRAIL_EVENT_PROCESS_MADVISE;
  constexpr uint32_t kPrivate = kMemory | PINRAIL_EVENT_DONTNEED;
  constexpr uint32_t kShared = kMemory | PINRAIL_EVENT_REMOVE | PINRAIL_EVENT_REMAP_FILE_PAGES;
  constexpr uint32_t kFile = PINRAIL_EVENT_PUNCH_HOLE | PINRAIL_EVENT_TRUNCATE;
  const std::pair<pinrail_mapping_kind_t, uint32_t> rows[] = {
      {PINRAIL_MAPPING_ANONYMOUS, kPrivate},
      {PINRAIL_MAPPING_STACK, kPrivate},
      {PINRAIL_MAPPING_HEAP, kPrivate | PINRAIL_EVENT_BRK},
      {PINRAIL_MAPPING_SHARED_ANONYMOUS, kShared},
      {PINRAIL_MAPPING_SYSV, kShared | PINRAIL_EVENT_SHMDT},
      {PINRAIL_MAPPING_PRIVATE_FILE, kPrivate | kFile},
      {PINRAIL_MAPPING_SHARED_FILE, kShared | kFile},
      {PINRAIL_MAPPING_DISK_FILE, kShared | kFile | PINRAIL_EVENT_DIRECT_WRITE},
      {PINRAIL_MAPPING_DEVICE, kAny | PINRAIL_EVENT_DRIVER_MOVE}};
  for (const auto& [kind, events] : rows) {
    world.mappings.clear();
    map(10, 1, kind);
    for (uint32_t event = 1; event < PINRAIL_EVENTS_ALL; event <<= 1) {
      world.seen = PINRAIL_EVENTS_ALL & ~event;
      coverage.start({}, 0);
      EXPECT_EQ(covers(10), (events & event) == 0) << kind << " " << name_events(event);
    }
  }
}

// A write with O_DIRECT, or with RWF_DONTCACHE, replaces pages of a file on disk, and a driver those of its mapping:
// CUDA's managed memory moves. No monitor sees that.
TEST_F(CoverageTest, what_changes_unseen_is_not_kept_unless_that_never_happens_and_other_memory_is) {
  const std::pair<uint32_t, const char*> rows[] = {{PINRAIL_MAPPING_DISK_FILE, "direct_write"},
                                                   {PINRAIL_MAPPING_DEVICE, "driver_move"}};
  world.mappings.clear();
  for (uint32_t kind = PINRAIL_MAPPING_ANONYMOUS; kind <= PINRAIL_MAPPING_DISK_FILE; ++kind)
    map(10 * kind, 1, static_cast<pinrail_mapping_kind_t>(kind));
  world.seen = PINRAIL_EVENTS_ALL & ~kSeenByNone;
  for (uint32_t kind = PINRAIL_MAPPING_ANONYMOUS; kind <= PINRAIL_MAPPING_DISK_FILE; ++kind)
    EXPECT_EQ(covers(10 * kind), kind != rows[0].first && kind != rows[1].first) << kind;
  for (const auto& [kind, event] : rows) {
    uint32_t never = 0;
    std::string unknown;
    ASSERT_TRUE(parse_events(event, &never, &unknown).ok()) << unknown;
    coverage.start({PINRAIL_EVENTS_ALL & ~never, false}, 0);
    for (const auto& row : rows) EXPECT_EQ(covers(10 * row.first), row.first == kind) << event;
  }
}

TEST_F(CoverageTest, events_that_the_kernel_lacks_or_that_cannot_happen_need_not_be_seen) {
  world.seen = PINRAIL_EVENTS_ALL & ~uint32_t{PINRAIL_EVENT_GUARD_INSTALL};
  EXPECT_FALSE(covers(12));
  EXPECT_NE(world.said.find("guard_install"), std::string::npos) << world.said;
  coverage.start({PINRAIL_EVENTS_ALL & ~uint32_t{PINRAIL_EVENT_GUARD_INSTALL}, false}, 0);
  EXPECT_TRUE(covers(12));
}

TEST_F(CoverageTest, all_mappings_of_a_range_must_be_covered_and_a_hole_never_is) {
  EXPECT_FALSE(covers(32) || covers(100)) << "nothing, or a mapping that cannot be read";
  EXPECT_NE(world.said.find("nothing mapped"), std::string::npos) << world.said;
  world.seen = PINRAIL_EVENTS_ALL & ~kSeenByNone;
  coverage.start({world.seen, false}, 0);
  EXPECT_FALSE(covers(32) || covers(100)) << "nor if direct writes never happen";
  world.seen = events_of(PINRAIL_MAPPING_ANONYMOUS);
  EXPECT_TRUE(covers(10, 10));
  EXPECT_FALSE(covers(10, 11));
  EXPECT_FALSE(covers(19, 30)) << "a hole lies in it too";
}

TEST_F(CoverageTest, an_event_during_a_look_is_not_forgotten) {
  world.event_comes_to = &coverage;
  EXPECT_TRUE(covers(12));
  world.event_comes_to = nullptr;
  EXPECT_TRUE(covers(12));
  EXPECT_EQ(world.looks, 2);
}

TEST_F(CoverageTest, a_file_is_known_from_the_verdict_to_the_event_that_takes_its_memory) {
  const pinrail_file_part_t first{7, 0, 3 * kPage, 0}, last{7, 9 * kPage, UINT64_MAX, 0}, other{8, 0, UINT64_MAX, 0};
  world.mappings[1].inode = 7;
  Span span;
  EXPECT_TRUE(coverage.files_hook().is_empty_hook());
  EXPECT_TRUE(covers(22));
  ASSERT_TRUE(coverage.files_hook().find_hook(first, 0, &span));
  EXPECT_TRUE(span.base == 20 * kPage && span.end == 23 * kPage);
  EXPECT_FALSE(coverage.files_hook().find_hook(first, 23 * kPage, &span) ||
               coverage.files_hook().find_hook(other, 0, &span));
  coverage.forget_hook({20 * kPage, 25 * kPage});
  EXPECT_FALSE(coverage.files_hook().find_hook(first, 0, &span));
  ASSERT_TRUE(coverage.files_hook().find_hook(last, 0, &span));
  EXPECT_TRUE(span.base == 29 * kPage && span.end == 30 * kPage);
  EXPECT_TRUE(coverage.files_hook().find_hook({0, 0, UINT64_MAX, 20 * kPage}, 0, &span))
      << "where its first byte would be";
  EXPECT_TRUE(covers(22)) << "and again";
  EXPECT_TRUE(coverage.files_hook().find_hook(first, 0, &span));
  coverage.forget_hook({24 * kPage, 26 * kPage});
  const pinrail_file_part_t whole{7, 0, UINT64_MAX, 0};
  ASSERT_TRUE(coverage.files_hook().find_hook(whole, 0, &span));
  EXPECT_TRUE(span.base == 20 * kPage && span.end == 24 * kPage);
  ASSERT_TRUE(coverage.files_hook().find_hook(whole, span.end, &span)) << "what lies between two parts is forgotten";
  EXPECT_TRUE(span.base == 26 * kPage && span.end == 30 * kPage);
  coverage.forget_hook({0, UINTPTR_MAX});
  EXPECT_TRUE(coverage.files_hook().is_empty_hook());
}

// Another thread maps a file over a part of the mapping, and registers it, between a look and what follows from it.
TEST_F(CoverageTest, a_file_that_comes_during_a_look_at_the_mapping_before_it_stays_known) {
  world.mappings[1].inode = 7;
  world.meanwhile = [this] {
    coverage.forget_hook({25 * kPage, 30 * kPage});
    world.mappings[1].end = 25 * kPage;
    map(25, 5, PINRAIL_MAPPING_SHARED_FILE);
    world.mappings.back().inode = 8;
    std::rotate(world.mappings.begin() + 2, world.mappings.end() - 1, world.mappings.end());
    EXPECT_TRUE(covers(27));
  };
  EXPECT_TRUE(covers(22));
  Span span;
  ASSERT_TRUE(coverage.files_hook().find_hook({8, 0, UINT64_MAX, 0}, 0, &span));
  EXPECT_TRUE(span.base == 25 * kPage && span.end == 30 * kPage);
  ASSERT_TRUE(coverage.files_hook().find_hook({7, 0, UINT64_MAX, 0}, 0, &span));
  EXPECT_TRUE(span.base == 20 * kPage && span.end >= 25 * kPage);
}

// What happens before a monitor watches a mapping is no event.
TEST_F(CoverageTest, a_mapping_that_changes_before_it_is_watched_is_watched_again_as_it_is_then) {
  coverage.start({}, 0, true);
  EXPECT_TRUE(covers(42) && covers(43));
  EXPECT_EQ(world.looks, 2) << "before it is watched, and afterwards";
  // Its beginning goes, and is mapped again after the rest was watched, which it does not become one with.
  world.meanwhile = [this] {
    world.mappings[0].base = 13 * kPage;
    map(10, 3, PINRAIL_MAPPING_ANONYMOUS);
    std::rotate(world.mappings.begin(), world.mappings.end() - 1, world.mappings.end());
  };
  EXPECT_TRUE(covers(11));
  EXPECT_TRUE(world.asked.base == 10 * kPage && world.asked.end == 13 * kPage);
  world.looks = 0;
  EXPECT_TRUE(covers(15));
  EXPECT_EQ(world.looks, 2) << "nothing is known of the rest";
}

TEST_F(CoverageTest, a_mapping_that_goes_before_it_is_watched_or_changes_all_the_time_is_not_kept_this_time) {
  coverage.start({}, 0, true);
  world.meanwhile = [] { world.mappings[0].base = 13 * kPage; };
  EXPECT_FALSE(covers(12));
  const std::function<void()> change = [&change] {
    world.mappings[1].offset += kPage;
    world.meanwhile = change;
  };
  world.meanwhile = change;
  EXPECT_FALSE(covers(22));
  world.meanwhile = nullptr;
  EXPECT_TRUE(covers(14) && covers(22));
}

TEST_F(CoverageTest, a_mapping_that_may_not_be_accessed_when_it_is_watched_is_neither_kept_nor_known) {
  coverage.start({}, 0, true);
  world.mappings[1].inode = 7;
  world.meanwhile = [] { world.mappings[1].kind = PINRAIL_MAPPING_NONE; };
  EXPECT_FALSE(covers(22));
  EXPECT_FALSE(covers(22)) << "at the first look";
  world.mappings[1].kind = PINRAIL_MAPPING_SHARED_FILE;  // by mprotect(), which is no event
  EXPECT_TRUE(covers(22));
  Span span;
  EXPECT_TRUE(coverage.files_hook().find_hook({7, 0, UINT64_MAX, 0}, 0, &span));
}

// As by mprotect(), which is no event.
TEST(KeptFiles, what_is_known_stays_known_when_a_mapping_is_split_and_there_is_no_room) {
  KeptFiles files;
  for (uintptr_t i = 0; i + 1 < KeptFiles::kRoom; ++i) {
    ASSERT_TRUE(files.add({16 * i * kPage, (16 * i + 10) * kPage}, i + 1, 0));
  }
  files.add({16 * 7 * kPage + 4 * kPage, 16 * 7 * kPage + 6 * kPage}, 8, 4 * kPage);
  Span span;
  ASSERT_TRUE(files.find_hook({8, 5 * kPage, 6 * kPage, 0}, 0, &span));
  EXPECT_TRUE(span.base == (16 * 7 + 5) * kPage && span.end == (16 * 7 + 6) * kPage);
}

TEST(KeptFiles, events_in_the_midst_of_a_mapping_use_up_no_room) {
  KeptFiles files;
  for (size_t i = 0; i < 3 * KeptFiles::kRoom; ++i) {
    ASSERT_TRUE(files.add({20 * kPage, 30 * kPage}, 7, 0)) << i;
    files.forget_hook({(21 + i % 8) * kPage, (22 + i % 8) * kPage});
  }
}

TEST_F(CoverageTest, more_files_than_have_room_are_not_kept) {
  world.mappings.clear();
  for (uintptr_t i = 0; i <= KeptFiles::kRoom; ++i) {
    map(2 * i + 2, 1, PINRAIL_MAPPING_SHARED_FILE);
    world.mappings.back().inode = i + 1;
  }
  for (uintptr_t i = 0; i < KeptFiles::kRoom; ++i) EXPECT_TRUE(covers(2 * i + 2));
  EXPECT_FALSE(covers(2 * KeptFiles::kRoom + 2));
}

// E8.
TEST_F(CoverageTest, strict_refuses_what_another_process_can_cut) {
  coverage.start({PINRAIL_EVENTS_ALL, true}, PINRAIL_EVENTS_ALL);
  EXPECT_TRUE(covers(12));
  EXPECT_FALSE(covers(22));
}

TEST_F(CoverageTest, nothing_is_looked_at_where_everything_is_seen_everywhere) {
  coverage.start({}, PINRAIL_EVENTS_ALL);
  EXPECT_TRUE(covers(12) && covers(22) && covers(100));
  EXPECT_EQ(world.looks, 0);
}

// Verdicts are found until an event touches them, and the event wins.

Span pages(uintptr_t first, uintptr_t count) { return {first * kPage, (first + count) * kPage}; }

bool keep(KnownMappings* known, const Span& span, bool covered = true) {
  const uint64_t ticket = known->begin_lookup();
  const bool kept = known->keep(ticket, {span, covered});
  known->end_lookup();
  return kept;
}

bool knows(const KnownMappings& known, uintptr_t page) {
  Verdict verdict;
  return known.find(page * kPage, &verdict);
}

TEST(KnownMappings, in_a_full_table_an_event_in_the_midst_leaves_one_end_and_the_neighbours) {
  KnownMappings known;
  for (uintptr_t i = 0; i < KnownMappings::kRoom; ++i) ASSERT_TRUE(keep(&known, pages(8 * i, 4)));
  known.forget_hook(pages(81, 1));
  EXPECT_TRUE(knows(known, 80) && knows(known, 88) && knows(known, 8 * (KnownMappings::kRoom - 1)));
  EXPECT_FALSE(knows(known, 81) || knows(known, 82) || knows(known, 83));
  EXPECT_EQ(known.count(), KnownMappings::kRoom);
}

TEST(KnownMappings, an_event_between_the_look_and_its_keeping_wins) {
  KnownMappings known;
  const uint64_t ticket = known.begin_lookup();
  known.forget_hook(pages(13, 1));
  EXPECT_FALSE(known.keep(ticket, {pages(10, 4), true}));
  EXPECT_TRUE(known.keep(ticket, {pages(20, 4), true})) << "that one was not touched";
  for (size_t i = 0; i < KnownMappings::kEvents; ++i) known.forget_hook(pages(1000 + i, 1));
  EXPECT_FALSE(known.keep(ticket, {pages(10, 4), true})) << "the event is remembered no more";
  known.end_lookup();
  EXPECT_FALSE(knows(known, 10));
  EXPECT_TRUE(keep(&known, pages(10, 4))) << "the next look finds it";
}

TEST(KnownMappings, one_too_many_takes_a_neighbours_place_and_order_stays) {
  KnownMappings known;
  for (uintptr_t i = 0; i < KnownMappings::kRoom; ++i) ASSERT_TRUE(keep(&known, pages(4 * i, 2)));
  const uintptr_t last = KnownMappings::kRoom * 4;
  for (const uintptr_t page : {uintptr_t{2}, uintptr_t{402}, last}) {
    ASSERT_TRUE(keep(&known, pages(page, 2))) << page;
    EXPECT_TRUE(knows(known, page)) << page;
  }
  EXPECT_EQ(known.count(), KnownMappings::kRoom);
  uintptr_t found = 0;
  for (uintptr_t page = 0; page < last + 4; ++page) found += knows(known, page) ? 1 : 0;
  EXPECT_EQ(found, 2 * KnownMappings::kRoom);
}

// Against a map of pages, at random.
TEST(KnownMappings, does_what_a_list_of_pages_does) {
  constexpr uintptr_t kPages = 600;
  auto known = std::make_unique<KnownMappings>();
  std::vector<int> verdicts(kPages, 0);  // 0: unknown; 1: covered; 2: not covered
  std::mt19937 random(7);
  for (int step = 1; step < 20000; ++step) {
    const uintptr_t first = random() % (kPages - 20), count = 1 + random() % 20;
    const bool is_event = random() % 3 == 0;
    const bool covered = random() % 2 == 0;
    if (is_event) {
      known->forget_hook(pages(first, count));
    } else {
      ASSERT_TRUE(keep(known.get(), pages(first, count), covered));
    }
    for (uintptr_t page = first; page < first + count; ++page) verdicts[page] = is_event ? 0 : covered ? 1 : 2;
    const uintptr_t page = random() % kPages;
    Verdict verdict;
    ASSERT_EQ(known->find(page * kPage, &verdict), verdicts[page] != 0) << step;
    if (verdicts[page] == 0) continue;
    ASSERT_EQ(verdict.covered, verdicts[page] == 1) << step;
    ASSERT_TRUE(verdict.span.contains(pages(page, 1))) << step;
    for (uintptr_t each = verdict.span.base / kPage; each < verdict.span.end / kPage; ++each) {
      ASSERT_EQ(verdicts[each], verdicts[page]) << step;
    }
  }
}

// What is found must be what one writer kept: spans that begin at 64 k and are as long as k says.
TEST(KnownMappings, readers_without_the_lock_see_whole_verdicts) {
  KnownMappings known;
  std::atomic<bool> is_over{false};
  std::atomic<int> wrong{0}, found{0};
  test::Team readers(2, [&](int i) {
    std::mt19937 random(static_cast<unsigned>(i));
    while (!is_over) {
      Verdict verdict;
      const uintptr_t at = random() % (64 * 64) * kPage;
      if (!known.find(at, &verdict)) continue;
      const uintptr_t first = verdict.span.base / kPage;
      const bool right = first % 64 == 0 && verdict.span.length() / kPage == 1 + first / 64 % 60 &&
                         verdict.span.base <= at && at < verdict.span.end && verdict.covered == (first / 64 % 2 == 0);
      if (!right) ++wrong;
      ++found;
    }
  });
  std::mt19937 random(99);
  for (int step = 0; step < 50000 || found.load() < 100; ++step) {
    const uintptr_t number = random() % 64;
    const Span span = pages(64 * number, 1 + number % 60);
    if (random() % 2 == 0) {
      keep(&known, span, number % 2 == 0);
    } else {
      known.forget_hook(span);
    }
  }
  is_over = true;
  readers.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Events, have_names_that_lead_back) {
  uint32_t events = 0;
  std::string unknown;
  const std::string all = name_events(PINRAIL_EVENTS_ALL);
  EXPECT_TRUE(parse_events(all, &events, &unknown).ok());
  EXPECT_EQ(events, uint32_t{PINRAIL_EVENTS_ALL});
  EXPECT_TRUE(parse_events("", &events, &unknown).ok());
  EXPECT_EQ(events, 0u);
  EXPECT_TRUE(parse_events("unmap,rain", &events, &unknown).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(unknown, "rain");
}

// Both ways to ask the kernel.
void expect_mapping(const void* base, size_t length, pinrail_mapping_kind_t kind, const char* what) {
  const auto at = reinterpret_cast<uintptr_t>(base);
  pinrail_mapping_t asked{}, listed{};
  ASSERT_TRUE(find_mapping(at, &asked) && find_mapping_in_list(at, &listed)) << what;
  EXPECT_EQ(asked.inode, listed.inode) << what;
  EXPECT_EQ(asked.device, listed.device) << what;
  EXPECT_EQ(asked.offset, listed.offset) << what;
  for (const pinrail_mapping_t& mapping : {asked, listed}) {
    EXPECT_LE(mapping.base, at) << what;
    EXPECT_GE(mapping.end, at + length) << what;
    EXPECT_EQ(mapping.kind, kind) << what;
  }
}

TEST(Coverage, guard_pages_are_an_event_where_the_kernel_makes_some) {
  constexpr int kGuardInstall = 102;
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool is_made = madvise(page, kPage, kGuardInstall) == 0;
  munmap(page, kPage);
  EXPECT_EQ((events_of_kernel() & PINRAIL_EVENT_GUARD_INSTALL) != 0, is_made);
}

// Some advice is refused for locked memory, and memory need not stay locked.
TEST(Coverage, events_of_the_kernel_are_found_in_a_process_that_locks_its_memory) {
  const uint32_t unlocked = events_of_kernel();
  constexpr int kOnFault = 4;
  if (mlockall(MCL_FUTURE | kOnFault) != 0) GTEST_SKIP() << "memory may not be locked here";
  const uint32_t locked = events_of_kernel();
  munlockall();
  EXPECT_EQ(name_events(unlocked & ~locked), "");
}

TEST(Mapping, kinds_are_told_apart_as_the_kernel_shows_them) {
  const auto mapped = [](int flags, int file) { return mmap(nullptr, kPage, PROT_READ, flags, file, 0); };
  const int memory = memfd_create("pinrail-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory, kPage), 0);
  [[maybe_unused]] char local = 0;
#ifndef __SANITIZE_ADDRESS__  // which keeps variables elsewhere
  expect_mapping(&local, 1, PINRAIL_MAPPING_STACK, "a variable");
#endif
  expect_mapping(mapped(MAP_PRIVATE | MAP_ANONYMOUS, -1), kPage, PINRAIL_MAPPING_ANONYMOUS, "anonymous");
  expect_mapping(mapped(MAP_SHARED | MAP_ANONYMOUS, -1), kPage, PINRAIL_MAPPING_SHARED_ANONYMOUS, "shared");
  expect_mapping(mapped(MAP_SHARED, memory), kPage, PINRAIL_MAPPING_SHARED_FILE, "memfd");
  expect_mapping(mapped(MAP_PRIVATE, memory), kPage, PINRAIL_MAPPING_PRIVATE_FILE, "memfd, private");
  expect_mapping("text", 1, PINRAIL_MAPPING_PRIVATE_FILE, "a constant of the program");
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  void* const segment = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  expect_mapping(segment, kPage, PINRAIL_MAPPING_SYSV, "a segment");
  shmdt(segment);
  close(memory);
}

// A verdict may be asked for where the program has used up its descriptors, and is remembered.
TEST(Mapping, shared_memory_is_known_without_a_descriptor_once_it_was_known) {
  void* const base = mmap(nullptr, kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pinrail_mapping_t mapping{};
  ASSERT_TRUE(find_mapping(reinterpret_cast<uintptr_t>(base), &mapping));
  ASSERT_EQ(mapping.kind, PINRAIL_MAPPING_SHARED_ANONYMOUS);
  const test::FewDescriptors none;
  EXPECT_EQ(kind_of("/dev/zero (deleted)", true, mapping.device, mapping.inode), PINRAIL_MAPPING_SHARED_ANONYMOUS);
  munmap(base, kPage);
}

TEST(Mapping, what_is_no_memory_of_the_program_is_a_device) {
  EXPECT_EQ(kind_of("[vdso]", false, 0, 0), PINRAIL_MAPPING_DEVICE);
  EXPECT_EQ(kind_of("anon_inode:[io_uring]", true, 7, 5), PINRAIL_MAPPING_DEVICE);
  EXPECT_EQ(kind_of("[heap]", false, 0, 0), PINRAIL_MAPPING_HEAP);
  EXPECT_EQ(kind_of("[anon:arena]", false, 0, 0), PINRAIL_MAPPING_ANONYMOUS);
}

// The kind of a page of the file, mapped with these flags, as the kernel shows the mapping; the file may lose its name
// before.
pinrail_mapping_kind_t kind_of_file(const std::string& path, int flags, bool is_unlinked) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* const base = mmap(nullptr, kPage, PROT_READ, flags, file, 0);
  if (file >= 0) close(file);
  if (is_unlinked) unlink(path.c_str());
  pinrail_mapping_t mapping{};
  const bool found = base != MAP_FAILED && find_mapping(reinterpret_cast<uintptr_t>(base), &mapping);
  if (base != MAP_FAILED) munmap(base, kPage);
  return found ? mapping.kind : PINRAIL_MAPPING_NONE;
}

// Names do not tell: what lies below /dev may be a file, and what lies elsewhere a device.
TEST(Mapping, a_file_is_what_its_type_and_its_file_system_say) {
  for (const bool unlinked : {false, true}) {
    EXPECT_EQ(kind_of_file("/dev/shm/pinrail-kind", MAP_SHARED, unlinked), PINRAIL_MAPPING_SHARED_FILE);
    EXPECT_EQ(kind_of_file("/var/tmp/SYSV0", MAP_SHARED, unlinked), PINRAIL_MAPPING_DISK_FILE);
    EXPECT_EQ(kind_of_file("/var/tmp/pinrail-kind", MAP_PRIVATE, true), PINRAIL_MAPPING_PRIVATE_FILE);
  }
  EXPECT_EQ(kind_of_file("/dev/zero", MAP_PRIVATE, false), PINRAIL_MAPPING_ANONYMOUS);
  EXPECT_EQ(kind_of_file("/dev/zero", MAP_SHARED, false), PINRAIL_MAPPING_SHARED_ANONYMOUS);
}

TEST(Mapping, a_device_below_another_folder_is_no_file) {
  const std::string device = "/var/tmp/pinrail-zero-" + std::to_string(getpid());
  if (mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0) {
    GTEST_SKIP() << "no device can be made: " << std::strerror(errno);
  }
  const int opened = open(device.c_str(), O_RDWR | O_CLOEXEC);
  const int error = errno;
  const pinrail_mapping_kind_t kind = opened < 0 ? PINRAIL_MAPPING_NONE : kind_of_file(device, MAP_PRIVATE, false);
  if (opened >= 0) close(opened);
  unlink(device.c_str());
  if (opened < 0) GTEST_SKIP() << "devices of /var/tmp cannot be used: " << std::strerror(error);
  EXPECT_EQ(kind, PINRAIL_MAPPING_ANONYMOUS);
}

TEST(Mapping, an_open_list_shows_what_is_mapped_now_and_no_file_of_the_programs_is_asked_or_closed) {
  open_proc_files();
  const int number = test::descriptor_of("/maps");
  ASSERT_GE(number, 0);
  void* const base = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect_mapping(base, kPage, PINRAIL_MAPPING_ANONYMOUS, "mapped after the list was opened");
  const int file = open("/proc/1/maps", O_RDONLY | O_CLOEXEC);  // it would answer, for another process
  ASSERT_EQ(dup2(file >= 0 ? file : STDIN_FILENO, number), number);
  if (file >= 0) close(file);
  ASSERT_EQ(mmap(base, kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0), base);
  expect_mapping(base, kPage, PINRAIL_MAPPING_SHARED_ANONYMOUS, "mapped in its place, with another file at the number");
  munmap(base, kPage);
  close_proc_files();
  EXPECT_EQ(close(number), 0);
  open_proc_files();
  EXPECT_GE(test::descriptor_of("/maps"), 0);
  close_proc_files();
  EXPECT_EQ(test::descriptor_of("/maps"), -1);
}

// Objects have more functions than buckets in their tables, so most chains have several.
TEST(LoadedObject, finds_each_function_of_a_chain) {
  int found = 0;
  for_each_object([&found](const LoadedObject& object) {
    if (!object.holds(reinterpret_cast<uintptr_t>(&getauxval))) return true;
    for (const char* name : {"malloc", "free", "calloc", "realloc", "mmap", "munmap", "madvise", "mprotect", "brk",
                             "sbrk", "open", "close", "read", "write", "fork", "execve", "fallocate", "ftruncate"}) {
      EXPECT_NE(object.function(name), 0u) << name;
      ++found;
    }
    EXPECT_EQ(object.function("pinrail_no_such_function"), 0u);
    return false;
  });
  EXPECT_EQ(found, 18);
}

// The probe that the allocators are tried with lies on the stack.
TEST(OwnCalls, no_subscription_is_left) {
  find_raw_callers();
  EXPECT_EQ(subscriptions.first.load(), nullptr);
}

// Events of one kind of memory end registrations of that kind alone: above all "everything", by a blind monitor.

pinrail_monitor_ops_t ops_for(uint32_t kinds) {
  pinrail_monitor_ops_t ops{};
  ops.kinds = kinds;
  return ops;
}
pinrail_component_t component(const char* name, const pinrail_monitor_ops_t* ops) {
  pinrail_component_t descriptor{};
  std::strcpy(descriptor.name, name);
  descriptor.ops = ops;
  return descriptor;
}
const pinrail_monitor_ops_t for_host = ops_for(0), for_gpu = ops_for(PINRAIL_KIND_GPU);
const pinrail_component_t host_monitor = component("host", &for_host), gpu_monitor = component("gpu", &for_gpu);

struct Heard {
  std::atomic<int> events{0};
  std::atomic<bool> everything{false};
  static void hook(void* arg, uintptr_t base, size_t length) {
    auto* heard = static_cast<Heard*>(arg);
    heard->events.fetch_add(1);
    if (base == 0 && length == UINTPTR_MAX) heard->everything.store(true);
  }
};

class MonitorKinds : public testing::Test {
 protected:
  MonitorKinds() {
    started.add(host_monitor, nullptr, &host_table_);
    started.add(gpu_monitor, nullptr, &gpu_table_);
    subscribe(PINRAIL_KIND_HOST, Heard::hook, &of_host_, &subscriptions_[0]).ignore();
    subscribe(PINRAIL_KIND_GPU, Heard::hook, &of_gpu_, &subscriptions_[1]).ignore();
    subscribe(0, Heard::hook, &of_all_, &subscriptions_[2]).ignore();
  }
  ~MonitorKinds() override {
    for (void* subscription : subscriptions_) unsubscribe(subscription);
    started.clear();
  }
  // By subscriber: of host memory, of GPU memory, of all.
  std::vector<int> heard() const { return {of_host_.events.load(), of_gpu_.events.load(), of_all_.events.load()}; }

  pinrail_host_t host_table_{}, gpu_table_{}, unknown_table_{};
  Heard of_host_, of_gpu_, of_all_;
  void* subscriptions_[3] = {};
};

TEST_F(MonitorKinds, what_is_reported_is_of_the_memory_that_the_monitor_watches_and_otherwise_of_any) {
  report_of_hook(&host_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{1, 0, 1}));
  report_of_hook(&gpu_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{1, 1, 2}));
  report_hook(0, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{2, 2, 3})) << "by the program";
  report_of_hook(&unknown_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{3, 3, 4})) << "by a monitor that is still being started";
}

TEST_F(MonitorKinds, a_blind_monitor_ends_the_memory_that_it_watched_once) {
  for (int i = 0; i < 2; ++i) blind(&host_table_, "it was closed");
  EXPECT_TRUE(of_host_.everything.load() && of_all_.everything.load());
  EXPECT_EQ(heard(), (std::vector<int>{1, 0, 1}));
  EXPECT_FALSE(works(nullptr));
  blind(&gpu_table_, "the driver was unloaded");
  EXPECT_TRUE(of_gpu_.everything.load());
  EXPECT_EQ(heard(), (std::vector<int>{1, 1, 2}));
}

pinrail_monitor_ops_t telling_again(const StartedMonitor& monitor) {
  pinrail_monitor_ops_t ops = *monitor.ops;
  ops.flags |= PINRAIL_MONITOR_AFTERWARDS;
  return ops;
}

// By what does not report it again, it may be there still.
TEST_F(MonitorKinds, what_is_reported_before_it_goes_alone_is_marked_with_its_neighbourhood) {
  constexpr uintptr_t kFar = 2 << 20;
  StartedMonitor* const host = started.find_hook(&host_table_);
  ASSERT_NE(host, nullptr);
  report_of_hook(&host_table_, 4 * kFar + 4096, 4096);
  note_reported_hook(9 * kFar - 4096, 8192);
  report_of_hook(&gpu_table_, 12 * kFar, 4096);      // other memory
  report_of_hook(&unknown_table_, 14 * kFar, 4096);  // the trial of a monitor that is still being started
  for (const uintptr_t at : {4, 8, 9}) EXPECT_TRUE(was_reported(at * kFar, 4096)) << at;
  for (const uintptr_t at : {3, 5, 7, 10, 12, 14}) EXPECT_FALSE(was_reported(at * kFar, kFar)) << at;
  EXPECT_TRUE(was_reported(3 * kFar, 2 * kFar));
  started.clear();
  EXPECT_FALSE(was_reported(0, UINTPTR_MAX)) << "another start";
  started.add(host_monitor, nullptr, &host_table_);
  const pinrail_monitor_ops_t again = telling_again(*host);
  host->ops = &again;
  report_of_hook(&host_table_, 0, UINTPTR_MAX);
  note_reported_hook(0, UINTPTR_MAX);
  EXPECT_FALSE(was_reported(0, UINTPTR_MAX)) << "what is there is reported again";
}

// uffd alone sees what such an allocator drops, and reports it before.
TEST_F(MonitorKinds, beside_an_allocator_that_makes_raw_system_calls_nothing_is_told_afterwards) {
  StartedMonitor* const host = started.find_hook(&host_table_);
  ASSERT_NE(host, nullptr);
  host->events.store(PINRAIL_EVENT_DONTNEED);
  const pinrail_monitor_ops_t again = telling_again(*host);
  host->ops = &again;
  EXPECT_TRUE(is_told_afterwards());
  note_raw_callers();
  EXPECT_FALSE(is_told_afterwards());
  forget_findings();
}

// fork() is no cancellation point.
TEST(LoaderCall, a_fork_that_waits_for_one_is_not_cancelled) {
  std::atomic<bool> has_waited{false};
  auto call = std::make_unique<LoaderCall>();
  ASSERT_TRUE(*call);
  test::Team forking(1, [&] {
    pthread_cancel(pthread_self());
    before_fork();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    has_waited = true;
    after_fork();
  });
  usleep(20000);
  EXPECT_FALSE(has_waited.load());
  call.reset();
  forking.join();
  EXPECT_TRUE(has_waited.load());
}

}  // namespace
}  // namespace pinrail::monitor
