// SPDX-License-Identifier: BSD-3-Clause
// Patches in functions of a test object, loaded anew for each test: nothing is ever un-patched.
#include "base/patch/patch.h"
#include "config.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/patch/island.h"
#include "base/patch/maps.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::patch {
namespace {

using Victim = long (*)(long, long, long, long);

struct Seen {
  int calls = 0;
  long args[6] = {};
  uintptr_t original = 0;  // to be called on, or 0
};

long record_hook(void* seen_pointer, const long* args) {
  auto* seen = static_cast<Seen*>(seen_pointer);
  ++seen->calls;
  std::memcpy(seen->args, args, sizeof(seen->args));
  if (seen->original == 0) return 42;
  return reinterpret_cast<Victim>(seen->original)(args[0], args[1], args[2], args[3]);
}

long sum(long a, long b, long c, long d) { return a + 2 * b + 3 * c + 4 * d; }

class PatchTest : public testing::Test {
 protected:
  void SetUp() override {
    // A copy of its own: the dynamic loader knows files by their inode.
    static int number = 0;
    copy_ = testing::TempDir() + "victims" + std::to_string(getpid()) + "." + std::to_string(number++) + ".so";
    std::filesystem::copy_file(PINRAIL_TEST_BUILD "/test/unit/patch/.libs/victims.so", copy_,
                               std::filesystem::copy_options::overwrite_existing);
    object_ = dlopen(copy_.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(object_, nullptr) << dlerror();
  }
  void TearDown() override { std::filesystem::remove(copy_); }

  uintptr_t address(const char* name) const { return reinterpret_cast<uintptr_t>(dlsym(object_, name)); }
  Victim function(const char* name) const { return reinterpret_cast<Victim>(address(name)); }

  Patch patched(const char* name, Seen* seen) const {
    Patch patch;
    EXPECT_TRUE(prepare(address(name), {}, Disassembler(), record_hook, seen, &patch).ok()) << name;
    EXPECT_TRUE(activate(&patch).ok()) << name;
    return patch;
  }

  std::string copy_;
  void* object_ = nullptr;
};

constexpr const char* kSums[] = {"victim_plain", "victim_endbr",  "victim_moves",
                                 "victim_stack", "victim_pushes", "victim_across"};

TEST_F(PatchTest, the_hook_gets_the_arguments_and_gives_the_result) {
  for (const char* name : kSums) {
    ASSERT_EQ(function(name)(1, 20, 300, 4000), sum(1, 20, 300, 4000)) << name;
    Seen seen;
    patched(name, &seen);
    EXPECT_EQ(function(name)(1, 20, 300, 4000), 42) << name;
    EXPECT_EQ(seen.calls, 1);
    EXPECT_EQ(seen.args[0], 1);
    EXPECT_EQ(seen.args[1], 20);
    EXPECT_EQ(seen.args[2], 300);
    EXPECT_EQ(seen.args[3], 4000);
  }
}

TEST_F(PatchTest, all_six_registers_arrive) {
  Seen seen;
  patched("victim_stack", &seen);
  using Six = long (*)(long, long, long, long, long, long);
  reinterpret_cast<Six>(address("victim_stack"))(-1, 2, -3, 4, -5, 6);
  const long expected[] = {-1, 2, -3, 4, -5, 6};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(seen.args[i], expected[i]) << i;
}

TEST_F(PatchTest, the_original_does_what_the_function_did) {
  for (const char* name : kSums) {
    Seen seen;
    seen.original = patched(name, &seen).island.original;
    EXPECT_EQ(function(name)(5, 6, 7, 8), sum(5, 6, 7, 8)) << name;
    EXPECT_EQ(seen.calls, 1);
  }
}

// The gap below a mapping may begin far beyond the reach, and end just below it.
TEST_F(PatchTest, an_island_lies_right_below_a_mapping_if_nothing_else_is_near) {
  constexpr size_t kGiB = size_t{1} << 30;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  auto* const all = static_cast<uint8_t*>(mmap(nullptr, 8 * kGiB, PROT_NONE, kFlags, -1, 0));
  ASSERT_NE(all, MAP_FAILED);
  uint8_t* const kept = all + 6 * kGiB;
  munmap(all, 6 * kGiB);
  const auto near = reinterpret_cast<uintptr_t>(kept);
  uint8_t* const island = map_near(near, kGiB);
  ASSERT_NE(island, nullptr);
  EXPECT_LT(island, kept);
  EXPECT_LE(near - reinterpret_cast<uintptr_t>(island), kGiB);
  munmap(island, 4096);
  munmap(kept, 2 * kGiB);
}

TEST_F(PatchTest, what_is_addressed_relative_to_the_code_is_found_from_the_island) {
  Seen seen;
  ASSERT_EQ(function("victim_counts")(0, 0, 0, 0), 1);
  const Patch patch = patched("victim_counts", &seen);
  seen.original = patch.island.original;
  EXPECT_EQ(function("victim_counts")(0, 0, 0, 0), 2);
  EXPECT_EQ(function("victim_counts")(0, 0, 0, 0), 3);
  EXPECT_EQ(seen.calls, 2);
}

TEST_F(PatchTest, a_second_patch_calls_on_the_first) {
  for (const char* name : kSums) {
    Seen first, second;
    first.original = patched(name, &first).island.original;
    const Patch over = patched(name, &second);
    EXPECT_TRUE(over.is_chained()) << name;
    second.original = over.island.original;
    EXPECT_EQ(function(name)(1, 1, 1, 1), 10) << name;
    EXPECT_EQ(first.calls, 1) << name;
    EXPECT_EQ(second.calls, 1) << name;
  }
}

TEST_F(PatchTest, only_five_bytes_change_and_the_page_is_protected_as_before) {
  const uintptr_t at = address("victim_moves");
  const Snapshot before = Snapshot::of(at);
  Seen seen;
  const Patch patch = patched("victim_moves", &seen);
  const Snapshot after = Snapshot::of(at);
  for (size_t i = 0; i < kMaxDecoded; ++i) {
    const bool inside = i >= patch.entry.offset && i < patch.entry.offset + kJumpLength;
    EXPECT_TRUE(inside || after.bytes[i] == before.bytes[i]) << i;
  }
  EXPECT_EQ(after.bytes[patch.entry.offset], 0xe9);
  struct Look {
    uintptr_t code, island;
    int code_protection, island_protection;
  } look{at, patch.island.enter, 0, 0};
  for_each_mapping(
      [](void* arg, const Mapping& mapping) {
        auto* it = static_cast<Look*>(arg);
        if (it->code >= mapping.base && it->code < mapping.end) it->code_protection = mapping.protection;
        if (it->island >= mapping.base && it->island < mapping.end) it->island_protection = mapping.protection;
        return true;
      },
      &look);
  EXPECT_EQ(look.code_protection, PROT_READ | PROT_EXEC);
  EXPECT_EQ(look.island_protection, PROT_READ | PROT_EXEC);
}

TEST_F(PatchTest, code_that_is_not_known_stays_as_it_is) {
  const Snapshot before = Snapshot::of(address("victim_unknown"));
  Seen seen;
  Patch patch;
  EXPECT_TRUE(prepare(address("victim_unknown"), {}, Disassembler::open(), record_hook, &seen, &patch)
                  .is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_TRUE(before.agrees(Snapshot::of(address("victim_unknown")), kMaxDecoded));
}

TEST_F(PatchTest, a_function_that_changed_since_it_was_looked_at_is_left_alone) {
  Seen early, late;
  Patch prepared;
  ASSERT_TRUE(prepare(address("victim_plain"), {}, Disassembler(), record_hook, &early, &prepared).ok());
  patched("victim_plain", &late);
  EXPECT_TRUE(activate(&prepared).is(PINRAIL_ERR_BUSY));
  EXPECT_EQ(function("victim_plain")(0, 0, 0, 0), 42);
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(early.calls, 0);
}

TEST_F(PatchTest, a_patch_over_ours_is_noticed_until_it_is_accepted) {
  Seen ours, theirs;
  Patch patch = patched("victim_stack", &ours);
  EXPECT_TRUE(is_in_place(patch));
  patched("victim_stack", &theirs);
  EXPECT_FALSE(is_in_place(patch));
  accept(&patch);
  EXPECT_TRUE(is_in_place(patch));
}

TEST_F(PatchTest, functions_that_run_while_they_are_patched_never_see_half_a_jump) {
  for (const char* name : kSums) {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    const Victim victim = function(name);
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; ++i) {
      callers.emplace_back([&] {
        while (!stop.load(std::memory_order_relaxed)) {
          if (victim(1, 2, 3, 4) != sum(1, 2, 3, 4)) wrong.fetch_add(1);
        }
      });
    }
    Seen seen[8];
    for (Seen& one : seen) {
      Patch patch;
      ASSERT_TRUE(prepare(
                      address(name), {}, Disassembler(),
                      [](void* arg, const long* args) {
                        const auto* it = static_cast<const Seen*>(arg);
                        return reinterpret_cast<Victim>(it->original)(args[0], args[1], args[2], args[3]);
                      },
                      &one, &patch)
                      .ok());
      one.original = patch.island.original;
      ASSERT_TRUE(activate(&patch).ok());
    }
    stop = true;
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong.load(), 0) << name;
  }
}

// Every mapping of a list that the C library read line by line.
TEST(Maps, the_list_is_read_as_it_is_written) {
  struct All {
    std::vector<Mapping> mappings;
  } all;
  all.mappings.reserve(4096);
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "maps", 0));
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  auto* mapped = static_cast<char*>(mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0x3000));
  ASSERT_TRUE(for_each_mapping(
      [](void* arg, const Mapping& mapping) {
        static_cast<All*>(arg)->mappings.push_back(mapping);
        return true;
      },
      &all));
  size_t lines = 0;
  uintptr_t last_end = 0;
  bool found = false, stack = false;
  for (const Mapping& mapping : all.mappings) {
    ++lines;
    EXPECT_LT(mapping.base, mapping.end);
    EXPECT_GE(mapping.base, last_end);
    last_end = mapping.end;
    stack = stack || std::string(mapping.name) == "[stack]";
    if (mapping.base != reinterpret_cast<uintptr_t>(mapped)) continue;
    found = true;
    struct stat about {};
    ASSERT_EQ(fstat(fd, &about), 0);
    EXPECT_EQ(mapping.end - mapping.base, 8192u);
    EXPECT_EQ(mapping.offset, 0x3000u);
    EXPECT_EQ(mapping.inode, about.st_ino);
    EXPECT_EQ(mapping.protection, PROT_READ);
    EXPECT_EQ(std::string(mapping.name), std::string("/memfd:maps (de").substr(0, 15));
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(stack);
  EXPECT_GT(lines, 10u);
  munmap(mapped, 8192);
  close(fd);
}

TEST(Maps, a_visitor_may_have_seen_enough) {
  int seen = 0;
  EXPECT_TRUE(for_each_mapping(
      [](void* arg, const Mapping&) {
        ++*static_cast<int*>(arg);
        return false;
      },
      &seen));
  EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace pinrail::patch

#else

TEST(PatchTest, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "starts of functions are patched on x86-64 Linux, without ThreadSanitizer";
}

#endif
