// SPDX-License-Identifier: BSD-3-Clause
// refusal_test.cc - a call that is refused for its arguments says why, once for each kind and place, where the program
// wants to hear it.
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/events.h>
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "test/fake/fake_registrar.h"

namespace {

using pinrail::fake::FakeRegistrar;

struct Message {
  int level;
  std::string channel, text;
};

struct Wrong {
  std::string call;  // up to its parenthesis
  const char* why;
  std::function<pinrail_status_t()> make;
};

// A call, and what is wrong with it.
#define REFUSED(why, ...) Wrong({#__VA_ARGS__, why, [&] { return __VA_ARGS__; }})

class Refusal : public testing::Test {
 protected:
  void SetUp() override { pinrail_set_message_function(hear, this); }
  void TearDown() override {
    while (pinrail_finalize() == PINRAIL_SUCCESS) continue;
    pinrail_set_message_function(nullptr, nullptr);
  }

  static void hear(void* self, int level, const char* channel, const char* text) {
    static_cast<Refusal*>(self)->messages_.push_back({level, channel, text});
  }

  static pinrail_status_t start(const std::vector<pinrail_setting_t>& settings, const char* from = nullptr) {
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = settings.data();
    options.setting_count = settings.size();
    options.settings_from = from;
    return pinrail_init(&options);
  }

  void make_pool() {
    ASSERT_EQ(start({{"monitor", "external"}}), PINRAIL_SUCCESS);
    const pinrail_registrar_choice_t lent = {nullptr, fake_.table(), nullptr};
    ASSERT_EQ(pinrail_mpool_create("grdma", &lent, nullptr, nullptr, &pool_), PINRAIL_SUCCESS);
    messages_.clear();
  }

  size_t count(const std::string& part) const {
    size_t count = 0;
    for (const Message& message : messages_) count += message.text.find(part) != std::string::npos ? 1 : 0;
    return count;
  }
  std::string all() const {
    std::string all;
    for (const Message& message : messages_) all += "[" + message.channel + "] " + message.text + "\n";
    return all;
  }

  // Each is refused three times, and said the first time.
  void expect_said_once(const std::vector<Wrong>& wrong) {
    for (const Wrong& it : wrong) {
      const std::string call = it.call.substr(0, it.call.find('('));
      SCOPED_TRACE(it.call + ": " + it.why);
      messages_.clear();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(it.make(), PINRAIL_ERR_BAD_PARAM);
      ASSERT_EQ(messages_.size(), 1U) << all();
      EXPECT_EQ(count("called " + call + ", and "), 1U) << all();
      EXPECT_EQ(count(it.why), 1U) << all();
      EXPECT_EQ(messages_[0].channel, "base");
      EXPECT_EQ(messages_[0].level, 1);
      EXPECT_NE(messages_[0].text.back(), '\n');
    }
  }

