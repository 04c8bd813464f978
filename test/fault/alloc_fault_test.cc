// SPDX-License-Identifier: BSD-3-Clause
// The n-th allocation fails while a pool allocates, resizes and frees registered memory, for all n: nothing is lost,
// nothing stays registered, and the next calls work.
#include <pinrail/alloc.h>
#include <pthread.h>

#include "test/support/leaving_registrar.h"
#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// A free that lacks memory changes nothing, so it can be repeated.
void release(pinrail_mpool_t* pool, void* at) {
  pinrail_status_t status = pinrail_mpool_free(pool, at);
  if (status == PINRAIL_ERR_OUT_OF_RESOURCE) status = pinrail_mpool_free(pool, at);
  EXPECT_EQ(status, PINRAIL_SUCCESS);
}

struct Held {
  pinrail_mpool_t* pool;
  void* all[4] = {};
  size_t count = 0;
};

void* release_all(void* pointer) {
  const auto* const held = static_cast<Held*>(pointer);
  for (size_t i = 0; i < held->count; ++i) release(held->pool, held->all[i]);
  return nullptr;
}

// Allocates, resizes, and frees on another thread, which has no magazines yet. Returns the first error of alloc and
// realloc.
pinrail_status_t use(pinrail_mpool_t* pool) {
  pinrail_status_t first = PINRAIL_SUCCESS;
  const auto note = [&](pinrail_status_t status) { first = first == PINRAIL_SUCCESS ? status : first; };
  Held held{pool};
  for (const size_t length : {size_t{100}, 3 * kMiB, size_t{5000}, kMiB}) {
    void* at = nullptr;
    note(pinrail_mpool_alloc(pool, length, 0, PINRAIL_NODE_ANY, &at));
    if (at != nullptr) held.all[held.count++] = at;
  }
  for (size_t i = 0; i < held.count; ++i) note(pinrail_mpool_realloc(pool, held.all[i], 2 * kMiB, &held.all[i]));
  pthread_t other;  // std::thread would allocate
  EXPECT_EQ(pthread_create(&other, nullptr, release_all, &held), 0);
  EXPECT_EQ(pthread_join(other, nullptr), 0);
  return first;
}

uint64_t mapped_bytes(pinrail_mpool_t* pool) {
  auto figures = sized<pinrail_alloc_stats_t>();
  EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool, &figures), PINRAIL_SUCCESS);
  EXPECT_EQ(figures.allocations, 0u);
  return figures.mapped_bytes;
}

TEST(NthAllocation, of_an_allocator_fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_alloc_region", "2M"}});
  uint64_t mapped = 0;
  int reached = 0;
  bool hit = true;
  for (long n = 0; hit; ++n) {  // the 0th: none fails
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    fake::FakeOptions options;
    options.zero_cost = true;  // the fake's own allocations are not under test
    const fake::FakeRegistrar registrar(options);
    Pool pool(registrar);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    hit = with_nth_allocation_failing(n, [&] { status = use(pool.get()); });
    reached += n != 0 && hit ? 1 : 0;
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    EXPECT_EQ(use(pool.get()), PINRAIL_SUCCESS) << "it works on";
    if (n == 0) mapped = mapped_bytes(pool.get());
    EXPECT_EQ(mapped_bytes(pool.get()), mapped) << "each slab serves again";
    EXPECT_TRUE(pool.invariants_hold());
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << "no registration is referenced";
  }
  EXPECT_GT(reached, 10);
}

}  // namespace
}  // namespace pinrail::test
