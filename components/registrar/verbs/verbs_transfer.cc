// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes a registration through the device: RDMA READ and WRITE on the loopback queue pair, 1 MiB at a time.
// API context. run() takes the transfer lock, and the functions above it are called with it held.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/core/own_component.h"
#include "components/registrar/verbs/verbs.h"
#include "framework/registrar/request.h"

namespace pinrail::verbs {
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
