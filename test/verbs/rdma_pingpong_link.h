// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_link.h - two connected queue pairs of this process, over which messages go either way.
//
// Owns     queue pairs and completion queues; not the device.
// Threads  one at a time.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_LINK_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_LINK_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "test/verbs/rdma_device.h"

namespace pinrail::pingpong {

class Link {
 public:
  // Empty if all is well, else what is wrong.
  std::string open(const test::RdmaDevice& device);
  void close();

  // One SEND from that side (0 or 1) to the other, into a receive that was posted before it. False, and a line on
  // stderr, if it failed; the link is of no use then.
  bool move(unsigned side, const ibv_sge& from, const ibv_sge& into);

 private:
  struct Side {
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
  };
  Side sides_[2];
  uint64_t moves_ = 0;
};

}  // namespace pinrail::pingpong

#endif
