// SPDX-License-Identifier: BSD-3-Clause
// core_test.cc - the machine's shape, and PageCounts against a plain array of counts.
#include "base/core/machine.h"
#include "config.h"

#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/core/page_counts.h"

namespace pinrail {
namespace {

uint64_t mem_total_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  uint64_t kibibytes = 0;
  while (meminfo >> word) {
    if (word == "MemTotal:" && meminfo >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

unsigned nodes_of_sysfs() {
  unsigned count = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", none)) {
    unsigned number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%u", &number) == 1) ++count;
  }
  return count;
}

void expect_sound(const Machine& machine) {
  EXPECT_EQ(machine.page_bytes, static_cast<uint64_t>(getpagesize()));
  EXPECT_GT(machine.memory_bytes, uint64_t{16} << 20);
  EXPECT_LE(machine.memory_bytes, mem_total_bytes() + machine.page_bytes);
  EXPECT_GE(machine.numa_nodes, 1u);
  uint64_t before = machine.page_bytes;
  for (const uint64_t bytes : machine.hugepage_bytes) {
    if (bytes == 0) break;
    EXPECT_GT(bytes, before) << "sizes rise";
    EXPECT_EQ(bytes & (bytes - 1), 0u);
    before = bytes;
  }
}

TEST(Machine, the_system_alone_gives_page_memory_and_one_node) {
  const Machine machine = read_machine_of_system();
  expect_sound(machine);
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
}

TEST(Machine, hwloc_is_asked_where_it_is_built_in) {
  const Machine machine = read_machine();
  expect_sound(machine);
#ifdef HAVE_HWLOC
  EXPECT_STREQ(machine.source, "hwloc");
  if (nodes_of_sysfs() == 0) GTEST_SKIP() << "this kernel lists no NUMA nodes to compare with";
  EXPECT_LE(machine.numa_nodes, nodes_of_sysfs());
#else
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
#endif
}

TEST(Machine, each_hugepage_size_is_one_that_the_kernel_lists) {
  const Machine machine = read_machine();
  size_t listed = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", none)) {
    unsigned long long kibibytes = 0;
    if (std::sscanf(entry.path().filename().c_str(), "hugepages-%llukB", &kibibytes) != 1) continue;
    ++listed;
    const auto& sizes = machine.hugepage_bytes;
    EXPECT_NE(std::find(sizes.begin(), sizes.end(), kibibytes * 1024), sizes.end()) << entry.path();
  }
  EXPECT_EQ(std::count_if(machine.hugepage_bytes.begin(), machine.hugepage_bytes.end(),
                          [](uint64_t bytes) { return bytes != 0; }),
            static_cast<std::ptrdiff_t>(listed));
}

TEST(Machine, the_public_view_shows_the_same_before_init_too) {
  const Machine machine = read_machine();
  pinrail_machine_t view{};
  view.size = sizeof(view);
  ASSERT_EQ(pinrail_machine_read(&view), PINRAIL_SUCCESS);
  EXPECT_EQ(view.size, sizeof(view));
  EXPECT_STREQ(view.source, machine.source);
  EXPECT_EQ(view.page_size, machine.page_bytes);
  EXPECT_EQ(view.memory, machine.memory_bytes);
  EXPECT_EQ(view.numa_nodes, machine.numa_nodes);
  EXPECT_EQ(view.hugepage_sizes[0], machine.hugepage_bytes[0]);
}

TEST(Machine, no_struct_or_one_without_a_size_is_refused) {
  pinrail_machine_t view{};
  EXPECT_EQ(pinrail_machine_read(nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM);
  view.size = sizeof(view.size) - 1;
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM) << "not even the size has room";
  EXPECT_EQ(view.page_size, 0u);
}

}  // namespace
}  // namespace pinrail