  FakeRegistrar fake_;
  pinrail_mpool_t* pool_ = nullptr;
  std::vector<Message> messages_;
};

TEST_F(Refusal, each_wrong_argument_is_said_once_with_the_call_and_the_reason) {
  make_pool();
  char page[8192] = {};
  pinrail_handle_t handle{};
  pinrail_handle_t held{};
  ASSERT_EQ(pinrail_mpool_register(pool_, page, 64, 0, 0, &held), PINRAIL_SUCCESS);
  pinrail_handle_t stale = held;
  stale.generation += 1;
  pinrail_gpu_block_t block{};
  size_t offset = 0;
  pinrail_chunks_t chunks{};
  void* piece = nullptr;
  pinrail_mpool_t* made = nullptr;
  pinrail_mpool_stats_t stats{};
  pinrail_subscription_t* subscription = nullptr;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  const pinrail_registrar_choice_t unnamed = {nullptr, nullptr, page};
  const auto create = [&](auto change) {
    options = PINRAIL_MPOOL_OPTIONS_INIT;
    change();
    return pinrail_mpool_create("grdma", nullptr, nullptr, &options, &made);
  };
  char* const end = reinterpret_cast<char*>(UINTPTR_MAX - 10);  // NOLINT(performance-no-int-to-ptr)
  const std::vector<Wrong> wrong = {
      REFUSED("pool is NULL", pinrail_mpool_register(nullptr, page, 1, 0, 0, &handle)),
      REFUSED("handle_out is NULL", pinrail_mpool_register(pool_, page, 1, 0, 0, nullptr)),
      REFUSED("addr is NULL", pinrail_mpool_register(pool_, nullptr, 1, 0, 0, &handle)),
      REFUSED("length is 0", pinrail_mpool_register(pool_, page, 0, 0, 0, &handle)),
      REFUSED("beyond the address space", pinrail_mpool_register(pool_, end, 99, 0, 0, &handle)),
      REFUSED("over a quarter", pinrail_mpool_register(pool_, page, SIZE_MAX / 4 + 1, 0, 0, &handle)),
      REFUSED("access has bits", pinrail_mpool_register(pool_, page, 1, 0x100, 0, &handle)),
      REFUSED("flags has bits", pinrail_mpool_register(pool_, page, 1, 0, 0x100, &handle)),
      REFUSED("length is 0", pinrail_mpool_find(pool_, page, 0, 0, &handle)),
      REFUSED("access has bits", pinrail_mpool_find(pool_, page, 1, 0x100, &handle)),
      REFUSED("the handle is empty", pinrail_mpool_deregister({nullptr, 0})),
      REFUSED("names no registration", pinrail_mpool_deregister(stale)),
      REFUSED("pool is NULL", pinrail_mpool_evict(nullptr)),
      REFUSED("pool is NULL", pinrail_mpool_progress(nullptr)),
      REFUSED("pool is NULL", pinrail_mpool_ft_event(nullptr, PINRAIL_FT_CHECKPOINT)),
      REFUSED("no such state", pinrail_mpool_ft_event(pool_, static_cast<pinrail_ft_state_t>(99))),
      REFUSED("stats_out is NULL", pinrail_mpool_read_stats(pool_, nullptr)),
      REFUSED("stats_out->size", pinrail_mpool_read_stats(pool_, &stats)),
      REFUSED("a pointer is NULL", pinrail_mpool_events(pool_, nullptr, 1, nullptr, nullptr)),
      REFUSED("names no registration", pinrail_mpool_device_read(stale, 0, page, 1)),
      REFUSED("do not lie within", pinrail_mpool_device_read(held, 1 << 20, page, 1)),
      REFUSED("bytes is NULL", pinrail_mpool_device_write(held, 0, nullptr, 1)),
      REFUSED("names no registration", pinrail_mpool_record(stale, nullptr)),
      REFUSED("names no registration", pinrail_mpool_wait(stale, nullptr)),
      REFUSED("block_out or offset_out is NULL", pinrail_mpool_export(pool_, page, 1, nullptr, &offset)),
      REFUSED("length is 0", pinrail_mpool_export(pool_, page, 0, &block, &offset)),
      REFUSED("block or handle_out is NULL", pinrail_mpool_register_remote(pool_, nullptr, 0, 1, 0, 0, &handle)),
      REFUSED("length is 0", pinrail_mpool_register_remote(pool_, &block, 0, 0, 0, 0, &handle)),
      REFUSED("flags has bits", pinrail_mpool_register_remote(pool_, &block, 0, 1, 0, 0x100, &handle)),
      REFUSED("length is 0", pinrail_chunks_begin(pool_, page, 0, &chunks)),
      REFUSED("length_out is NULL", pinrail_chunks_next(&chunks, &piece, nullptr)),
      REFUSED("event or subscription_out is NULL", pinrail_monitor_subscribe(nullptr, nullptr, &subscription)),
      REFUSED("pool_out is NULL", pinrail_mpool_create(nullptr, nullptr, nullptr, nullptr, nullptr)),
      {"pinrail_mpool_create", "options->size", [&] { return create([&] { options.size = 1; }); }},
      REFUSED("registrar->native is set and registrar->name is NULL",
              pinrail_mpool_create("grdma", &unnamed, nullptr, nullptr, &made)),
      {"pinrail_mpool_create", "options->flags", [&] { return create([&] { options.flags = 0x100; }); }},
      {"pinrail_mpool_create", "options->leave_pinned", [&] { return create([&] { options.leave_pinned = 2; }); }},
      {"pinrail_mpool_create", "options->size_limit", [&] { return create([&] { options.size_limit = -1; }); }},
      {"pinrail_mpool_create", "options->count_limit", [&] { return create([&] { options.count_limit = -1; }); }},
      REFUSED("pool is NULL", pinrail_mpool_destroy(nullptr, 0)),
      REFUSED("flags has bits", pinrail_mpool_destroy(pool_, 0x100)),
      REFUSED("no such pool", pinrail_mpool_destroy(reinterpret_cast<pinrail_mpool_t*>(page), 0)),
      REFUSED("info_out is NULL", pinrail_param_at(0, nullptr)),
      REFUSED("info_out is NULL", pinrail_param_find("x", nullptr)),
      REFUSED("name or value is NULL", pinrail_param_set("x", nullptr)),
      REFUSED("info_out is NULL", pinrail_component_at(0, nullptr)),
      REFUSED("kind_out is NULL", pinrail_memory_kind_at(0, nullptr)),
  };
  expect_said_once(wrong);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS) << "nothing has changed";
}

