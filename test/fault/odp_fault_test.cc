// SPDX-License-Identifier: BSD-3-Clause
// The n-th allocation fails while a pool of mpool/odp is asked what is registered: no reference is lost, so the pool
// can be destroyed.
#include <pinrail/pin.h>

#include "test/mpool/odp_under_test.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

// Registers tiles that do not touch: the answer to a query has as many parts.
void fill(const OdpPool& pool, unsigned tiles) {
  for (unsigned i = 0; i < tiles; ++i) pool.use(kBase + 2 * i * kTile, kPage);
}
pinrail_status_t query(const OdpPool& pool) {
  pinrail_pinned_t pinned;
  return pinrail_mpool_query(pool.get(), reinterpret_cast<void*>(kBase), size_t{1} << 40, kRead, &pinned, nullptr, 0,
                             nullptr);
}

TEST(NthAllocation, of_a_query_of_tiles_fails_and_no_reference_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_odp_tile_size", "1M"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const fake::FakeRegistrar registrar(paging());
  bool hit = true;
  int reached = 0;
  for (long n = 1; hit && n < 200; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    OdpPool pool(registrar);
    ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
    fill(pool, 200);
    pinrail_status_t status = PINRAIL_SUCCESS;
    hit = with_nth_allocation_failing(n, [&] { status = query(pool); });
    EXPECT_EQ(status, hit ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS);
    reached += hit ? 1 : 0;
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced";
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(reached, 5);
}

}  // namespace
}  // namespace pinrail::test
