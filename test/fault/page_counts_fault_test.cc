// SPDX-License-Identifier: BSD-3-Clause
// PageCounts without memory: the n-th allocation fails, for all n.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "base/core/page_counts.h"

namespace {
long allocations_left = -1;  // -1: no end
}

// Not inlined: GCC then takes malloc and free for a mismatch.
__attribute__((noinline)) void* operator new(size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using pinrail::PageCounts;
using pinrail::Span;

constexpr size_t kPage = 4096;
Span pages(size_t first, size_t count) { return Span::of(first * kPage, count * kPage); }

pinrail::Status add_with(PageCounts* counts, Span span, long allocations) {
  allocations_left = allocations;
  const pinrail::Status status = counts->add(span);
  allocations_left = -1;
  return status;
}

TEST(PageCountsFault, an_add_without_memory_changes_nothing) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(10, 10)).ok());
  for (const Span span : {pages(0, 5), pages(5, 8), pages(12, 3), pages(15, 9), pages(0, 40)}) {
    for (const long allocations : {0, 1}) {
      EXPECT_TRUE(add_with(&counts, span, allocations).is(PINRAIL_ERR_OUT_OF_RESOURCE));
      EXPECT_EQ(counts.nodes(), 2u);
      EXPECT_EQ(counts.held_bytes(), 10 * kPage);
      EXPECT_TRUE(counts.check_invariants());
    }
    EXPECT_TRUE(add_with(&counts, span, 2).ok());
    EXPECT_TRUE(counts.remove(span, [](Span) {}).ok());
  }
}

TEST(PageCountsFault, an_edge_that_is_there_needs_no_memory) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(10, 10)).ok());
  EXPECT_TRUE(add_with(&counts, pages(10, 10), 0).ok());
  EXPECT_TRUE(add_with(&counts, pages(12, 8), 1).ok());
}

TEST(PageCountsFault, a_removal_never_needs_memory) {
  PageCounts counts;
  for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(counts.add(pages(i, 100 - 2 * i)).ok());
  allocations_left = 0;
  pinrail::Status status = pinrail::success();
  for (size_t i = 0; i < 50 && status.ok(); i += 1) status = counts.remove(pages(i, 100 - 2 * i), [](Span) {});
  allocations_left = -1;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(counts.nodes(), 0u);
}

}  // namespace