TEST_F(Refusal, each_wrong_argument_about_pins_pieces_and_allocations_is_said_once) {
  make_pool();
  char page[8192] = {};
  pinrail_handle_t handle{};
  const pinrail_range_t range = {page, sizeof(page)}, empty = {page, 0};
  pinrail_pinned_t pinned;
  pinrail_prepin_t* prepin = nullptr;
  pinrail_prepin_progress_t progress{};
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_register_options_t with = PINRAIL_REGISTER_OPTIONS_INIT;
  pinrail_prepin_options_t pins = PINRAIL_PREPIN_OPTIONS_INIT;
  pinrail_chunk_options_t wrong_flags = PINRAIL_CHUNK_OPTIONS_INIT, wrong_size = PINRAIL_CHUNK_OPTIONS_INIT;
  wrong_flags.flags = 0x100;
  wrong_size.size = 1;
  pinrail_alloc_stats_t stats{};
  pinrail_registration_details_t details{};
  void* allocated = nullptr;
  size_t found = 0;
  const auto register_with = [&](auto change) {
    with = PINRAIL_REGISTER_OPTIONS_INIT;
    change();
    return pinrail_mpool_register_with(pool_, page, 1, 0, 0, &with, &handle);
  };
  const auto prepin_with = [&](auto change) {
    pins = PINRAIL_PREPIN_OPTIONS_INIT;
    change();
    return pinrail_mpool_prepin(pool_, &range, 1, 0, &pins, nullptr);
  };
  expect_said_once({
      REFUSED("handle_out is NULL", pinrail_mpool_register_with(pool_, page, 1, 0, 0, &with, nullptr)),
      {"pinrail_mpool_register_with", "options->size", [&] { return register_with([&] { with.size = 8; }); }},
      {"pinrail_mpool_register_with", "options->reserved", [&] { return register_with([&] { with.reserved = 1; }); }},
      {"pinrail_mpool_register_with", "options->dmabuf_fd is below",
       [&] { return register_with([&] { with.dmabuf_fd = -2; }); }},
      {"pinrail_mpool_register_with", "an offset and no dmabuf",
       [&] { return register_with([&] { with.dmabuf_offset = 1; }); }},
      {"pinrail_mpool_register_with", "in whole pages", [&] { return register_with([&] { with.iova = 1; }); }},
      REFUSED("reg or details_out is NULL", pinrail_registration_read_details(nullptr, &details)),
      REFUSED("ranges is NULL", pinrail_mpool_prepin(pool_, nullptr, 1, 0, nullptr, nullptr)),
      REFUSED("length is 0", pinrail_mpool_prepin(pool_, &empty, 1, 0, nullptr, nullptr)),
      {"pinrail_mpool_prepin", "options->flags", [&] { return prepin_with([&] { pins.flags = 0x100; }); }},
      {"pinrail_mpool_prepin", "options->numa_node", [&] { return prepin_with([&] { pins.numa_node = -2; }); }},
      {"pinrail_mpool_prepin", "options->size", [&] { return prepin_with([&] { pins.size = 8; }); }},
      REFUSED("pool is NULL", pinrail_mpool_prepin(nullptr, &range, 1, 0, nullptr, nullptr)),
      REFUSED("pool is NULL", pinrail_mpool_prepin_start(nullptr, &range, 1, 0, nullptr, &prepin)),
      REFUSED("prepin_out is NULL", pinrail_mpool_prepin_start(pool_, &range, 1, 0, nullptr, nullptr)),
      REFUSED("its size is not set", pinrail_prepin_read_progress(prepin, &progress)),
      REFUSED("prepin is NULL", pinrail_prepin_wait(nullptr, nullptr)),
      REFUSED("length is 0", pinrail_prepin_wait_range(nullptr, page, 0)),
      REFUSED("prepin is NULL", pinrail_prepin_cancel(nullptr)),
      REFUSED("prepin is NULL", pinrail_prepin_free(nullptr)),
      REFUSED("ranges is NULL", pinrail_mpool_unpin(pool_, nullptr, 1, 0)),
      REFUSED("length is 0", pinrail_mpool_query(pool_, page, 0, 0, &pinned, nullptr, 0, nullptr)),
      REFUSED("pinned_out is NULL", pinrail_mpool_query(pool_, page, 1, 0, nullptr, nullptr, 0, nullptr)),
      REFUSED("ranges_out is NULL", pinrail_mpool_query(pool_, page, 1, 0, &pinned, nullptr, 1, nullptr)),
      REFUSED("there is no such advice", pinrail_mpool_advise(pool_, page, 1, 0, static_cast<pinrail_advice_t>(7))),
      REFUSED("count_out is NULL", pinrail_mpool_left_out(pool_, nullptr, 0, nullptr)),
      REFUSED("entries_out is NULL", pinrail_mpool_left_out(pool_, nullptr, 1, &found)),
      REFUSED("stream_out is NULL", pinrail_chunk_stream_open(pool_, page, 1, 0, nullptr, nullptr)),
      REFUSED("length is 0", pinrail_chunk_stream_open(pool_, page, 0, 0, nullptr, &stream)),
      REFUSED("access has bits", pinrail_chunk_stream_open(pool_, page, 1, 0x100, nullptr, &stream)),
      REFUSED("options->flags", pinrail_chunk_stream_open(pool_, page, 1, 0, &wrong_flags, &stream)),
      REFUSED("options->size", pinrail_chunk_stream_open(pool_, page, 1, 0, &wrong_size, &stream)),
      REFUSED("stream or handle_out is NULL", pinrail_chunk_stream_next(nullptr, &handle, nullptr, nullptr)),
      REFUSED("stream is NULL", pinrail_chunk_stream_close(nullptr)),
      REFUSED("length is 0", pinrail_mpool_alloc(pool_, 0, 0, -1, &allocated)),
      REFUSED("alignment is not a power of two", pinrail_mpool_alloc(pool_, 1, 3, -1, &allocated)),
      REFUSED("numa_node is no node", pinrail_mpool_alloc(pool_, 1, 0, -9, &allocated)),
      REFUSED("addr is not an allocation", pinrail_mpool_realloc(pool_, page, 1, &allocated)),
      REFUSED("addr is not an allocation", pinrail_mpool_free(pool_, page)),
      REFUSED("stats_out->size", pinrail_mpool_alloc_read_stats(pool_, &stats)),
      REFUSED("machine_out is NULL", pinrail_machine_read(nullptr)),
  });
}

