// SPDX-License-Identifier: BSD-3-Clause
// What UCX tests of its registration cache, on the adapter ucs_rcache.h. A case, or the line above it, has the name of
// UCX's test of the same behaviour (test/gtest/ucs/test_rcache.cc, 26 names); the code and the words are ours.
//
//   as UCX      create_fail, create_destroy (each case), basic, get_unmapped, put_and_invalidate, merge_inv,
//   release_inuse,
//               merge_merge_unwritable, shared_region, register_failure, by_count, by_size, by_size_inuse,
//               stats_basic, unmap_dereg, unmap_dereg_with_lock, hits_slow. In the last two UCX's test holds UCX's own
//               lock while memory is unmapped; here a get is under way on the same thread.
//   no merging  merge, merge_adjacent, merge_aligned, merge_with_unwritable, merge_expand_prot, merge_invalid_prot,
//               merge_invalid_prot_slow. UCX replaces regions that overlap by one region. Pinrail does not: the cases
//               say what it does instead. What such a test asks beside that holds.
//   none        stats_merge (there is nothing to count), enum_pfn (tests a function that reads page frames from
//               /proc/self/pagemap, which Pinrail does not need).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "test/adopt/ucs_rcache.h"
#include "test/support/threads.h"

namespace pinrail::adopt {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr uint32_t kMagic = 0x9e3779b9;
constexpr size_t kMiB = size_t{1} << 20;
size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// The program's struct.
struct Entry {
  Region region;
  uint32_t magic;
  uint32_t id;
};
Entry* entry_of(Region* region) { return reinterpret_cast<Entry*>(region); }

// The mapping's protection by the kernel's list, as UCX's test asks it: whether all of the range has it.
bool memory_has(uintptr_t start, uintptr_t end, int prot) {
  FILE* const maps = fopen("/proc/self/maps", "re");
  char line[4352];
  uintptr_t seen = start;
  while (seen < end && fgets(line, sizeof(line), maps) != nullptr) {
    uintptr_t from = 0, to = 0;
    char bits[5] = "";
    if (sscanf(line, "%lx-%lx %4s", &from, &to, bits) != 3 || to <= seen || from > seen) continue;
    if (((prot & PROT_READ) != 0 && bits[0] != 'r') || ((prot & PROT_WRITE) != 0 && bits[1] != 'w')) break;
    seen = to;
  }
  fclose(maps);
  return seen >= end;
}

class UcsRcache : public testing::Test {
 protected:
  void SetUp() override {
    static const Ops ops = {mem_reg, mem_dereg};
    params.region_struct_size = sizeof(Entry);
    params.ops = &ops;
    params.context = this;
    ASSERT_EQ(rcache_create(params, "ucs_rcache_test", &rcache), kOk);
  }
  void TearDown() override {
    rcache_destroy(rcache);
    EXPECT_EQ(live, 0u);
  }

  Region* get(void* address, size_t length, int prot = kReadWrite, size_t alignment = 1) {
    Region* region = nullptr;
    EXPECT_EQ(rcache_get(rcache, address, length, alignment, prot, this, &region), kOk);
    EXPECT_EQ(entry_of(region)->magic, kMagic);
    EXPECT_EQ(region->prot & prot, prot);
    EXPECT_LE(region->start, reinterpret_cast<uintptr_t>(address));
    EXPECT_GE(region->end, reinterpret_cast<uintptr_t>(address) + length);
    return region;
  }
  void put(Region* region) { rcache_region_put(rcache, region); }
  uint32_t get_and_put(void* address, size_t length) {
    Region* const region = get(address, length);
    const uint32_t id = entry_of(region)->id;
    put(region);
    return id;
  }

