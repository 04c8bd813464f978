// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pair.h"

#include <cstdio>
#include <cstring>

namespace pinrail::test {

std::string RdmaPair::open(const std::string& device, uint8_t port, int gid_index, size_t buffer_bytes) {
  const std::string wrong = device_.open(device, port, gid_index);
  if (!wrong.empty()) return wrong;
  buffer_.resize(buffer_bytes);
  buffer_mr_ = ibv_reg_mr(pd(), buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (buffer_mr_ == nullptr) return "the asker's buffer cannot be registered";
  return make_queue_pairs();
}

void RdmaPair::close() {
  end_queue_pairs();
  if (buffer_mr_ != nullptr) ibv_dereg_mr(buffer_mr_);
  device_.close();
}

std::string RdmaPair::make_queue_pairs() {
  cq_ = ibv_create_cq(device_.context(), 8, nullptr, nullptr, 0);
  if (cq_ == nullptr) return "no completion queue";
  asker_ = device_.make_queue_pair(cq_);
  target_ = device_.make_queue_pair(cq_);
  if (asker_ == nullptr || target_ == nullptr) return "no queue pair";
  return device_.join(asker_, target_);
}

void RdmaPair::end_queue_pairs() {
  if (asker_ != nullptr) ibv_destroy_qp(asker_);
  if (target_ != nullptr) ibv_destroy_qp(target_);
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
  asker_ = target_ = nullptr;
  cq_ = nullptr;
}

bool RdmaPair::operate(ibv_wr_opcode opcode, pinrail_handle_t handle, size_t offset, size_t length) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uintptr_t>(buffer_.data());
  piece.length = static_cast<uint32_t>(length);
  piece.lkey = buffer_mr_->lkey;
  ibv_send_wr request{};
  request.wr_id = ++operations_;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(handle.reg->base) + offset;
  request.wr.rdma.rkey = handle.reg->rkey;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(asker_, &request, &bad) == 0 && wait_for_completion(cq_, request.wr_id)) return true;
  end_queue_pairs();  // they are in the error state
  const std::string wrong = make_queue_pairs();
  if (!wrong.empty()) std::fprintf(stderr, "connecting again: %s\n", wrong.c_str());
  return false;
}

pinrail_status_t RdmaPair::read(pinrail_handle_t handle, size_t offset, void* into, size_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (length > buffer_.size() || asker_ == nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (!operate(IBV_WR_RDMA_READ, handle, offset, length)) return PINRAIL_ERR_ERROR;
  std::memcpy(into, buffer_.data(), length);
  return PINRAIL_SUCCESS;
}

pinrail_status_t RdmaPair::write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (length > buffer_.size() || asker_ == nullptr) return PINRAIL_ERR_BAD_PARAM;
  std::memcpy(buffer_.data(), from, length);
  return operate(IBV_WR_RDMA_WRITE, handle, offset, length) ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::test
