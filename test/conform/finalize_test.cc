// SPDX-License-Identifier: BSD-3-Clause
// finalize_test.cc - the last pinrail_finalize() ends all pools or none: beside helper threads that end.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <unistd.h>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr unsigned kLimitSeconds = 60;

pinrail_registrar_t table_with(decltype(pinrail_registrar_t::register_mem) register_mem) {
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "test";
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = kPage;
  table.register_mem = register_mem;
  table.deregister_mem = [](void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; };
  return table;
}

class Finalize : public testing::Test {
 protected:
  Finalize() {
    pinrail_set_message_function([](void*, int, const char*, const char*) {}, nullptr);  // refusals are expected
    alarm(kLimitSeconds);
  }
  ~Finalize() override {
    alarm(0);
    pinrail_set_message_function(nullptr, nullptr);
  }
};

// Refuses the last of three pages: what was pinned before is given back, and then nothing is referenced.
pinrail_status_t refuse_third(void*, const pinrail_register_request_t* request, pinrail_registration_t*) {
  return reinterpret_cast<uintptr_t>(request->addr) == kBase + 2 * kPage ? PINRAIL_ERR_PERM : PINRAIL_SUCCESS;
}

pinrail_mpool_t* make_pool(const pinrail_registrar_t& table) {
  const pinrail_registrar_choice_t choice = lend(table);
  pinrail_mpool_t* pool = nullptr;
  EXPECT_EQ(pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool), PINRAIL_SUCCESS);
  return pool;
}

pinrail_prepin_t* start_job(pinrail_mpool_t* pool) {
  const pinrail_range_t range = {reinterpret_cast<void*>(kBase), 3 * kPage};  // NOLINT(performance-no-int-to-ptr)
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.threads = 1;
  options.chunk_size = kPage;
  pinrail_prepin_t* job = nullptr;
  EXPECT_EQ(pinrail_mpool_prepin_start(pool, &range, 1, 1, &options, &job), PINRAIL_SUCCESS);
  return job;
}

// The job may end between the check of its pool and the destroy.
TEST_F(Finalize, a_job_that_ends_meanwhile_leaves_no_pool_behind) {
  constexpr int kRounds = 200;
  const pinrail_registrar_t table = table_with(refuse_third);
  for (int i = 0; i < kRounds; ++i) {
    pinrail_mpool_t *first = nullptr, *second = nullptr;
    pinrail_prepin_t* job = nullptr;
    {
      Library library(Settings{{"registrar", "none"}});
      first = make_pool(table);
      second = make_pool(table);
      job = start_job(first);
      pinrail_status_t status;
      do status = pinrail_finalize();
      while (status == PINRAIL_ERR_BUSY);
      ASSERT_EQ(status, PINRAIL_SUCCESS);
      library.status = PINRAIL_ERR_BUSY;  // finalized already
    }
    const Library next(Settings{{"registrar", "none"}});
    ASSERT_EQ(pinrail_mpool_destroy(second, 0), PINRAIL_ERR_BAD_PARAM) << "the pool outlived its components";
    EXPECT_EQ(pinrail_prepin_free(job), PINRAIL_SUCCESS);
  }
}

}  // namespace
}  // namespace pinrail::test
