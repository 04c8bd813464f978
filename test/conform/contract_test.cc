// SPDX-License-Identifier: BSD-3-Clause
// contract_test.cc - what an embedder, a registrar or a component must not do is refused, or ends a debug build, with
// the rule by name (C1, C6, C7).
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "test/fake/fake_registrar.h"

namespace {

using pinrail::fake::FakeOptions;
using pinrail::fake::FakeRegistrar;

#ifdef PINRAIL_DEBUG
constexpr bool kDebug = true;
#else
constexpr bool kDebug = false;
#endif

class Contract : public testing::Test {
 protected:
  Contract() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  void SetUp() override { pinrail_set_message_function(hear, this); }
  void TearDown() override {
    stop();
    pinrail_set_message_function(nullptr, nullptr);
    unsetenv("PINRAIL_TEST_BREAKS");
  }

  static void hear(void* self, int, const char*, const char* text) {
    static_cast<Contract*>(self)->said_ += std::string(text) + "\n";
  }

  void start(std::vector<pinrail_setting_t> settings = {}) {
    settings.push_back({"monitor", "external"});
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = settings.data();
    options.setting_count = settings.size();
    ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS) << said_;
    is_started_ = true;
  }
  void make_pool(const FakeOptions& options = {}, std::vector<pinrail_setting_t> settings = {}) {
    fake_ = std::make_unique<FakeRegistrar>(options);
    start(std::move(settings));
    const pinrail_registrar_choice_t lent = {nullptr, fake_->table(), nullptr};
    ASSERT_EQ(pinrail_mpool_create("grdma", &lent, nullptr, nullptr, &pool_), PINRAIL_SUCCESS);
  }
  void stop() {
    pinrail_mpool_t* const pool = std::exchange(pool_, nullptr);
    EXPECT_TRUE(pool == nullptr || pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS);
    EXPECT_TRUE(!std::exchange(is_started_, false) || pinrail_finalize() == PINRAIL_SUCCESS);
  }
  pinrail_status_t add(pinrail_handle_t* handle) { return pinrail_mpool_register(pool_, page_, 64, 0, 0, handle); }
  bool says(const char* words) const { return said_.find(words) != std::string::npos; }

  alignas(4096) char page_[8192] = {};
  std::unique_ptr<FakeRegistrar> fake_;  // as long as the pool
  pinrail_mpool_t* pool_ = nullptr;
  bool is_started_ = false;
  std::string said_;
};

TEST_F(Contract, a_registrar_that_overwrites_a_field_fails_the_request_with_the_rule_and_harms_nothing_else) {
  using Reg = pinrail_registration_t*;
  void (*const overwrites[])(Reg) = {[](Reg reg) { reg->pool = nullptr; },
                                     [](Reg reg) { reg->pool = reinterpret_cast<pinrail_mpool_t*>(reg); },
                                     [](Reg reg) { reg->state ^= uint64_t{1} << 20; }, [](Reg reg) { reg->flags = 77; },
                                     [](Reg reg) { reg->tail_size = 4096; }};
  for (const auto& overwrite : overwrites) {
    SCOPED_TRACE(&overwrite - overwrites);
    said_.clear();
    make_pool();
    fake_->on_register([&](const pinrail_register_request_t&, Reg reg) { overwrite(reg); });
    pinrail_handle_t handle{};
    EXPECT_EQ(add(&handle), PINRAIL_ERR_ERROR);
    EXPECT_TRUE(says("(rule C6)")) << said_;
    EXPECT_EQ(fake_->live_count(), 0U) << "the registration with the device is undone";
    fake_->on_register(nullptr);
    ASSERT_EQ(add(&handle), PINRAIL_SUCCESS) << said_;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    stop();
  }
}

TEST_F(Contract, an_embedder_that_overwrites_the_pool_or_the_state_of_a_registration_is_refused) {
  make_pool();
  pinrail_handle_t handle{};
  ASSERT_EQ(pinrail_mpool_register(pool_, page_, 64, 0, PINRAIL_FLAG_CACHE_BYPASS, &handle), PINRAIL_SUCCESS);
  pinrail_mpool_t* const pool = std::exchange(handle.reg->pool, nullptr);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_TRUE(says("(rule C6)")) << said_;
  handle.reg->pool = pool;
  const uint64_t state = std::exchange(handle.reg->state, 0);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_TRUE(says("names no registration that is still held")) << said_;
  handle.reg->state = state;
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
}

using ContractDeathTest = Contract;

