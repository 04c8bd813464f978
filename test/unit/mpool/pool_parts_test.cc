// SPDX-License-Identifier: BSD-3-Clause
// pool_parts_test.cc - parts of pools alone: the list of what events ended (it is taken once, by one thread, and says
// when too much waits), registrations outside of the index, pool_works(), default limits, sizes of
// allocations, and plans of pins.
#include "framework/mpool/gc_list.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/sync/lock.h"
#include "components/mpool/grdma/grdma_outside.h"
#include "framework/api/pin_job.h"
#include "framework/mpool/allocator.h"
#include "framework/mpool/mpool.h"
#include "framework/mpool/pool_works.h"
#include "test/support/files.h"
#include "test/support/threads.h"

namespace pinrail::mpool {
namespace {

constexpr size_t kBytes = 4096;
using Regs = std::vector<pinrail_registration_t*>;

pinrail_registration_t* make() {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(0x10000, kBytes), nullptr, 0);
  return reg;
}

GcList::Growth push_one(GcList* list, pinrail_registration_t* reg) { return list->push(reg, reg, reg->length); }

Mutex cache_mutex{LockRank::cache};

Regs take(GcList* list, size_t most) {
  Guard guard(cache_mutex);
  Regs regs(most);
  regs.resize(list->take_locked(regs.data(), most));
  return regs;
}

TEST(GcList, a_push_says_whether_it_is_the_first_and_too_much_waits_until_no_more_does_than_may) {
  GcList list(2 * kBytes);
  EXPECT_TRUE(push_one(&list, make()).was_empty);
  const GcList::Growth second = push_one(&list, make());
  EXPECT_FALSE(second.was_empty || second.exceeds_limit || list.is_due());
  EXPECT_TRUE(push_one(&list, make()).exceeds_limit);
  EXPECT_TRUE(list.is_due());
  EXPECT_FALSE(push_one(&list, make()).exceeds_limit) << "it was said";
  take(&list, 1);
  EXPECT_TRUE(list.is_due());
  take(&list, 1);
  EXPECT_FALSE(list.is_due());
  EXPECT_TRUE(push_one(&list, make()).exceeds_limit) << "once more";
  EXPECT_TRUE(list.is_due());
}

// gc_list/D1
TEST(GcList, pushes_and_takes_of_many_threads_lose_nothing_and_give_nothing_twice) {
  constexpr size_t kThreads = 3, kOfEach = 3000;
  GcList list(16 * kBytes);
  std::vector<Regs> regs(kThreads);
  for (Regs& of_thread : regs) {
    for (size_t i = 0; i < kOfEach; ++i) of_thread.push_back(make());
  }
  std::mutex all_mutex;
  std::atomic<size_t> taken{0};
  test::Team pushers(kThreads, [&](size_t i) {
    for (pinrail_registration_t* reg : regs[i]) push_one(&list, reg);
  });
  Regs all;
  test::on_threads(2, [&] {
    while (taken != kThreads * kOfEach) {
      const std::lock_guard<std::mutex> guard(all_mutex);
      const Regs some = take(&list, 7);
      taken += some.size();
      all.insert(all.end(), some.begin(), some.end());
    }
  });
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), kThreads * kOfEach);
  EXPECT_TRUE(list.is_empty());
  EXPECT_FALSE(list.is_due());
  EXPECT_EQ(list.bytes(), 0u);
}

}  // namespace
}  // namespace pinrail::mpool

namespace pinrail::grdma {
namespace {

// What is held outside of the index: an event marks what it overlaps, and nothing else. Beside a model that looks at
// everything, at random.

constexpr uintptr_t kPage = 4096;

pinrail_registration_t* make(uintptr_t base, size_t length) {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(base, length), nullptr, 0);
  return reg;
}

class RandomOutside : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomOutside, agrees_with_the_model) {
  std::mt19937 random(GetParam());
  const bool is_crowded = GetParam() % 2 != 0;
  const uintptr_t pages = is_crowded ? 64 : 1 << 16;
  Outside outside(arena::chunks(), {});
  std::vector<pinrail_registration_t*> in, out;
  const auto span = [&] {
    const uintptr_t longest = random() % 16 == 0 ? pages / 2 : 6;
    return Span::of((1 + random() % pages) * kPage, (1 + random() % longest) * kPage);
  };
  for (int step = 0; step < 5000; ++step) {
    const unsigned what = random() % (step % 2000 < 1500 ? 8 : 4);
    if (what >= 4) {
      const Span at = span();
      in.push_back(make(at.base, at.length()));
      outside.unlink(in.back());  // without effect: it is not in it
      outside.link(in.back());
    } else if (what >= 2 && !in.empty()) {
      std::swap(in[random() % in.size()], in.back());
      for (int i = 0; i < 2; ++i) outside.unlink(in.back());
      out.push_back(in.back());
      in.pop_back();
    } else {
      const Span event = span();
      std::vector<bool> marked;
      for (const auto* reg : in) marked.push_back(is_invalidated(reg) || span_of(reg).overlaps(event));
      outside.invalidate(event);
      for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(is_invalidated(in[i]), marked[i]) << step;
    }
    ASSERT_EQ(outside.is_empty(), in.empty());
  }
  std::vector<bool> were;
  for (const auto* reg : out) were.push_back(is_invalidated(reg));
  outside.invalidate({0, UINTPTR_MAX});
  for (const auto* reg : in) EXPECT_TRUE(is_invalidated(reg));
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(is_invalidated(out[i]), were[i]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOutside, ::testing::Range(1u, 9u));

}  // namespace
}  // namespace pinrail::grdma