namespace {

// PageCounts against a plain array of counts.

using pinrail::PageCounts;
using pinrail::Span;

constexpr size_t kPage = 4096;
Span pages(size_t first, size_t count) { return Span::of(first * kPage, count * kPage); }

std::vector<Span> removed(PageCounts* counts, Span span) {
  std::vector<Span> spans;
  EXPECT_TRUE(counts->remove(span, [&](Span piece) { spans.push_back(piece); }).ok());
  return spans;
}

std::vector<Span> unheld(const PageCounts& counts, Span span) {
  std::vector<Span> spans;
  counts.for_each_unheld(span, [&](Span piece) { spans.push_back(piece); });
  return spans;
}

void expect_spans(const std::vector<Span>& got, const std::vector<Span>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].base, want[i].base) << i;
    EXPECT_EQ(got[i].end, want[i].end) << i;
  }
}

TEST(PageCounts, a_span_that_is_not_held_is_refused_though_others_begin_or_end_there) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(0, 4)).ok());
  ASSERT_TRUE(counts.add(pages(0, 2)).ok());
  const auto visited = [](Span) { FAIL() << "it is held"; };
  EXPECT_TRUE(counts.remove(pages(2, 2), visited).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(counts.check_invariants());
  EXPECT_EQ(counts.held_bytes(), 4 * kPage);
  EXPECT_TRUE(removed(&counts, pages(0, 2)).empty());
  expect_spans(removed(&counts, pages(0, 4)), {pages(0, 4)});
}

TEST(PageCounts, an_empty_span_is_refused) {
  PageCounts counts;
  EXPECT_TRUE(counts.add(pages(4, 0)).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counts.nodes(), 0u);
}

TEST(PageCounts, removing_pages_without_a_count_changes_nothing) {
  PageCounts counts;
  const auto never = [](Span) { FAIL(); };
  EXPECT_TRUE(counts.remove(pages(1, 1), never).is(PINRAIL_ERR_BAD_PARAM));
  ASSERT_TRUE(counts.add(pages(1, 1)).ok());
  ASSERT_TRUE(counts.add(pages(5, 1)).ok());
  EXPECT_TRUE(counts.remove(pages(1, 5), never).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counts.held_bytes(), 2 * kPage);
  EXPECT_TRUE(counts.check_invariants());
}

// Counts of an array, changed in step with the map.
class Model {
 public:
  void change(Span span, int by) {
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) counts_[page] += by;
  }
  std::vector<Span> zero_pieces(Span span) const {
    std::vector<Span> spans;
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) {
      if (counts_[page] != 0) continue;
      if (!spans.empty() && spans.back().end == page * kPage) {
        spans.back().end += kPage;
      } else {
        spans.push_back(pages(page, 1));
      }
    }
    return spans;
  }
  size_t held_bytes() const {
    size_t bytes = 0;
    for (const int count : counts_) bytes += count != 0 ? kPage : 0;
    return bytes;
  }

 private:
  std::vector<int> counts_ = std::vector<int>(256);
};

TEST(PageCounts, agrees_with_an_array_of_counts_in_20000_random_steps) {
  std::mt19937 random(20240607);
  PageCounts counts;
  Model model;
  std::vector<Span> held;
  for (int step = 0; step < 20000; ++step) {
    if (held.size() < 2 || random() % 100 < 52) {
      const size_t first = random() % 200;
      held.push_back(pages(first, 1 + random() % (random() % 4 == 0 ? 56 : 4)));
      ASSERT_TRUE(counts.add(held.back()).ok());
      model.change(held.back(), 1);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const Span span = held.back();
      held.pop_back();
      model.change(span, -1);
      expect_spans(removed(&counts, span), model.zero_pieces(span));
    }
    const Span window = pages(random() % 100, 1 + random() % 100);
    expect_spans(unheld(counts, window), model.zero_pieces(window));
    ASSERT_TRUE(counts.check_invariants());
    ASSERT_LE(counts.nodes(), 2 * held.size());
    ASSERT_EQ(counts.held_bytes(), model.held_bytes());
  }
}

}  // namespace