// The registrar alone knows that a stream is of another context, or that bytes cannot be accessed.
TEST_F(Refusal, what_the_registrar_finds_wrong_with_an_argument_is_said_too) {
  make_pool();
  pinrail_registrar_t table = *fake_.table();
  table.on_demand = PINRAIL_ON_DEMAND_EXPLICIT;
  table.device_read = [](void*, const pinrail_registration_t*, size_t, void*, size_t) { return PINRAIL_ERR_BAD_PARAM; };
  table.device_write = [](void*, const pinrail_registration_t*, size_t, const void*, size_t) {
    return PINRAIL_ERR_BAD_PARAM;
  };
  table.record = [](void*, pinrail_registration_t*, void*) { return PINRAIL_ERR_BAD_PARAM; };
  table.wait = table.record;
  table.advise = [](void*, const pinrail_registration_t*, size_t, size_t, pinrail_advice_t) {
    return PINRAIL_ERR_BAD_PARAM;
  };
  const pinrail_registrar_choice_t lent = {nullptr, &table, nullptr};
  pinrail_mpool_t* pool = nullptr;
  ASSERT_EQ(pinrail_mpool_create("grdma", &lent, "other", nullptr, &pool), PINRAIL_SUCCESS);
  char page[64] = {};
  pinrail_handle_t held{};
  ASSERT_EQ(pinrail_mpool_register(pool, page, sizeof(page), 0, 0, &held), PINRAIL_SUCCESS);
  expect_said_once({
      REFUSED("cannot be accessed", pinrail_mpool_device_read(held, 0, page, 1)),
      REFUSED("cannot be accessed", pinrail_mpool_device_write(held, 0, page, 1)),
      REFUSED("the stream is not valid", pinrail_mpool_record(held, page)),
      REFUSED("the stream is not valid", pinrail_mpool_wait(held, page)),
      REFUSED("refuses advice", pinrail_mpool_advise(pool, page, sizeof(page), 0, PINRAIL_ADVICE_PREFETCH)),
  });
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
}

