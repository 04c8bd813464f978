// SPDX-License-Identifier: BSD-3-Clause
// perf_options_test.cc - the command line of pinrail_perf.
#include <gtest/gtest.h>

#include "contrib/tools/perf/options.h"

namespace pinrail::perf {
namespace {

Result parse(std::vector<std::string> words, Options* options) {
  words.insert(words.begin(), "pinrail_perf");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(words.size()), argv.data(), options);
}

std::string refusal(const std::vector<std::string>& words) {
  Options options;
  const Result parsed = parse(words, &options);
  EXPECT_FALSE(parsed.ok());
  return parsed.why();
}

TEST(PerfOptions, without_a_word_it_is_the_table_on_the_best_registrar) {
  Options options;
  ASSERT_TRUE(parse({}, &options).ok());
  EXPECT_EQ(options.action, Action::table);
  EXPECT_TRUE(options.pool.empty());
  EXPECT_TRUE(options.registrar.empty());
  EXPECT_EQ(options.sizes.front(), 4096u);
  EXPECT_EQ(options.sizes.back(), size_t{16} << 20);
}

TEST(PerfOptions, every_option_reaches_its_place) {
  Options options;
  ASSERT_TRUE(
      parse({"--mca", "mpool_grdma_size_limit", "8M", "--pool", "grdma", "--registrar=mlock", "--size", "4K,1M",
             "--regions", "64", "--threads", "2", "--iterations", "1000", "--json", "--mca", "monitor", "^uffd"},
            &options)
          .ok());
  EXPECT_EQ(options.pool, "grdma");
  EXPECT_EQ(options.registrar, "mlock");
  EXPECT_EQ(options.sizes, (std::vector<size_t>{4096, 1 << 20}));
  EXPECT_EQ(options.regions, 64u);
  EXPECT_EQ(options.threads, 2u);
  EXPECT_EQ(options.iterations, 1000u);
  EXPECT_TRUE(options.json);
  ASSERT_EQ(options.mca.settings().size(), 2u);
  EXPECT_STREQ(options.mca.settings()[0].name, "mpool_grdma_size_limit");
  EXPECT_STREQ(options.mca.settings()[0].value, "8M");
  EXPECT_STREQ(options.mca.settings()[1].value, "^uffd");
}

TEST(PerfOptions, a_wrong_value_is_named_with_its_option) {
  for (const char* name : {"--regions", "--threads", "--iterations"}) {
    for (const char* value : {"0", "-3", "many", ""}) {
      const std::string why = refusal({name, value});
      EXPECT_NE(why.find(name), std::string::npos) << why;
      EXPECT_NE(why.find("'" + std::string(value) + "'"), std::string::npos) << why;
    }
  }
  const std::string why = refusal({"--size", "4K,banana"});
  EXPECT_NE(why.find("--size"), std::string::npos) << why;
  EXPECT_NE(why.find("banana"), std::string::npos) << why;
}

TEST(PerfOptions, unknown_options_and_stray_words_are_named) {
  EXPECT_NE(refusal({"--sise", "4K"}).find("'--sise'"), std::string::npos);
  EXPECT_NE(refusal({"-q"}).find("'-q'"), std::string::npos);
  EXPECT_NE(refusal({"--json", "4K"}).find("'4K'"), std::string::npos);
  EXPECT_NE(refusal({"--size"}).find("--size"), std::string::npos);
  EXPECT_NE(refusal({"--mca", "monitor"}).find("monitor"), std::string::npos);
}

TEST(PerfOptions, a_trace_leaves_no_room_for_options_of_the_table) {
  Options options;
  ASSERT_TRUE(parse({"--trace", "a.trace.xz", "--json"}, &options).ok());
  EXPECT_EQ(options.action, Action::replay);
  EXPECT_NE(refusal({"--trace", "a", "--threads", "2"}).find("--threads"), std::string::npos);
  EXPECT_NE(refusal({"--size", "4K", "--trace", "a"}).find("--size"), std::string::npos);
}

TEST(PerfOptions, the_help_names_every_option) {
  for (const char* name : {"--mca", "--pool", "--registrar", "--size", "--regions", "--threads", "--iterations",
                           "--trace", "--json", "--help", "--version"})
    EXPECT_NE(std::string(kHelp).find(name), std::string::npos) << name;
}

}  // namespace
}  // namespace pinrail::perf