  static char* map(size_t length, int prot = kReadWrite) {
    void* const memory = mmap(nullptr, length, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<char*>(memory);
  }

  static Status mem_reg(void* context, Rcache*, void* arg, Region* region) {
    auto* const test = static_cast<UcsRcache*>(context);
    EXPECT_EQ(arg, test);
    if (test->during_mem_reg) test->during_mem_reg();
    if (test->fails || !memory_has(region->start, region->end, region->prot)) return kIoError;
    entry_of(region)->magic = kMagic;
    entry_of(region)->id = ++test->last_id;
    ++test->live;
    return kOk;
  }
  static void mem_dereg(void* context, Rcache*, Region* region) {
    auto* const test = static_cast<UcsRcache*>(context);
    EXPECT_EQ(entry_of(region)->magic, kMagic);
    entry_of(region)->magic = 0;
    EXPECT_GT(test->live--, 0u);
  }

  Params params;
  Rcache* rcache = nullptr;
  std::atomic<uint32_t> live{0}, last_id{0};
  bool fails = false;
  std::function<void()> during_mem_reg;
};

class UcsRcacheWithLimit : public UcsRcache {
 protected:
  UcsRcacheWithLimit() {
    params.max_regions = 2;
    params.max_size = 1000;
  }
};

TEST(UcsRcacheBasic, create_fail) {
  const Ops none = {nullptr, nullptr};
  Params params;
  params.ops = &none;
  Rcache* rcache = nullptr;
  EXPECT_EQ(rcache_create(params, "create_fail", &rcache), kInvalidParam);
  EXPECT_EQ(rcache, nullptr);
}

TEST_F(UcsRcache, basic) {
  test::on_threads(10, [&] {
    void* const memory = malloc(kMiB);
    put(get(memory, kMiB));
    free(memory);
  });
}

TEST_F(UcsRcache, get_unmapped) {
  test::on_threads(6, [&] {
    char* memory = map(kMiB);
    const uint32_t id = get_and_put(memory, kMiB);
    EXPECT_EQ(get_and_put(memory, kMiB), id);
    munmap(memory, kMiB);
    memory = map(kMiB);  // mostly at the same address
    EXPECT_NE(get_and_put(memory, kMiB), id);
    munmap(memory, kMiB);
  });
}

TEST_F(UcsRcache, put_and_invalidate) {
  char* const memory = map(kMiB);
  for (size_t references = 1; references < 100; ++references) {
    std::vector<Completion> completions(references);
    size_t completed = 0;
    Region* const region = get(memory, kMiB);
    for (size_t n = 1; n < references; ++n) {
      if (n % 3 == 0) {
        rcache_region_hold(region);
      } else {
        EXPECT_EQ(get(memory, kMiB), region);
      }
    }
    for (size_t n = 0; n < references; ++n) {
      EXPECT_EQ(completed, 0u);
      if (n % 2 == 0) {
        completions[n].function = [](void* count) { ++*static_cast<size_t*>(count); };
        completions[n].arg = &completed;
        rcache_region_invalidate(rcache, region, &completions[n]);
        EXPECT_FALSE(rcache_region_is_cached(rcache, region));
        Region* const other = get(memory, kMiB);
        EXPECT_NE(other, region);
        put(other);
      }
      put(region);
    }
    EXPECT_EQ(completed, (references + 1) / 2);  // in the last put
  }
  munmap(memory, kMiB);
}

// A get of a part of each of two regions and of what lies between, and one that fills the gap between them.
TEST_F(UcsRcache, merge_and_merge_adjacent) {
  const size_t part = 64 * page_size();
  test::on_threads(6, [&] {
    for (const auto& [begin, length] : {std::pair{part, 11 * part}, std::pair{4 * part, part}}) {
      char* const memory = map(13 * part);
      Region* const first = get(memory, 4 * part);
      Region* const again = get(memory, 4 * part);
      EXPECT_EQ(again, first);
      Region* const second = get(memory + 5 * part, 8 * part);
      Region* const third = get(memory + begin, length);
      EXPECT_EQ(third->start, reinterpret_cast<uintptr_t>(memory + begin));  // what was asked for
      EXPECT_EQ(third->end - third->start, length);
      EXPECT_TRUE(rcache_region_is_cached(rcache, first));  // and its neighbours stay
      EXPECT_TRUE(rcache_region_is_cached(rcache, second));
      for (Region* const region : {first, again, second, third}) put(region);
      munmap(memory, 13 * part);
    }
  });
}

TEST_F(UcsRcache, merge_aligned) {  // a get with a larger alignment covers three regions: they are displaced
  const size_t page = page_size();
  const size_t alignment = 8 * page;
  void* memory = nullptr;
  ASSERT_EQ(posix_memalign(&memory, alignment, 16 * page), 0);
  auto* const bytes = static_cast<char*>(memory);
  Region* const first = get(bytes, 4 * page);
  Region* const second = get(bytes + 5 * page, 4 * page);
  Region* const third = get(bytes + 9 * page, 4 * page);
  Region* const all = get(bytes + 5 * page, 8 * page, kReadWrite, alignment);
  EXPECT_EQ(all->start, reinterpret_cast<uintptr_t>(bytes));
  EXPECT_EQ(all->end, all->start + 16 * page);
  for (Region* const region : {first, second, third}) {
    EXPECT_FALSE(rcache_region_is_cached(rcache, region));
    Region* const again = get(reinterpret_cast<void*>(region->start), 4 * page);
    EXPECT_EQ(again, all);
    put(again);
  }
  for (Region* const region : {first, second, third, all}) put(region);
  free(memory);
}

TEST_F(UcsRcache, merge_inv) {
  test::on_threads(6, [&] {
    char* const memory = map(9 * kMiB);
    const uint32_t id = get_and_put(memory, 4 * kMiB);
    EXPECT_NE(get_and_put(memory + kMiB, 8 * kMiB), id);
    munmap(memory, 9 * kMiB);
  });
}

TEST_F(UcsRcache, release_inuse) {
  test::on_threads(6, [&] {
    char* memory = map(kMiB);
    Region* const in_use = get(memory, kMiB);
    munmap(memory, kMiB);
    memory = map(kMiB);
    Region* const other = get(memory, kMiB);
    EXPECT_NE(other, in_use);
    put(other);
    munmap(memory, kMiB);
    EXPECT_EQ(entry_of(in_use)->magic, kMagic);  // it is not deregistered while it is referenced
    put(in_use);
  });
}

// merge_with_unwritable, merge_merge_unwritable, merge_expand_prot: regions overlap whose rights differ. UCX wants the
// first one out of its table, because both overlap, or its rights in the merged region.
TEST_F(UcsRcache, merge_of_other_rights) {
  struct Rights {
    int mapped, first, later_mapped, second;
  };
  const size_t page = page_size();
  for (const Rights& rights :
       {Rights{PROT_READ, PROT_READ, PROT_WRITE, PROT_WRITE}, Rights{kReadWrite, kReadWrite, PROT_READ, PROT_READ},
        Rights{kReadWrite, PROT_READ, kReadWrite, PROT_WRITE}}) {
    char* const memory = map(18 * page, rights.mapped);
    Region* const first = get(memory, 14 * page, rights.first);
    EXPECT_EQ(first->prot, rights.first);
    ASSERT_EQ(mprotect(memory + 10 * page, 8 * page, rights.later_mapped), 0);
    Region* const second = get(memory + 10 * page, 8 * page, rights.second);
    EXPECT_EQ(second->start, reinterpret_cast<uintptr_t>(memory + 10 * page));
    EXPECT_EQ(second->prot, rights.second);
    EXPECT_TRUE(rcache_region_is_cached(rcache, first));
    put(first);
    put(second);
    munmap(memory, 18 * page);
  }
}

// merge_invalid_prot, and merge_invalid_prot_slow. UCX has deregistered the first region.
TEST_F(UcsRcache, merge_invalid_prot) {
  const size_t page = page_size();
  char* const memory = map(18 * page);
  char* const later = memory + 10 * page - 1024;
  put(get(memory, 10 * page));
  ASSERT_EQ(mprotect(memory, page, PROT_READ), 0);
  Region* const region = get(later, 8 * page);
  EXPECT_EQ(region->prot, kReadWrite);
  EXPECT_EQ(region->start, reinterpret_cast<uintptr_t>(later));
  EXPECT_EQ(live, 2u);
  put(region);
  ASSERT_EQ(mprotect(memory, 10 * page, PROT_READ), 0);
  Region* refused = nullptr;
  EXPECT_EQ(rcache_get(rcache, later - page, 8 * page, 1, PROT_WRITE, this, &refused), kIoError);
  EXPECT_EQ(live, 2u);
  munmap(memory, 18 * page);
}

TEST_F(UcsRcache, shared_region) {
  void* const memory = malloc(kMiB);
  test::on_threads(6, [&] {
    for (size_t offset : {size_t{0}, kMiB - kMiB * 2 / 3}) {
      Region* const region = get(static_cast<char*>(memory) + offset, kMiB * 2 / 3);
      usleep(100);
      put(region);
    }
  });
  free(memory);
}

TEST_F(UcsRcache, register_failure) {
  fails = true;
  test::on_threads(10, [&] {
    void* const memory = malloc(kMiB);
    Region* region = nullptr;
    EXPECT_EQ(rcache_get(rcache, memory, kMiB, 1, kReadWrite, this, &region), kIoError);
    EXPECT_EQ(region, nullptr);
    free(memory);
  });
  EXPECT_EQ(live, 0u);
}

TEST_F(UcsRcacheWithLimit, by_count) {
  void* const memory[] = {malloc(32), malloc(32), malloc(32)};
  const uint32_t first = get_and_put(memory[0], 32);
  EXPECT_EQ(rcache->regions, 1u);
  const uint32_t second = get_and_put(memory[1], 32);
  EXPECT_EQ(rcache->regions, 2u);
  const uint32_t third = get_and_put(memory[2], 32);
  EXPECT_EQ(rcache->regions, 2u);
  EXPECT_EQ(get_and_put(memory[1], 32), second);  // the oldest is gone
  EXPECT_EQ(get_and_put(memory[2], 32), third);
  EXPECT_NE(get_and_put(memory[0], 32), first);
  EXPECT_EQ(rcache->regions, 2u);
  for (void* const block : memory) free(block);
}

// by_size, and by_size_inuse: a get is not refused, and evicts nothing that is referenced.
TEST_F(UcsRcacheWithLimit, by_size) {
  void* const memory[] = {malloc(600), malloc(600)};
  get_and_put(memory[0], 600);
  EXPECT_EQ(rcache->regions, 1u);
  get_and_put(memory[1], 600);
  EXPECT_EQ(rcache->regions, 1u);
  Region* const in_use = get(memory[0], 600);
  get_and_put(memory[1], 600);
  EXPECT_EQ(rcache->regions, 2u);
  put(in_use);
  for (void* const block : memory) free(block);
}

TEST_F(UcsRcache, stats_basic) {
  void* const memory = malloc(4096);
  Region* const first = get(memory, 4096);
  EXPECT_EQ(rcache_stats(rcache).gets, 1u);
  EXPECT_EQ(rcache_stats(rcache).misses, 1u);
  EXPECT_EQ(rcache_stats(rcache).regs, 1u);
  Region* const second = get(memory, 4096);
  EXPECT_EQ(rcache_stats(rcache).gets, 2u);
  EXPECT_EQ(rcache_stats(rcache).hits, 1u);
  EXPECT_EQ(rcache_stats(rcache).misses, 1u);
  put(first);
  EXPECT_EQ(rcache_stats(rcache).puts, 1u);
  put(second);
  free(memory);
  EXPECT_EQ(rcache_stats(rcache).puts, 2u);
  EXPECT_EQ(rcache_stats(rcache).deregs, 0u);
  EXPECT_EQ(rcache_stats(rcache).unmap_invalidates, 0u);
}

// unmap_dereg, and unmap_dereg_with_lock.
TEST_F(UcsRcache, unmap_dereg) {
  for (const bool in_mem_reg : {false, true}) {
    const Stats before = rcache_stats(rcache);
    char *const memory = map(kMiB), *const other = map(kMiB);
    put(get(memory, kMiB));
    if (in_mem_reg) during_mem_reg = [&] { munmap(memory, kMiB); };
    put(get(other, kMiB));
    during_mem_reg = nullptr;
    if (!in_mem_reg) munmap(memory, kMiB);
    EXPECT_EQ(rcache_stats(rcache).unmap_invalidates, before.unmap_invalidates + 1);
    EXPECT_GE(rcache_stats(rcache).unmaps, before.unmaps + 1);
    char* const third = map(kMiB);
    put(get(third, kMiB));  // a miss deregisters what events have ended
    EXPECT_EQ(rcache_stats(rcache).deregs, before.deregs + 1);
    munmap(other, kMiB);
    munmap(third, kMiB);
    EXPECT_EQ(pinrail_mpool_progress(rcache->pool), PINRAIL_SUCCESS);
  }
}

TEST_F(UcsRcache, hits_slow) {
  char* const memory = map(kMiB);
  char* const other = map(kMiB);
  put(get(memory, kMiB));
  Region* const held = get(other, kMiB);
  munmap(memory, kMiB);
  Region* const again = get(other, kMiB);  // an event that was not worked off yet does not make it a miss
  EXPECT_EQ(again, held);
  EXPECT_EQ(rcache_stats(rcache).hits, 1u);
  EXPECT_EQ(rcache_stats(rcache).misses, 2u);
  EXPECT_EQ(rcache_stats(rcache).unmap_invalidates, 1u);
  EXPECT_EQ(pinrail_mpool_progress(rcache->pool), PINRAIL_SUCCESS);
  EXPECT_EQ(rcache_stats(rcache).deregs, 1u);
  put(held);
  put(again);
  munmap(other, kMiB);
}

}  // namespace
}  // namespace pinrail::adopt

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (pinrail_init(nullptr) != PINRAIL_SUCCESS) return 1;
  const bool is_kept = pinrail_monitor_works() != 0;
  if (pinrail_finalize() != PINRAIL_SUCCESS) return 1;
  if (!is_kept) {
    puts("SKIP: no monitor sees memory events here, so that nothing is cached");
    return 77;
  }
  return RUN_ALL_TESTS();
}