TEST_F(ContractDeathTest, in_a_debug_build_another_pool_in_a_registration_ends_the_process) {
  if (!kDebug) GTEST_SKIP() << "only builds with --enable-debug look for that";
  make_pool();
  pinrail_handle_t handle{};
  ASSERT_EQ(pinrail_mpool_register(pool_, page_, 64, 0, PINRAIL_FLAG_CACHE_BYPASS, &handle), PINRAIL_SUCCESS);
  pinrail_mpool_t* const pool = handle.reg->pool;
  EXPECT_DEATH(
      {
        handle.reg->pool = reinterpret_cast<pinrail_mpool_t*>(page_);
        pinrail_mpool_deregister(handle);
      },
      "rule C6");
  handle.reg->pool = pool;
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
}

TEST_F(ContractDeathTest, in_a_debug_build_a_byte_past_the_tail_ends_the_process) {
  if (!kDebug) GTEST_SKIP() << "only builds with --enable-debug have guard words";
  for (const size_t tail : {size_t{8}, size_t{64}, size_t{200}}) {
    SCOPED_TRACE(tail);
    EXPECT_DEATH(
        {
          make_pool(options_with(&FakeOptions::tail_size, tail));
          fake_->on_register([tail](const pinrail_register_request_t&, pinrail_registration_t* reg) {
            static_cast<char*>(pinrail_registration_tail(reg))[tail] = 1;
          });
          pinrail_handle_t handle{};
          const pinrail_status_t status = add(&handle);
          std::fprintf(stderr, "it went on: %s\n%s", pinrail_status_name(status), said_.c_str());
        },
        "past the tail.*rule C6");
  }
}

TEST_F(ContractDeathTest, in_a_debug_build_a_range_that_is_cleared_as_it_is_deregistered_ends_the_process) {
  if (!kDebug) GTEST_SKIP() << "only builds with --enable-debug look for that";
  EXPECT_DEATH(
      {
        make_pool();
        fake_->on_deregister([](pinrail_registration_t* reg, pinrail_reason_t) { reg->base = nullptr; });
        pinrail_handle_t handle{};
        add(&handle);
        pinrail_mpool_deregister(handle);
        std::fprintf(stderr, "it went on: %s\n", said_.c_str());
        pinrail_mpool_evict(pool_);
      },
      "base or length.*rule C6");
}

// registrar.h: the tail is zeroed, also for the second attempt of a request, and made and finished once for each.
TEST_F(Contract, a_tail_is_zeroed_before_each_attempt) {
  FakeOptions options;
  options.tail_size = 200;
  options.tail_hooks = true;
  make_pool(options, {{"mpool_grdma_extent", "0"}});  // else one registration may answer for both pages
  fake_->set_capacity(SIZE_MAX, 1);
  int dirty = 0;
  fake_->on_register([&dirty](const pinrail_register_request_t&, pinrail_registration_t* reg) {
    char* const tail = static_cast<char*>(pinrail_registration_tail(reg));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tail) % 64, 0U);
    for (int i = 0; i < 200; ++i) dirty += tail[i] != 0 ? 1 : 0;
    std::memset(tail, 0x5a, 200);
  });
  pinrail_handle_t handle{};
  for (const size_t offset : {size_t{0}, size_t{4096}}) {
    ASSERT_EQ(pinrail_mpool_register(pool_, page_ + offset, 64, 0, 0, &handle), PINRAIL_SUCCESS) << said_;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(fake_->register_calls(), 3U) << "the second range was tried twice";
  EXPECT_EQ(dirty, 0);
  EXPECT_EQ(fake_->tails_made(), 3U);
  EXPECT_EQ(fake_->tails_finished(), 2U) << "the second range is cached";
  stop();
  EXPECT_EQ(fake_->tails_finished(), 3U);
  EXPECT_EQ(fake_->violations(), std::vector<std::string>{});
}

// C4: the creator is told why.
TEST_F(Contract, a_pool_of_other_memory_than_the_registrars_is_refused_with_a_message) {
  start();
  for (const auto& [pool, kind] : {std::pair{"gpusm", PINRAIL_KIND_HOST}, std::pair{"rgpusm", PINRAIL_KIND_HOST},
                                   std::pair{"grdma", PINRAIL_KIND_GPU}, std::pair{"mrall", PINRAIL_KIND_GPU},
                                   std::pair{"odp", PINRAIL_KIND_GPU}}) {
    FakeRegistrar fake(options_with(&FakeOptions::kinds, kind));
    const pinrail_registrar_choice_t lent = {nullptr, fake.table(), nullptr};
    said_.clear();
    EXPECT_EQ(pinrail_mpool_create(pool, &lent, nullptr, nullptr, &pool_), PINRAIL_ERR_NOT_SUPPORTED);
    EXPECT_TRUE(says((std::string("\"") + pool + "\" does not take the registrar").c_str())) << pool << ": " << said_;
  }
}