TEST_F(Refusal, what_is_an_answer_is_not_said) {
  make_pool();
  char page[64] = {};
  pinrail_handle_t handle{};
  EXPECT_EQ(pinrail_mpool_find(pool_, page, 64, 0, &handle), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_evict(pool_), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool_, nullptr, 1), PINRAIL_ERR_BAD_PARAM) << "it may run in a handler";
  EXPECT_EQ(all(), "");
}

// A signal handler may have interrupted a call that holds a lock; a message function stands for one.
TEST_F(Refusal, calls_on_gpu_memory_inside_another_call_are_busy) {
  make_pool();
  struct Inner {
    pinrail_mpool_t* pool;
    pinrail_status_t exported, registered;
  } inner = {pool_, PINRAIL_SUCCESS, PINRAIL_SUCCESS};
  const auto call = [](void* arg, int, const char*, const char*) {
    auto* const self = static_cast<Inner*>(arg);
    char byte;
    size_t offset;
    pinrail_gpu_block_t block{};
    pinrail_handle_t handle;
    self->exported = pinrail_mpool_export(self->pool, &byte, 1, &block, &offset);
    self->registered = pinrail_mpool_register_remote(self->pool, &block, 0, 1, 0, 0, &handle);
  };
  pinrail_set_message_function(call, &inner);
  EXPECT_EQ(pinrail_mpool_destroy(nullptr, 0), PINRAIL_ERR_BAD_PARAM);
  pinrail_set_message_function(nullptr, nullptr);  // `inner` ends before the pool does
  EXPECT_EQ(inner.exported, PINRAIL_ERR_BUSY);
  EXPECT_EQ(inner.registered, PINRAIL_ERR_BUSY);
}

