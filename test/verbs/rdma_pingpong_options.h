// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_options.h - what one run of rdma_pingpong measures, and where.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_OPTIONS_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_OPTIONS_H

#include <cstdint>
#include <string>

namespace pinrail::pingpong {

constexpr int kWrong = 1, kNoDevice = 77;

struct Options {
  std::string device;  // "": the first one
  uint8_t port = 1;
  int gid_index = -1;
  unsigned seconds = 20;
  std::string monitor = "external";
  bool reports = true;  // fresh memory is reported before it goes; of use to monitor "external" alone
  bool json = false;
};

// -1 to go on, or the exit status.
int parse(int argc, char** argv, Options* options);

}  // namespace pinrail::pingpong

#endif
