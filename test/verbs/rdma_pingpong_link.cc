// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_link.h"

#include <cstdio>

namespace pinrail::pingpong {
namespace {

bool post_receive(ibv_qp* qp, uint64_t number, ibv_sge into) {
  ibv_recv_wr request{};
  request.wr_id = number;
  request.sg_list = &into;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &request, &bad) == 0;
}

bool post_send(ibv_qp* qp, uint64_t number, ibv_sge from) {
  ibv_send_wr request{};
  request.wr_id = number;
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &request, &bad) == 0;
}

}  // namespace

std::string Link::open(const test::RdmaDevice& device) {
  for (Side& side : sides_) {
    side.cq = ibv_create_cq(device.context(), 4, nullptr, nullptr, 0);
    if (side.cq == nullptr) return "no completion queue";
    side.qp = device.make_queue_pair(side.cq);
    if (side.qp == nullptr) return "no queue pair";
  }
  return device.join(sides_[0].qp, sides_[1].qp);
}

void Link::close() {
  for (const Side& side : sides_) {
    if (side.qp != nullptr) ibv_destroy_qp(side.qp);
    if (side.cq != nullptr) ibv_destroy_cq(side.cq);
  }
}

bool Link::move(unsigned side, const ibv_sge& from, const ibv_sge& into) {
  const Side& sender = sides_[side];
  const Side& receiver = sides_[1 - side];
  const uint64_t number = ++moves_;
  if (!post_receive(receiver.qp, number, into) || !post_send(sender.qp, number, from)) {
    std::fprintf(stderr, "a request cannot be posted\n");
    return false;
  }
  return test::wait_for_completion(receiver.cq, number) && test::wait_for_completion(sender.cq, number);
}

}  // namespace pinrail::pingpong
