// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_report.h - what a match came to, for people and for programs, on standard output.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_REPORT_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_REPORT_H

#include <string>

#include "test/verbs/rdma_pingpong_match.h"
#include "test/verbs/rdma_pingpong_options.h"

namespace pinrail::pingpong {

void print_table(const Match& match, const std::string& device, const Options& options);
void print_json(const Match& match, const std::string& device, const Options& options);

}  // namespace pinrail::pingpong

#endif