namespace pinrail::mpool {
namespace {

TEST(SizeClasses, hold_every_length_and_waste_at_most_a_fifth) {
  for (size_t length = 1; length <= size_classes::kLargest; length += length < 10000 ? 1 : 37) {
    const size_t size = size_classes::size_of(size_classes::class_of(length));
    ASSERT_GE(size, length);
    ASSERT_TRUE(size - length < 64 || (size - length) * 5 <= size) << length;
  }
}

// The list of a pool's works: when register calls look into it.

class ServingWork : public PoolWork {
 public:
  bool is_unfinished() override { return false; }
  void stop() override {}
  bool serves_requests() const override { return true; }
};

TEST(PoolWorks, register_calls_look_for_chunks_until_the_last_work_that_has_some_was_removed) {
  PoolWorks works;
  const auto one = std::make_shared<ServingWork>(), other = std::make_shared<ServingWork>();
  EXPECT_FALSE(works.serves_requests());
  works.add(one);
  works.add(other);
  works.remove(one.get());
  EXPECT_TRUE(works.serves_requests());
  works.remove(other.get());
  EXPECT_FALSE(works.serves_requests());
  works.add(one);
  works.detach_all();
  EXPECT_FALSE(works.serves_requests());
  EXPECT_TRUE(one->is_detached());
}

constexpr uint64_t kMebi = uint64_t{1} << 20, kGibi = uint64_t{1} << 30;

Bounds bounds(uint64_t memory, uint64_t cgroup, uint64_t memlock, unsigned processes) {
  Bounds bounds;
  bounds.memory = memory;
  bounds.cgroup = cgroup;
  bounds.memlock = memlock;
  bounds.processes = processes;
  return bounds;
}

TEST(DefaultLimits, are_three_quarters_of_the_memory_or_what_the_group_or_the_process_may_use) {
  constexpr uint64_t kNone = UINT64_MAX;
  const struct {
    Bounds bounds;
    uint64_t bytes;
    const char* derivation;
  } rows[] = {
      {bounds(16 * kGibi, kNone, kNone, 1), 12 * kGibi, "3/4 of 16384 MiB (memory), for 1 process"},
      {bounds(16 * kGibi, kNone, kNone, 4), 3 * kGibi, "3/4 of 16384 MiB (memory), for 4 local processes"},
      {bounds(16 * kGibi, 4 * kGibi, kNone, 1), 3 * kGibi,
       "3/4 of 4096 MiB (limit of the control group), for 1 process"},
      {bounds(16 * kGibi, kNone, 8 * kMebi, 64), 8 * kMebi, "the limit of locked memory (ulimit -l)"},
      {bounds(16 * kGibi, kNone, 0, 1), 4096, "the limit of locked memory (ulimit -l)"},  // at least a page
  };
  for (const auto& row : rows) {
    const DefaultLimit limit = default_limit(row.bounds);
    EXPECT_EQ(limit.bytes, row.bytes) << row.derivation;
    EXPECT_EQ(limit.derivation, row.derivation);
  }
  EXPECT_EQ(default_limit(bounds(kNone, kNone, kNone, 0)).bytes, kNone) << "nothing bounds where nothing is known";
}

class Groups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
      mkdir((root() + "/" + path.substr(0, at)).c_str(), 0700);
    }
    std::ofstream(root() + "/" + path) << text;
  }
  std::string root() const { return folder_.path(); }
  uint64_t limit() const { return cgroup_limit(root() + "/self", root()); }

 private:
  test::TempFolder folder_;
};

