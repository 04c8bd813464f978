// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_match.h - rounds in which every way plays every kind and length of buffer, and what they took.
//
// Owns     buffers and figures; not the link, nor the ways.
// Threads  one at a time.
//
// In a round each kind of buffers of each length is dealt to each way in turn, which begins in turn; a sample is what
// a way's messages took on average. All ways have the same number of samples.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_MATCH_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_MATCH_H

#include <memory>
#include <string>
#include <vector>

#include "test/verbs/rdma_pingpong_buffers.h"
#include "test/verbs/rdma_pingpong_link.h"
#include "test/verbs/rdma_pingpong_way.h"

namespace pinrail::pingpong {

// Nanoseconds for a message.
struct Sample {
  double message = 0;       // both registrations, the transfer, both deregistrations; fresh: and both unmappings
  double registration = 0;  // of that, without the transfer and the munmap calls themselves
};

struct Row {
  Buffers* buffers;
  Way* way;
  std::vector<Sample> samples;
  uint64_t messages = 0;
  Counts counts;
};

class Match {
 public:
  Match(Link* link, std::vector<Way*> ways);

  // Plays for so long, and two rounds at least, the first of which does not count. Empty, or what went wrong first.
  std::string play(double seconds);

  const std::vector<Row>& rows() const { return rows_; }  // the ways of one kind and length follow one another
  uint64_t rounds() const { return rounds_; }             // those that count
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  std::string warm_up();
  std::string play_round(uint64_t round, double until);
  std::string play_sample(Row* row);
  std::string play_message(const Row& row, unsigned side, Sample* sum);
  std::string exchange(const Row& row, unsigned side, unsigned char* from, unsigned char* into, Sample* sum);
  std::string check_counts() const;
  void forget();

  Link* const link_;
  const std::vector<Way*> ways_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<Row> rows_;
  uint64_t rounds_ = 0;
  uint64_t messages_ = 0;
  uint64_t bytes_verified_ = 0;
};

}  // namespace pinrail::pingpong

#endif
