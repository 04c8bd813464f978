// SPDX-License-Identifier: BSD-3-Clause
// perf_options_test.cc - the command line of pinrail_perf.
#include <gtest/gtest.h>

#include <sstream>

#include "contrib/tools/perf/options.h"

namespace pinrail::perf {
namespace {

std::string why;  // what the last command line was refused with

std::optional<int> parse(std::vector<const char*> words, Options* options) {
  words.insert(words.begin(), "pinrail_perf");
  std::ostringstream out, err;
  const std::optional<int> status = read_options(static_cast<int>(words.size()), words.data(), options, out, err);
  why = err.str();
  return status;
}

void expect_refused(const std::vector<const char*>& words, const std::string& named) {
  Options options;
  EXPECT_EQ(parse(words, &options), 2);
  EXPECT_NE(why.find(named), std::string::npos) << why;
}

TEST(PerfOptions, without_a_word_it_is_the_table_on_the_best_registrar) {
  Options options;
  ASSERT_EQ(parse({}, &options), std::nullopt);
  EXPECT_TRUE(options.traces.empty());
  EXPECT_TRUE(options.pool.empty());
  EXPECT_TRUE(options.registrar.empty());
  EXPECT_EQ(options.sizes.front(), 4096u);
  EXPECT_EQ(options.sizes.back(), size_t{16} << 20);
}

TEST(PerfOptions, every_option_reaches_its_place) {
  Options options;
  ASSERT_EQ(parse({"--mca", "mpool_grdma_size_limit", "8M", "--pool", "grdma", "--registrar=mlock", "--size", "4K,1M",
                   "--regions", "64", "--threads", "2", "--iterations", "1000", "--json", "--mca", "monitor", "^uffd"},
                  &options),
            std::nullopt)
      << why;
  EXPECT_EQ(options.pool, "grdma");
  EXPECT_EQ(options.registrar, "mlock");
  EXPECT_EQ(options.sizes, (std::vector<size_t>{4096, 1 << 20}));
  EXPECT_EQ(options.regions, 64u);
  EXPECT_EQ(options.threads, 2u);
  EXPECT_EQ(options.iterations, 1000u);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.mca, (tools::Pairs{{"mpool_grdma_size_limit", "8M"}, {"monitor", "^uffd"}}));
}

TEST(PerfOptions, a_wrong_value_is_named_with_its_option) {
  for (const char* name : {"--regions", "--threads", "--iterations"}) {
    for (const char* value : {"0", "-3", "many", ""}) {
      expect_refused({name, value}, std::string(name) + ": \"" + value + "\"");
    }
  }
  expect_refused({"--size", "4K,banana"}, "--size: 'banana' is not a size");
  expect_refused({"--pool", ""}, "--pool: its value is empty");
}

TEST(PerfOptions, a_trace_leaves_no_room_for_options_of_the_table) {
  Options options;
  ASSERT_EQ(parse({"--trace", "a.trace.xz", "--json"}, &options), std::nullopt);
  EXPECT_EQ(options.traces, (std::vector<std::string>{"a.trace.xz"}));
  expect_refused({"--trace", "a", "--threads", "2"}, "--threads");
  expect_refused({"--size", "4K", "--trace", "a"}, "--size");
}

TEST(PerfOptions, a_replay_takes_several_traces_and_how_they_are_replayed) {
  Options options;
  ASSERT_EQ(parse({"--trace", "a", "b", "--cost", "1900,0.5", "--compare", "--limit", "8M", "--touch", "asked",
                   "--trace", "c"},
                  &options),
            std::nullopt)
      << why;
  EXPECT_EQ(options.traces, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(options.cost.ms(1000, 2000000), 2.9);
  EXPECT_TRUE(options.compare);
  EXPECT_EQ(options.limit, size_t{8} << 20);
  EXPECT_EQ(options.touch, Touch::when_asked);
}

TEST(PerfOptions, what_belongs_to_a_replay_is_refused_without_one_and_when_it_is_malformed) {
  for (const char* const alone : {"--exact", "--compare"}) expect_refused({alone}, alone);
  expect_refused({"--limit", "8M"}, "--limit");
  expect_refused({"--trace", "a", "--exact", "--compare"}, "--compare");
  for (const char* const cost : {"8000", "8000,", ",1", "-1,1", "1,-1", "nan,1", "1,2,3", "inf,1", "x,y"})
    expect_refused({"--trace", "a", "--cost", cost}, std::string("\"") + cost + "\" is not two numbers");
  expect_refused({"--trace", "a", "--touch", "never"}, "\"never\" is neither");
  expect_refused({"--trace", "a", "--limit", "0"}, "--limit");
  expect_refused({"--trace", ""}, "--trace: its value is empty");
}

}  // namespace
}  // namespace pinrail::perf