TEST_F(Refusal, before_init_it_is_said_that_init_is_missing) {
  ASSERT_EQ(start({}), PINRAIL_SUCCESS);  // forgets what was said before
  ASSERT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  pinrail_mpool_t* pool = nullptr;
  pinrail_subscription_t* subscription = nullptr;
  EXPECT_EQ(pinrail_mpool_create(nullptr, nullptr, nullptr, nullptr, &pool), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_monitor_subscribe([](void*, void*, size_t) {}, nullptr, &subscription), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(count("pinrail_init() comes first"), 3U) << all();
}

TEST_F(Refusal, options_of_init_are_those_of_an_older_header_or_wrong) {
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings_from = "nonsense beyond what an older program has";
  options.size = offsetof(pinrail_init_options_t, settings_from);
  EXPECT_EQ(pinrail_init(&options), PINRAIL_SUCCESS) << all();
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  const size_t inside_a_field = offsetof(pinrail_init_options_t, settings_from) + 4;
  for (const size_t size : {size_t{0}, options.size - 1, inside_a_field, sizeof(options) - 1, sizeof(options) + 1}) {
    options.size = size;
    EXPECT_EQ(pinrail_init(&options), PINRAIL_ERR_BAD_PARAM) << size;
  }
  EXPECT_EQ(count("options->size is not"), 1U) << all();
  options = PINRAIL_INIT_OPTIONS_INIT;
  options.setting_count = 1;
  EXPECT_EQ(pinrail_init(&options), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(count("no name or no value"), 1U) << all();
}

// What lies behind options of another size is not the caller's to give: here it is not even mapped.
TEST_F(Refusal, options_of_another_size_are_not_read_beyond_it) {
  make_pool();
  const size_t page = 4096;
  auto* const memory =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + page, page, PROT_NONE), 0);
  char* const last_word = memory + page - sizeof(size_t);
  const size_t size = sizeof(size_t);
  std::memcpy(last_word, &size, sizeof(size));
  pinrail_mpool_t* pool = nullptr;
  pinrail_handle_t handle{};
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_prepin_t* prepin = nullptr;
  const pinrail_range_t range = {memory, page};
  const auto* const init = reinterpret_cast<pinrail_init_options_t*>(last_word);
  EXPECT_EQ(pinrail_init(init), PINRAIL_ERR_BAD_PARAM);
  const auto* const create = reinterpret_cast<pinrail_mpool_options_t*>(last_word);
  EXPECT_EQ(pinrail_mpool_create("grdma", nullptr, nullptr, create, &pool), PINRAIL_ERR_BAD_PARAM);
  const auto* const options = reinterpret_cast<pinrail_register_options_t*>(last_word);
  EXPECT_EQ(pinrail_mpool_register_with(pool_, memory, page, 0, 0, options, &handle), PINRAIL_ERR_BAD_PARAM);
  const auto* const chunks = reinterpret_cast<pinrail_chunk_options_t*>(last_word);
  EXPECT_EQ(pinrail_chunk_stream_open(pool_, memory, page, 0, chunks, &stream), PINRAIL_ERR_BAD_PARAM);
  const auto* const pins = reinterpret_cast<pinrail_prepin_options_t*>(last_word);
  EXPECT_EQ(pinrail_mpool_prepin(pool_, &range, 1, 0, pins, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_prepin_start(pool_, &range, 1, 0, pins, &prepin), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(count("options->size is not sizeof("), 6U) << all();
  munmap(memory, 2 * page);
}

TEST_F(Refusal, a_lent_table_that_ends_inside_a_field_is_refused) {
  make_pool();
  pinrail_registrar_t table = *fake_.table();
  const pinrail_registrar_choice_t lent = {nullptr, &table, nullptr};
  pinrail_mpool_t* pool = nullptr;
  for (const size_t field : {offsetof(pinrail_registrar_t, tail_init), offsetof(pinrail_registrar_t, advise)}) {
    table.size = field;
    EXPECT_EQ(pinrail_mpool_create("grdma", &lent, nullptr, nullptr, &pool), PINRAIL_SUCCESS) << "an older header's";
    EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
    for (const size_t more : {size_t{1}, size_t{4}}) {
      table.size = field + more;
      EXPECT_EQ(pinrail_mpool_create("grdma", &lent, nullptr, nullptr, &pool), PINRAIL_ERR_BAD_PARAM) << table.size;
    }
  }
  EXPECT_EQ(count("its size is impossible"), 1U) << all();
}

TEST_F(Refusal, what_is_filled_in_is_filled_in_by_whole_fields) {
  make_pool();
  pinrail_component_info_t component{};
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_ERR_BAD_PARAM) << "size is 0";
  component.size = offsetof(pinrail_component_info_t, name) + 4;
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_ERR_BAD_PARAM);
  component.size = offsetof(pinrail_component_info_t, name);
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_SUCCESS);
  EXPECT_EQ(component.name, nullptr);
  pinrail_memory_kind_t kind{};
  kind.size = offsetof(pinrail_memory_kind_t, name) + 4;
  EXPECT_EQ(pinrail_memory_kind_at(0, &kind), PINRAIL_ERR_BAD_PARAM);
  pinrail_param_info_t parameter{};
  EXPECT_EQ(pinrail_param_find("leave_pinned", &parameter), PINRAIL_ERR_BAD_PARAM) << "size is 0";
  parameter.size = offsetof(pinrail_param_info_t, name) + 4;
  EXPECT_EQ(pinrail_param_at(0, &parameter), PINRAIL_ERR_BAD_PARAM);
  pinrail_machine_t machine{};
  machine.size = offsetof(pinrail_machine_t, source) + 4;
  EXPECT_EQ(pinrail_machine_read(&machine), PINRAIL_ERR_BAD_PARAM);
  machine.size = offsetof(pinrail_machine_t, default_limit_from) + 8;  // a text without its end
  EXPECT_EQ(pinrail_machine_read(&machine), PINRAIL_ERR_BAD_PARAM);
  machine.size = offsetof(pinrail_machine_t, default_limit_from);
  EXPECT_EQ(pinrail_machine_read(&machine), PINRAIL_SUCCESS);
  EXPECT_EQ(count("called pinrail_machine_read, and"), 1U) << all();
  pinrail_mpool_stats_t stats{};
  const size_t older = offsetof(pinrail_mpool_stats_t, misses_cold);
  std::memset(reinterpret_cast<char*>(&stats) + older, 0x5a, sizeof(stats) - older);
  stats.size = older;
  char page[64] = {};
  pinrail_handle_t handle{};
  ASSERT_EQ(pinrail_mpool_register(pool_, page, sizeof(page), 0, PINRAIL_FLAG_CACHE_BYPASS, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_read_stats(pool_, &stats), PINRAIL_SUCCESS);
  EXPECT_EQ(stats.size, older);
  EXPECT_EQ(stats.misses, 1U);
  EXPECT_EQ(stats.misses_cold, 0x5a5a5a5a5a5a5a5aU);
}

