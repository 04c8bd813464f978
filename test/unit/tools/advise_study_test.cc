// SPDX-License-Identifier: BSD-3-Clause
// advise_study_test.cc - reasons of misses, distances and lives of small traces, and what names become in a page.
#include <gtest/gtest.h>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/advise/words.h"

namespace pinrail::advise {
namespace {

constexpr uint64_t kPage = 4096;

// One call at a time, of whole pages.
class Calls {
 public:
  Calls& request(uint64_t first, uint64_t pages, uint32_t access = 1, uint32_t flags = 0) {
    return add({first * kPage, pages * kPage, 0, access, flags, 0, perf::TraceOp::reg, 0});
  }
  Calls& event(uint64_t first, uint64_t pages) {
    return add({first * kPage, pages * kPage, 0, 0, 0, 0, perf::TraceOp::invalidate, 0});
  }
  Study study() const { return advise::study(trace_, kPage); }

 private:
  Calls& add(perf::TraceRecord record) {
    record.ns = trace_.records.size();
    trace_.records.push_back(record);
    return *this;
  }
  perf::Trace trace_;
};

TEST(AdviseStudy, each_miss_has_its_reason) {
  const Study all = Calls()
                        .request(10, 4)        // cold
                        .request(11, 2)        // hit
                        .request(12, 4)        // span
                        .request(10, 4, 4)     // rights
                        .request(10, 4, 5)     // hit: the last one got the rights of the first one, too
                        .event(10, 1)          // ends the first one and the one of more rights
                        .request(10, 2)        // event
                        .request(10, 2, 1, 1)  // bypass
                        .request(100, 1)       // cold
                        .study();
  EXPECT_EQ(all.misses[PINRAIL_MISS_COLD], 2u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_SPAN], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_RIGHTS], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_EVENT], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_BYPASS], 1u);
  EXPECT_EQ(all.hits, 2u);
  EXPECT_EQ(all.requests, all.hits + all.all_misses());
  EXPECT_EQ(all.pages[PINRAIL_MISS_COLD], 5u);
  EXPECT_EQ(all.events, 1u);
}

TEST(AdviseStudy, a_distance_is_the_bytes_that_were_used_since) {
  const Study all =
      Calls().request(0, 1).request(10, 2).request(20, 4).request(0, 1).request(0, 1).request(10, 2).study();
  EXPECT_EQ(all.distances, (std::vector<uint64_t>{1 * kPage, 7 * kPage, 7 * kPage}));
  EXPECT_EQ(all.misses_of_lru(0), 6u);
  EXPECT_EQ(all.misses_of_lru(1 * kPage), 5u);
  EXPECT_EQ(all.misses_of_lru(7 * kPage - 1), 5u);
  EXPECT_EQ(all.misses_of_lru(7 * kPage), 3u);
  EXPECT_EQ(all.peak_bytes, 7 * kPage);
}

TEST(AdviseStudy, what_an_event_has_ended_is_no_distance) {
  const Study all = Calls().request(0, 1).request(10, 2).event(10, 1).request(0, 1).study();
  EXPECT_EQ(all.distances, (std::vector<uint64_t>{kPage}));
  EXPECT_TRUE(all.lives[1].by_event);
  EXPECT_EQ(all.lives[1].died_ns, 2u);
  EXPECT_FALSE(all.lives[0].by_event);
  EXPECT_EQ(all.lives[0].uses, 2u);
}

TEST(AdviseStudy, places_hold_every_request) {
  const Study all = Calls().request(0, 2).request(2, 2).request(0, 1).request(50, 1).study();
  ASSERT_EQ(all.places.size(), 2u);
  EXPECT_EQ(all.places[0].requests, 3u);
  EXPECT_EQ(all.places[0].misses, 2u);
  EXPECT_EQ(all.places[0].end, 4 * kPage);
  EXPECT_EQ(all.places[1].requests, 1u);
}

TEST(AdviseStudy, a_name_from_a_file_is_no_markup) {
  EXPECT_EQ(escaped("<script>\"a\" & 'b'\x01\xff"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;??");
}

}  // namespace
}  // namespace pinrail::advise
