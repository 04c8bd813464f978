// SPDX-License-Identifier: BSD-3-Clause
// The queue pair for transfers: reliable, and connected to itself through the port's own address. API context; the
// caller of open_loopback_locked() and close_loopback_locked() holds the transfer lock. Functions that return int
// return 0 or an errno.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/core/own_component.h"
#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kTimeout = 18;  // 4.096 us * 2^18, about a second; then the packet is sent again
constexpr uint8_t kRetries = 7;

bool ipv4_mapped(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

// Returns the index of the first RoCE v2 GID over IPv4; else 0.
int best_gid(const Registrar& registrar, int count) {
  if (registrar.library.query_gid_ex == nullptr) return 0;
  for (int i = 0; i < count; ++i) {
    ibv_gid_entry entry{};
    const auto index = static_cast<uint32_t>(i);
    const int error =
        registrar.library.query_gid_ex(registrar.context, registrar.settings.port, index, &entry, 0, sizeof(entry));
    if (error == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 && ipv4_mapped(entry.gid)) return i;
  }
  return 0;
}

// Writes the address by which packets return to this port.
int own_address(const Registrar& registrar, const ibv_port_attr& port, ibv_ah_attr* address_out) {
  address_out->port_num = registrar.settings.port;
  address_out->dlid = port.lid;
  if (port.link_layer != IBV_LINK_LAYER_ETHERNET && port.lid != 0) return 0;
  const int wanted = registrar.settings.gid_index;
  const int index = wanted >= 0 ? wanted : best_gid(registrar, port.gid_tbl_len);
  address_out->is_global = 1;
  address_out->grh.sgid_index = static_cast<uint8_t>(index);
  address_out->grh.hop_limit = kHopLimit;
  return registrar.library.query_gid(registrar.context, registrar.settings.port, index, &address_out->grh.dgid);
}

int to_init(const Registrar& registrar, ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = registrar.settings.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  return registrar.library.modify_qp(qp, &attributes,
                                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_receive(const Registrar& registrar, ibv_qp* qp, const ibv_port_attr& port) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = port.active_mtu;
  attributes.dest_qp_num = qp->qp_num;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 12;
  const int error = own_address(registrar, port, &attributes.ah_attr);
  if (error != 0) return error;
  return registrar.library.modify_qp(qp, &attributes,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_send(const Registrar& registrar, ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRetries;
  attributes.max_rd_atomic = 1;
  return registrar.library.modify_qp(
      qp, &attributes,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int connect(const Registrar& registrar, ibv_qp* qp) {
  ibv_port_attr port{};
  auto* old_form = reinterpret_cast<_compat_ibv_port_attr*>(&port);
  int error = registrar.library.query_port(registrar.context, registrar.settings.port, old_form);
  if (error == 0) error = to_init(registrar, qp);
  if (error == 0) error = to_receive(registrar, qp, port);
  if (error == 0) error = to_send(registrar, qp);
  return error;
}

// After an error, what was made stays in the loopback; close_loopback_locked() frees it.
int make_bounce(const Registrar& registrar, Loopback* loopback) {
  void* bounce = mmap(nullptr, kBounceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bounce == MAP_FAILED) return errno;
  loopback->bounce = static_cast<char*>(bounce);
  loopback->mr = registrar.library.reg_mr(registrar.pd, bounce, kBounceBytes, IBV_ACCESS_LOCAL_WRITE);
  return loopback->mr == nullptr ? errno : 0;
}

int make_queues(const Registrar& registrar, Loopback* loopback) {
  loopback->cq = registrar.library.create_cq(registrar.context, 2, nullptr, nullptr, 0);
  if (loopback->cq == nullptr) return errno;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = loopback->cq;
  attributes.recv_cq = loopback->cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = 1;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  loopback->qp = registrar.library.create_qp(registrar.pd, &attributes);
  return loopback->qp == nullptr ? errno : connect(registrar, loopback->qp);
}

}  // namespace

// The transfer lock is held. OUT_OF_RESOURCE or ERROR; nothing is left then.
Status open_loopback_locked(Registrar* registrar) {
  Loopback* loopback = &registrar->loopback;
  if (loopback->qp != nullptr) return success();
  int error = make_bounce(*registrar, loopback);
  if (error == 0) error = make_queues(*registrar, loopback);
  if (error == 0) return success();
  close_loopback_locked(registrar);
  if (error == ENOMEM) return PINRAIL_ERR_OUT_OF_RESOURCE;
  show_errno(registrar->host, "no loopback", kBounceBytes, error);
  return PINRAIL_ERR_ERROR;
}

void close_loopback_locked(Registrar* registrar) {
  Loopback* loopback = &registrar->loopback;
  if (loopback->qp != nullptr) registrar->library.destroy_qp(loopback->qp);
  if (loopback->cq != nullptr) registrar->library.destroy_cq(loopback->cq);
  if (loopback->mr != nullptr) registrar->library.dereg_mr(loopback->mr);
  if (loopback->bounce != nullptr) munmap(loopback->bounce, kBounceBytes);
  *loopback = Loopback{};
}

}  // namespace pinrail::verbs
