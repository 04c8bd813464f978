// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pair.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstring>

namespace pinrail::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(10);

bool is_ipv4(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

// The completion of that number; others belong to operations that were given up.
bool wait(ibv_cq* cq, uint64_t number) {
  const auto give_up = Clock::now() + kPatience;
  while (Clock::now() < give_up) {
    ibv_wc completion{};
    const int count = ibv_poll_cq(cq, 1, &completion);
    if (count < 0) return false;
    if (count == 0) sched_yield();
    if (count == 0 || completion.wr_id != number) continue;
    if (completion.status != IBV_WC_SUCCESS) std::fprintf(stderr, "%s\n", ibv_wc_status_str(completion.status));
    return completion.status == IBV_WC_SUCCESS;
  }
  std::fprintf(stderr, "no completion in 10 s\n");
  return false;
}

}  // namespace

std::string RdmaPair::open(const std::string& device, uint8_t port, int gid_index, size_t buffer_bytes) {
  port_ = port;
  std::string wrong = open_device(device);
  if (wrong.empty()) wrong = choose_gid(gid_index);
  if (!wrong.empty()) return wrong;
  pd_ = ibv_alloc_pd(context_);
  if (pd_ == nullptr) return "no protection domain";
  buffer_.resize(buffer_bytes);
  buffer_mr_ = ibv_reg_mr(pd_, buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (buffer_mr_ == nullptr) return "the asker's buffer cannot be registered";
  return make_queue_pairs();
}

void RdmaPair::close() {
  end_queue_pairs();
  if (buffer_mr_ != nullptr) ibv_dereg_mr(buffer_mr_);
  if (pd_ != nullptr && ibv_dealloc_pd(pd_) != 0) std::fprintf(stderr, "the protection domain is still in use\n");
  if (context_ != nullptr) ibv_close_device(context_);
}

std::string RdmaPair::open_device(const std::string& name) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count && context_ == nullptr; ++i) {
    if (name.empty() || name == ibv_get_device_name(devices[i])) context_ = ibv_open_device(devices[i]);
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  if (context_ == nullptr) return "no RDMA device " + name;
  return ibv_query_port(context_, port_, &attributes_) == 0 ? "" : "no such port";
}

std::string RdmaPair::choose_gid(int gid_index) {
  for (int i = 0; i < attributes_.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_, port_, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    const bool wanted = gid_index >= 0 ? i == gid_index : entry.gid_type == IBV_GID_TYPE_ROCE_V2 && is_ipv4(entry.gid);
    if (!wanted) continue;
    gid_index_ = static_cast<uint8_t>(i);
    gid_ = entry.gid;
    return "";
  }
  return "no such GID, or none of RoCE v2 over IPv4";
}

std::string RdmaPair::make_queue_pairs() {
  cq_ = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  if (cq_ == nullptr) return "no completion queue";
  asker_ = make_queue_pair();
  target_ = make_queue_pair();
  if (asker_ == nullptr || target_ == nullptr) return "no queue pair";
  if (connect(asker_, target_->qp_num) != 0 || connect(target_, asker_->qp_num) != 0) return "cannot connect";
  return "";
}

void RdmaPair::end_queue_pairs() {
  if (asker_ != nullptr) ibv_destroy_qp(asker_);
  if (target_ != nullptr) ibv_destroy_qp(target_);
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
  asker_ = target_ = nullptr;
  cq_ = nullptr;
}

ibv_qp* RdmaPair::make_queue_pair() const {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 2;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  return ibv_create_qp(pd_, &wanted);
}

int RdmaPair::connect(ibv_qp* qp, uint32_t peer) const {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = port_;
  to.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  int error = ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return error;
  to = {};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = attributes_.active_mtu;
  to.dest_qp_num = peer;
  to.max_dest_rd_atomic = 1;
  to.min_rnr_timer = 12;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = port_;
  to.ah_attr.dlid = attributes_.lid;
  to.ah_attr.grh.dgid = gid_;
  to.ah_attr.grh.sgid_index = gid_index_;
  to.ah_attr.grh.hop_limit = 64;
  error = ibv_modify_qp(qp, &to,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return error;
  to = {};
  to.qp_state = IBV_QPS_RTS;
  to.timeout = 14;
  to.retry_cnt = to.rnr_retry = 7;
  to.max_rd_atomic = 1;
  return ibv_modify_qp(
      qp, &to,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
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
  if (ibv_post_send(asker_, &request, &bad) == 0 && wait(cq_, request.wr_id)) return true;
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
