// SPDX-License-Identifier: BSD-3-Clause
// The n-th allocation fails while a pool of mpool/odp is asked what is registered: no reference is lost, so the pool
// can be destroyed.
#include <pinrail/pin.h>

#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = uintptr_t{1} << 40;  // nothing is mapped there, which does not matter
constexpr size_t kTile = size_t{1} << 20;
constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ;

class OdpPool : public AnyPool {
 public:
  explicit OdpPool(const fake::FakeRegistrar& registrar) {
    PoolOptions options;
    options.leave_pinned = PINRAIL_UNSET;
    make("odp", lend(registrar), options);
  }
  ~OdpPool() { close(PINRAIL_DESTROY_FORCE); }

  // Registers tiles that do not touch: the answer has as many parts.
  void fill(unsigned tiles) const {
    for (unsigned i = 0; i < tiles; ++i) {
      pinrail_handle_t handle{};
      void* const at = reinterpret_cast<void*>(kBase + 2 * i * kTile);
      ASSERT_EQ(pinrail_mpool_register(pool_, at, kPage, kRead, 0, &handle), PINRAIL_SUCCESS);
      ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    }
  }
  pinrail_status_t query() const {
    pinrail_pinned_t pinned;
    return pinrail_mpool_query(pool_, reinterpret_cast<void*>(kBase), size_t{1} << 40, kRead, &pinned, nullptr, 0,
                               nullptr);
  }
};

TEST(NthAllocation, of_a_query_of_tiles_fails_and_no_reference_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_odp_tile_size", "1M"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  fake::FakeOptions options;
  options.on_demand = PINRAIL_ON_DEMAND_EXPLICIT;
  const fake::FakeRegistrar registrar(options);
  bool hit = true;
  int reached = 0;
  for (long n = 1; hit && n < 200; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    OdpPool pool(registrar);
    ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
    pool.fill(200);
    pinrail_status_t status = PINRAIL_SUCCESS;
    hit = with_nth_allocation_failing(n, [&] { status = pool.query(); });
    EXPECT_EQ(status, hit ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS);
    reached += hit ? 1 : 0;
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced";
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(reached, 5);
}

}  // namespace
}  // namespace pinrail::test
