// SPDX-License-Identifier: BSD-3-Clause
// finalize_test.cc - the last pinrail_finalize() ends all pools or none, beside helper threads that end; and what
// functions of registrars may not end.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <unistd.h>

#include "test/support/host_table.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr unsigned kLimitSeconds = 60;

pinrail_registrar_t table_with(decltype(pinrail_registrar_t::register_mem) register_mem) {
  pinrail_registrar_t table = host_table("test");
  table.register_mem = register_mem;
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

struct InFunction {
  pinrail_mpool_t* pool = nullptr;
  int calls = 0;
  pinrail_status_t inner = PINRAIL_SUCCESS, answer = PINRAIL_SUCCESS;
};

pinrail_status_t destroy_in_function(void* context, pinrail_registration_t*, void*) {
  auto* const in = static_cast<InFunction*>(context);
  ++in->calls;
  in->inner = pinrail_mpool_destroy(in->pool, PINRAIL_DESTROY_FORCE);
  return in->answer;
}

class InRecordAndWait : public Finalize {
 protected:
  InRecordAndWait() {
    table_.context = &in_;
    table_.record = table_.wait = destroy_in_function;
    in_.pool = pool_ = make_pool(table_);
    EXPECT_EQ(pinrail_mpool_register(pool_, page_, kPage, 1, 0, &handle_), PINRAIL_SUCCESS);
  }
  ~InRecordAndWait() override {
    drop(handle_);
    EXPECT_EQ(pinrail_mpool_destroy(pool_, 0), PINRAIL_SUCCESS);
  }

  const Library library_;
  InFunction in_;
  pinrail_registrar_t table_ =
      table_with([](void*, const pinrail_register_request_t*, pinrail_registration_t*) { return PINRAIL_SUCCESS; });
  pinrail_mpool_t* pool_ = nullptr;
  pinrail_handle_t handle_{};
  alignas(kPage) char page_[kPage] = {};
};

TEST_F(InRecordAndWait, a_pool_is_not_destroyed) {
  EXPECT_EQ(pinrail_mpool_record(handle_, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(in_.inner, PINRAIL_ERR_BUSY);
  EXPECT_EQ(pinrail_mpool_wait(handle_, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(in_.inner, PINRAIL_ERR_BUSY);
  EXPECT_EQ(in_.calls, 2);
}

TEST_F(InRecordAndWait, a_status_that_does_not_exist_becomes_error) {
  in_.answer = static_cast<pinrail_status_t>(5);
  EXPECT_EQ(pinrail_mpool_record(handle_, nullptr), PINRAIL_ERR_ERROR);
  EXPECT_EQ(pinrail_mpool_wait(handle_, nullptr), PINRAIL_ERR_ERROR);
}

// What the functions of a registrar that finalize runs get from these calls.
struct AtTheEnd {
  pinrail_status_t init = PINRAIL_SUCCESS, finalize = PINRAIL_SUCCESS, create = PINRAIL_SUCCESS;
  int calls = 0;
};

pinrail_status_t call_at_the_end(void* context, pinrail_registration_t*, pinrail_reason_t) {
  auto* const at = static_cast<AtTheEnd*>(context);
  pinrail_mpool_t* pool = nullptr;
  ++at->calls;
  at->init = pinrail_init(nullptr);
  at->finalize = pinrail_finalize();
  const pinrail_registrar_t table = table_with(refuse_third);
  const pinrail_registrar_choice_t choice = lend(table);
  at->create = pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool);
  return PINRAIL_SUCCESS;
}

TEST_F(Finalize, a_function_that_it_runs_may_call_it_again_and_is_refused) {
  AtTheEnd at;
  pinrail_registrar_t table = table_with(refuse_third);
  table.context = &at;
  table.deregister_mem = call_at_the_end;
  Library library;
  pinrail_mpool_t* const pool = make_pool(table);
  pinrail_handle_t handle{};
  void* const addr = reinterpret_cast<void*>(kBase);  // NOLINT(performance-no-int-to-ptr)
  ASSERT_EQ(pinrail_mpool_register(pool, addr, kPage, 1, 0, &handle), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  library.status = PINRAIL_ERR_BUSY;  // finalized already
  EXPECT_EQ(at.calls, 1);
  EXPECT_EQ(at.init, PINRAIL_ERR_BUSY);
  EXPECT_EQ(at.finalize, PINRAIL_ERR_BUSY);
  EXPECT_EQ(at.create, PINRAIL_ERR_BUSY);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BAD_PARAM) << "it has ended";
}

TEST_F(Finalize, a_status_of_tail_init_that_does_not_exist_becomes_error) {
  const Library library;
  pinrail_registrar_t table = table_with(refuse_third);
  table.tail_size = 8;
  table.tail_init = [](void*, void*) { return static_cast<pinrail_status_t>(5); };
  Pool pool(table);
  EXPECT_EQ(pool.answer_to(kBase, kPage), PINRAIL_ERR_ERROR);
}

}  // namespace
}  // namespace pinrail::test
