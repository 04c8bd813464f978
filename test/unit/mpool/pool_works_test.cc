// SPDX-License-Identifier: BSD-3-Clause
// The list of a pool's works: when register calls look into it.
#include "framework/mpool/pool_works.h"

#include <gtest/gtest.h>

namespace pinrail::mpool {
namespace {

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

}  // namespace
}  // namespace pinrail::mpool