// C5: pools of GPU memory ask the registrar on each call.
TEST_F(Contract, a_status_of_identify_that_does_not_exist_becomes_error) {
  FakeOptions options;
  options.kinds = PINRAIL_KIND_GPU;
  options.tail_size = sizeof(pinrail_gpu_block_t);
  fake_ = std::make_unique<FakeRegistrar>(options);
  pinrail_registrar_t table = *fake_->table();
  table.identify = [](void*, const void*, pinrail_gpu_range_t*) { return static_cast<pinrail_status_t>(5); };
  start();
  const pinrail_registrar_choice_t lent = {nullptr, &table, nullptr};
  ASSERT_EQ(pinrail_mpool_create("gpusm", &lent, nullptr, nullptr, &pool_), PINRAIL_SUCCESS) << said_;
  pinrail_handle_t handle{};
  EXPECT_EQ(add(&handle), PINRAIL_ERR_ERROR);
  EXPECT_EQ(pinrail_mpool_find(pool_, page_, 64, 0, &handle), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(Contract, a_status_of_an_optional_function_that_does_not_exist_becomes_error) {
  fake_ = std::make_unique<FakeRegistrar>(options_with(&FakeOptions::tail_size, 8));
  pinrail_registrar_t table = *fake_->table();
  const pinrail_registrar_choice_t lent = {nullptr, &table, nullptr};
  start();
  table.tail_init = [](void*, void*) { return static_cast<pinrail_status_t>(5); };
  ASSERT_EQ(pinrail_mpool_create("grdma", &lent, "first", nullptr, &pool_), PINRAIL_SUCCESS) << said_;
  pinrail_handle_t handle{};
  EXPECT_EQ(add(&handle), PINRAIL_ERR_ERROR);
  EXPECT_TRUE(says("a status that does not exist")) << said_;
  EXPECT_EQ(fake_->live_count(), 0U);
  EXPECT_EQ(pinrail_mpool_destroy(pool_, 0), PINRAIL_SUCCESS);

  table.tail_init = nullptr;
  table.record = [](void*, pinrail_registration_t*, void*) { return static_cast<pinrail_status_t>(5); };
  ASSERT_EQ(pinrail_mpool_create("grdma", &lent, "second", nullptr, &pool_), PINRAIL_SUCCESS) << said_;
  ASSERT_EQ(add(&handle), PINRAIL_SUCCESS) << said_;
  EXPECT_EQ(pinrail_mpool_record(handle, nullptr), PINRAIL_ERR_ERROR);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
}

// The component is a file of its own, which breaks its contract on request (test/conform/dso).
struct Breaks {
  const char* what;
  pinrail_status_t status;  // of create()
  std::vector<const char*> said;
};

TEST_F(Contract, a_component_that_breaks_its_contract_is_not_used_and_named_with_the_rule) {
  const Breaks all[] = {
      {"nothing", PINRAIL_SUCCESS, {}},
      {"size", PINRAIL_ERR_BAD_PARAM, {"its size is 8", "(rule C1)"}},
      {"param", PINRAIL_ERR_NOT_FOUND, {"registrar_contract", "\"depth\"", "(rule C7)"}},
      {"status of open", PINRAIL_ERR_ERROR, {"it returned a status that does not exist"}},
      {"status of create", PINRAIL_ERR_ERROR, {"it returned a status that does not exist"}},
      {"throws in open", PINRAIL_ERR_ERROR, {"ERROR (it threw an exception)"}},
      {"throws in create", PINRAIL_ERR_ERROR, {"ERROR (it threw an exception)"}},
      {"throws in destroy", PINRAIL_SUCCESS, {"destroy() (rule C4)"}},  // and has ended
      {"throws in close", PINRAIL_SUCCESS, {"close() (rule C4)"}},
      // One message; the last, for the file stays as it is.
      {"functions", PINRAIL_ERR_ERROR, {"registrar_contract.so: it lacks a function that is not optional"}}};
  for (const Breaks& breaks : all) {
    SCOPED_TRACE(breaks.what);
    said_.clear();
    setenv("PINRAIL_TEST_BREAKS", breaks.what, 1);
    start({{"mca_base_component_path", PINRAIL_TEST_BUILD "/test/conform/.libs"
                                                          ":" PINRAIL_TEST_BUILD "/components/.libs"}});
    const pinrail_registrar_choice_t choice = {"contract", nullptr, nullptr};
    EXPECT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool_), breaks.status) << said_;
    stop();
    if (!breaks.said.empty()) {
      EXPECT_TRUE(says("contract")) << said_;
    }
    for (const char* const words : breaks.said) EXPECT_TRUE(says(words)) << said_;
  }
}

}  // namespace
