// SPDX-License-Identifier: BSD-3-Clause
// The queue pair for transfers: reliable, and connected to itself through the port's own address. API context; the
// caller of open_loopback_locked() and close_loopback_locked() holds the transfer lock. Functions that return int
// return 0 or an errno.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

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
  int error = query_port(registrar, registrar.context, &port);
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

// Reads and writes a registration through the device: RDMA READ and WRITE on the loopback queue pair, 1 MiB at a time.
// API context. run() takes the transfer lock, and the functions above it are called with it held.

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(10);

int post(Loopback* loopback, const Operation& operation) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uintptr_t>(operation.local);
  piece.length = static_cast<uint32_t>(operation.length);
  piece.lkey = operation.lkey;
  ibv_send_wr request{};
  request.wr_id = ++loopback->operations;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = operation.opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = operation.remote;
  request.wr.rdma.rkey = operation.rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(loopback->qp, &request, &bad);
}

// Polls until the last operation has completed, for at most kPatience.
Outcome wait(Loopback* loopback) {
  const auto give_up = Clock::now() + kPatience;
  for (;;) {
    ibv_wc completion{};
    const int count = ibv_poll_cq(loopback->cq, 1, &completion);
    if (count < 0) return {EIO, IBV_WC_SUCCESS};
    if (count > 0 && completion.wr_id == loopback->operations) return {0, completion.status};
    if (count == 0 && Clock::now() > give_up) return {ETIMEDOUT, IBV_WC_SUCCESS};
    if (count == 0) sched_yield();
  }
}

Status report_failure_locked(Registrar* registrar, size_t bytes, const Outcome& outcome) REQUIRES(registrar->transfer) {
  close_loopback_locked(registrar);  // its queue pair is in the error state, or an operation is still running
  show(registrar->host, "transfer failed",
       {{"bytes", NumberText(bytes).c_str()},
        {"errno", ErrnoText(outcome.error).c_str()},
        {"completion", NumberText(static_cast<size_t>(outcome.completion)).c_str()}});
  return PINRAIL_ERR_ERROR;
}

// into: where bytes from the device go; from: where bytes for the device come from. One of them is NULL.
struct Transfer {
  const pinrail_registration_t* reg;
  ibv_wr_opcode opcode;
  uint32_t right;  // the right that the registration must have
  char* into;
  const char* from;
};

Outcome move_locked(Registrar* registrar, const Transfer& transfer, size_t offset, size_t done, size_t step)
    REQUIRES(registrar->transfer) {
  if (transfer.from != nullptr) std::memcpy(registrar->loopback.bounce, transfer.from + done, step);
  const uint64_t remote = device_address(*transfer.reg, offset + done);
  const Outcome outcome = operate_locked(registrar, {transfer.opcode, registrar->loopback.bounce,
                                                     registrar->loopback.mr->lkey, remote, transfer.reg->rkey, step});
  if (outcome.ok() && transfer.into != nullptr) std::memcpy(transfer.into + done, registrar->loopback.bounce, step);
  return outcome;
}

// Soft-RoCE now and then refuses an access, or never completes it, while the kernel takes pages of on-demand memory
// away: tries once more. A new queue pair, so nothing of the first try comes later.
Outcome move_on_demand_locked(Registrar* registrar, const Transfer& transfer, size_t offset, size_t done, size_t step)
    REQUIRES(registrar->transfer) {
  const Outcome outcome = move_locked(registrar, transfer, offset, done, step);
  if (outcome.completion != IBV_WC_REM_ACCESS_ERR && outcome.error != ETIMEDOUT) return outcome;
  close_loopback_locked(registrar);
  return open_loopback_locked(registrar).ok() ? move_locked(registrar, transfer, offset, done, step) : outcome;
}

bool is_on_demand(const pinrail_registration_t& reg) { return (reg.traits & PINRAIL_TRAIT_ON_DEMAND) != 0; }

bool is_refused(const Registrar& registrar, const Transfer& transfer, size_t offset) {
  if ((transfer.reg->rights & transfer.right) == 0) return true;
  const uintptr_t start = reinterpret_cast<uintptr_t>(transfer.reg->base) + offset;
  return registrar.aligned_only && is_on_demand(*transfer.reg) && start % registrar.limits.granularity != 0;
}

// Takes the transfer lock. BAD_PARAM: out of range. NOT_SUPPORTED: the registration lacks the right. ERROR: the
// transfer failed.
Status run(Registrar* registrar, const Transfer& transfer, size_t offset, size_t length) {
  if (!within(*transfer.reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  if (is_refused(*registrar, transfer, offset)) return PINRAIL_ERR_NOT_SUPPORTED;
  if (!is_device_open(registrar)) return PINRAIL_ERR_ERROR;
  const bool on_demand = is_on_demand(*transfer.reg);
  Guard guard(registrar->transfer);
  const Status status = open_loopback_locked(registrar);
  if (!status.ok()) return status;
  for (size_t done = 0; done < length;) {
    const size_t step = std::min(length - done, on_demand ? kOnDemandBytes : kBounceBytes);
    const Outcome outcome = on_demand ? move_on_demand_locked(registrar, transfer, offset, done, step)
                                      : move_locked(registrar, transfer, offset, done, step);
    if (!outcome.ok()) return report_failure_locked(registrar, length, outcome);
    done += step;
  }
  return success();
}

}  // namespace

Outcome operate_locked(Registrar* registrar, const Operation& operation) {
  const int error = post(&registrar->loopback, operation);
  return error != 0 ? Outcome{error, IBV_WC_SUCCESS} : wait(&registrar->loopback);
}

pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length) {
  const Transfer transfer{reg, IBV_WR_RDMA_READ, PINRAIL_ACCESS_REMOTE_READ, static_cast<char*>(into), nullptr};
  return run(static_cast<Registrar*>(context), transfer, offset, length).code();
}

pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length) {
  const Transfer transfer{reg, IBV_WR_RDMA_WRITE, PINRAIL_ACCESS_REMOTE_WRITE, nullptr, static_cast<const char*>(from)};
  return run(static_cast<Registrar*>(context), transfer, offset, length).code();
}

}  // namespace pinrail::verbs
