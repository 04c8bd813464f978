// SPDX-License-Identifier: BSD-3-Clause
// rdma_device.h - one port of an RDMA device that talks to itself: a protection domain, and reliable connections
// between queue pairs of this process.
//
// Owns     the device's context and the protection domain. Queue pairs and completion queues are the caller's, and go
//          before close().
// Threads  any, after open() and before close().
#ifndef PINRAIL_TEST_VERBS_RDMA_DEVICE_H
#define PINRAIL_TEST_VERBS_RDMA_DEVICE_H

#include <infiniband/verbs.h>
#include <sched.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace pinrail::test {

class RdmaDevice {
 public:
  // device: its name, or "" for the first one. gid_index: below 0, the first of RoCE v2 over IPv4.
  // Empty if all is well, else what is missing.
  std::string open(const std::string& device, uint8_t port, int gid_index);
  void close();

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }

  // NULL if there is none to be had.
  ibv_qp* make_queue_pair(ibv_cq* cq) const;
  // Ready to send and to receive, each with the other. Empty, or what is wrong.
  std::string join(ibv_qp* one, ibv_qp* other) const;

 private:
  std::string open_device(const std::string& name);
  std::string choose_gid(int gid_index);
  int connect(ibv_qp* qp, uint32_t peer) const;

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  uint8_t port_ = 1;
  uint8_t gid_index_ = 0;
  ibv_gid gid_{};
  ibv_port_attr attributes_{};
};

// Waits up to 10 s for the completion of that number, and drops others: they belong to operations that were given up.
// False, and a line on stderr, if it does not come or says that the operation failed.
bool wait_for_completion(ibv_cq* cq, uint64_t number);

inline constexpr auto kPatience = std::chrono::seconds(10);

inline bool is_ipv4(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

inline std::string RdmaDevice::open(const std::string& device, uint8_t port, int gid_index) {
  port_ = port;
  std::string wrong = open_device(device);
  if (wrong.empty()) wrong = choose_gid(gid_index);
  if (!wrong.empty()) return wrong;
  pd_ = ibv_alloc_pd(context_);
  return pd_ == nullptr ? "no protection domain" : "";
}

inline void RdmaDevice::close() {
  if (pd_ != nullptr && ibv_dealloc_pd(pd_) != 0) std::fprintf(stderr, "the protection domain is still in use\n");
  if (context_ != nullptr) ibv_close_device(context_);
}

inline std::string RdmaDevice::open_device(const std::string& name) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count && context_ == nullptr; ++i) {
    if (name.empty() || name == ibv_get_device_name(devices[i])) context_ = ibv_open_device(devices[i]);
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  if (context_ == nullptr) return name.empty() ? "no RDMA device" : "no RDMA device " + name;
  return ibv_query_port(context_, port_, &attributes_) == 0 ? "" : "no such port";
}

inline std::string RdmaDevice::choose_gid(int gid_index) {
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

inline ibv_qp* RdmaDevice::make_queue_pair(ibv_cq* cq) const {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 2;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  return ibv_create_qp(pd_, &wanted);
}

inline std::string RdmaDevice::join(ibv_qp* one, ibv_qp* other) const {
  return connect(one, other->qp_num) == 0 && connect(other, one->qp_num) == 0 ? "" : "cannot connect";
}

inline int RdmaDevice::connect(ibv_qp* qp, uint32_t peer) const {
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

inline bool wait_for_completion(ibv_cq* cq, uint64_t number) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < give_up) {
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

}  // namespace pinrail::test

#endif