TEST_F(Groups, the_smallest_limit_from_the_group_upwards_counts) {
  write("self", "0::/slice/job\n");
  write("slice/job/memory.max", "max\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("slice/memory.max", "3000000\n");
  EXPECT_EQ(limit(), 3000000u);
  write("slice/job/memory.max", "1000000\n");
  EXPECT_EQ(limit(), 1000000u);
  write("memory.max", "500000\n");
  EXPECT_EQ(limit(), 500000u);
}

TEST_F(Groups, version_1_has_a_tree_of_its_own_for_memory) {
  write("self", "5:cpu,cpuacct:/a\n4:memory:/b\n");
  write("memory/a/memory.limit_in_bytes", "1000\n");
  write("memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("memory/b/memory.limit_in_bytes", "7000000\n");
  EXPECT_EQ(limit(), 7000000u);
}

TEST_F(Groups, what_is_no_list_of_groups_is_no_limit) {
  write("self", "nonsense\n:\n0:\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  EXPECT_EQ(cgroup_limit(root() + "/missing", root()), UINT64_MAX);
}

TEST(LocalProcesses, are_what_the_launcher_says) {
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "24", 1);
  EXPECT_EQ(local_processes(), 24u);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "many", 1);
  EXPECT_EQ(local_processes(), 1u);
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  setenv("PMI_LOCAL_SIZE", "3", 1);
  EXPECT_EQ(local_processes(), 3u);
  unsetenv("PMI_LOCAL_SIZE");
}

}  // namespace
}  // namespace pinrail::mpool

namespace pinrail::api {
namespace {

// pin_plan: how ranges become chunks, at the edges of groups, chunks and limits.

constexpr uintptr_t kPage = 4096;

pinrail_range_t range(uintptr_t base, size_t length) {
  return {reinterpret_cast<void*>(base), length};  // NOLINT(performance-no-int-to-ptr)
}

TEST(PinPlan, ranges_join_whose_pages_touch_up_to_the_limit_and_no_further) {
  const struct {
    pinrail_range_t ranges[2];
    size_t count, limit, chunks;
  } rows[] = {
      {{range(16 * kPage, kPage), range(17 * kPage, kPage)}, 2, 2 * kPage, 1},  // exactly as long as a chunk may be
      {{range(16 * kPage, kPage), range(17 * kPage, kPage)}, 2, kPage, 2},
      {{range(16 * kPage, kPage), range(18 * kPage, kPage)}, 2, 16 * kPage, 2},
      {{range(16 * kPage, 8 * kPage), range(23 * kPage, kPage)}, 2, 2 * kPage, 4},  // one ends with its group
      {{range(17 * kPage, 4 * kPage), {}}, 1, 4 * kPage, 1},
      {{range(17 * kPage, 4 * kPage), {}}, 1, 4 * kPage - 1, 2},  // the limit is rounded down to pages
  };
  for (const auto& row : rows) {
    EXPECT_EQ(PinPlan(row.ranges, row.count, row.limit, kPage).chunk_count(), row.chunks) << &row - rows;
  }
}

TEST(PinPlan, each_chunk_belongs_to_its_own_group_and_is_found_by_what_it_overlaps_or_contains) {
  const pinrail_range_t ranges[] = {range(16 * kPage, 4 * kPage), range(32 * kPage, kPage), range(64 * kPage, kPage)};
  const PinPlan plan(ranges, 3, 2 * kPage, kPage);
  ASSERT_EQ(plan.chunk_count(), 4u);
  const Span chunks[] = {Span::of(16 * kPage, 2 * kPage), Span::of(18 * kPage, 2 * kPage), Span::of(32 * kPage, kPage),
                         Span::of(64 * kPage, kPage)};
  size_t found = SIZE_MAX;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(plan.chunk(i).base == chunks[i].base && plan.chunk(i).end == chunks[i].end) << i;
    EXPECT_TRUE(plan.find_around(chunks[i], &found) && found == i);
    EXPECT_TRUE(plan.find_around(Span::of(chunks[i].end - 1, 1), &found) && found == i);
  }
  EXPECT_FALSE(plan.find_around(Span::of(18 * kPage - 1, 2), &found)) << "across two chunks";
  EXPECT_FALSE(plan.find_around(Span::of(20 * kPage, 1), &found)) << "behind its group";
  EXPECT_FALSE(plan.find_around(Span::of(16 * kPage - 1, 1), &found)) << "before the first group";
  const auto overlapped = [&](uintptr_t base, uintptr_t end) {
    std::vector<size_t> numbers;
    plan.for_chunks({base, end}, [&](size_t number) { numbers.push_back(number); });
    return numbers;
  };
  EXPECT_EQ(overlapped(17 * kPage, 18 * kPage), std::vector<size_t>({0}));
  EXPECT_EQ(overlapped(17 * kPage, 18 * kPage + 1), std::vector<size_t>({0, 1}));
  EXPECT_EQ(overlapped(20 * kPage, 32 * kPage), std::vector<size_t>());
  EXPECT_EQ(overlapped(20 * kPage - 1, 32 * kPage + 1), std::vector<size_t>({1, 2}));
}

TEST(PinPlan, huge_pages_at_the_last_address_are_requested_nowhere) {
  errno = 0;
  request_huge_pages({UINTPTR_MAX - kPage, UINTPTR_MAX});
  EXPECT_EQ(errno, 0) << "the kernel refuses what begins again at 0, or takes every mapping for it";
}

}  // namespace
}  // namespace pinrail::api
