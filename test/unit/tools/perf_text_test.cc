// SPDX-License-Identifier: BSD-3-Clause
// perf_text_test.cc - sizes and numbers as pinrail_perf reads them.
#include <gtest/gtest.h>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {
namespace {

std::vector<size_t> list(const char* typed) {
  std::vector<size_t> sizes;
  const Result parsed = parse_size_list(typed, &sizes);
  EXPECT_TRUE(parsed.ok()) << typed << ": " << parsed.why();
  return sizes;
}

std::string refusal(const char* typed) {
  std::vector<size_t> sizes = {7};
  const Result parsed = parse_size_list(typed, &sizes);
  EXPECT_FALSE(parsed.ok()) << typed;
  EXPECT_EQ(sizes, std::vector<size_t>{7}) << "an error changes nothing";
  return parsed.why();
}

TEST(PerfText, suffixes_multiply_by_powers_of_1024) {
  EXPECT_EQ(list("4096"), (std::vector<size_t>{4096}));
  EXPECT_EQ(list("4K,4k,1M,2m,1G,3g"),
            (std::vector<size_t>{4096, 4096, 1 << 20, 2 << 20, size_t{1} << 30, size_t{3} << 30}));
}

TEST(PerfText, a_list_keeps_its_order_and_its_repetitions) {
  EXPECT_EQ(list("1M,1,1M"), (std::vector<size_t>{1 << 20, 1, 1 << 20}));
}

TEST(PerfText, what_is_no_size_is_named_in_the_message) {
  for (const char* typed :
       {"", ",", "4K,", ",4K", "4K,,1M", "K", "-1", "+1", "4 K", " 4K", "4KB", "4T", "0x10", "1.5M", "four", "4K;1M"}) {
    EXPECT_NE(refusal(typed).find("is not a size"), std::string::npos) << typed;
  }
  EXPECT_NE(refusal("4K,zzz").find("'zzz'"), std::string::npos);
}

TEST(PerfText, zero_and_what_no_address_space_holds_are_refused) {
  refusal("0");
  refusal("0K");
  EXPECT_NE(refusal("99999999999G").find("too large"), std::string::npos);
  refusal("99999999999999999999999999");
  EXPECT_EQ(list("65536G"), (std::vector<size_t>{size_t{1} << 46}));
  EXPECT_NE(refusal("65537G").find("too large"), std::string::npos);
}

TEST(PerfText, sizes_read_as_people_write_them) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(4096), "4 KiB");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(UINT64_MAX), "unlimited");
}

}  // namespace
}  // namespace pinrail::perf