TEST_F(Refusal, a_setting_is_called_what_its_giver_calls_it) {
  EXPECT_EQ(start({{"mpool_grdma_size_limit", "lots"}}), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(count("\"lots\" for parameter mpool_grdma_size_limit, from the program"), 1U) << all();
  EXPECT_EQ(start({{"mpool_grdma_size_limit", "lots"}}, "the job script"), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(count("mpool_grdma_size_limit, from the job script"), 1U) << all();
  EXPECT_EQ(count("command line"), 0U) << all();
}

TEST_F(Refusal, setting_what_does_not_exist_names_no_value) {
  make_pool();
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbos", "1"), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(count("nothing changed."), 1U) << all();
  EXPECT_EQ(count("its value"), 0U) << all();
  EXPECT_EQ(pinrail_param_set("mpool", "grdma"), PINRAIL_ERR_PERM);
  EXPECT_EQ(count("nothing changed; its value is empty."), 1U) << all();
}

TEST_F(Refusal, a_name_that_is_left_out_must_exist) {
  EXPECT_EQ(start({{"registrar", "^verbz"}}), PINRAIL_SUCCESS);
  EXPECT_EQ(count("leaves registrar component \"verbz\" out, but there is none of that name"), 1U) << all();
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  messages_.clear();
  EXPECT_EQ(start({{"registrar", "^verbs,mlock"}}), PINRAIL_SUCCESS) << "also where verbs was not built";
  EXPECT_EQ(count("leaves registrar"), 0U) << all();
}

TEST_F(Refusal, a_registrar_that_cannot_be_used_is_named_with_the_reason) {
  ASSERT_EQ(start({{"monitor", "external"}, {"registrar_cuda_ipc_library", "no_such_driver.so"}}), PINRAIL_SUCCESS);
  messages_.clear();
  const pinrail_registrar_choice_t named = {"cuda_ipc", nullptr, nullptr};
  EXPECT_EQ(pinrail_mpool_create("grdma", &named, nullptr, nullptr, &pool_), PINRAIL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(count("the registrar \"cuda_ipc\" cannot be used here: "), 1U) << all();
  EXPECT_GE(count("no_such_driver.so"), 1U) << all();
}

TEST_F(Refusal, an_index_that_does_not_exist_is_named) {
  ASSERT_EQ(start({{"monitor", "external"}, {"mpool_grdma_rcache_name", "no_such_index"}}), PINRAIL_SUCCESS);
  const pinrail_registrar_choice_t lent = {nullptr, fake_.table(), nullptr};
  EXPECT_EQ(pinrail_mpool_create("grdma", &lent, nullptr, nullptr, &pool_), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(count("\"no_such_index\" was requested, but is not loaded"), 1U) << all();
}

TEST_F(Refusal, without_a_function_messages_go_to_stderr_again) {
  pinrail_set_message_function(nullptr, nullptr);
  testing::internal::CaptureStderr();
  EXPECT_EQ(pinrail_mpool_evict(nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("[pinrail:base] call refused\n"), std::string::npos);
  EXPECT_EQ(all(), "");
}

TEST(StatusText, every_status_has_its_own_clause) {
  std::string before;
  for (int status = PINRAIL_SUCCESS; status >= PINRAIL_ERR_VERSION; --status) {
    const std::string text = pinrail_status_text(static_cast<pinrail_status_t>(status));
    EXPECT_GT(text.size(), 8U) << status;
    EXPECT_EQ(before.find("<" + text + ">"), std::string::npos) << text;
    before += "<" + text + ">";
  }
  EXPECT_STREQ(pinrail_status_text(static_cast<pinrail_status_t>(-99)), "a status that this library does not know");
}

}  // namespace
