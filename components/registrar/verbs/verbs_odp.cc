// SPDX-License-Identifier: BSD-3-Clause
// Registration on demand: what the device says it can, and whether it moves bytes rightly (verbs/V4). API context;
// choose_odp() takes the transfer lock for the trial. No other thread knows the registrar while it is made.
#include <algorithm>
#include <cerrno>
#include <vector>

#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {
namespace {

// Soft-RoCE refuses 2 GiB in one registration. Other devices have implicit registrations for more.
constexpr size_t kLongestOnDemand = size_t{1} << 30;

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr size_t kPages = 8;
constexpr size_t kOddOffset = 1000;  // within a page, and no multiple of any path MTU

// What the device does right with on-demand memory.
enum class Trust : uint8_t { none, page_aligned, full };

void fill(unsigned char* at, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>((i * 2654435761U >> 7) + seed + i / 256);
}

// A region of on-demand pages and one of pinned pages, between which the port moves bytes.
class Trial {
 public:
  explicit Trial(Registrar* registrar)
      : registrar_(registrar), bytes_(kPages * registrar->limits.granularity), paged_(bytes_), pinned_(bytes_) {}
  ~Trial() {
    if (paged_region_ != nullptr) registrar_->library.dereg_mr(paged_region_);
    if (pinned_region_ != nullptr) registrar_->library.dereg_mr(pinned_region_);
  }

  // Returns 0 or an errno.
  int begin(bool implicit) {
    if (!paged_.is_mapped() || !pinned_.is_mapped()) return ENOMEM;
    const Library& library = registrar_->library;
    pinned_region_ = library.reg_mr(registrar_->pd, pinned_.at(), bytes_, kAccess);
    if (pinned_region_ == nullptr) return errno;
    paged_region_ = library.reg_mr(registrar_->pd, implicit ? nullptr : paged_.at(), implicit ? SIZE_MAX : bytes_,
                                   kAccess | IBV_ACCESS_ON_DEMAND);
    return paged_region_ == nullptr ? errno : 0;
  }

  // Takes the transfer lock.
  Trust run() EXCLUDES(registrar_->transfer) {
    Guard guard(registrar_->transfer);
    if (!carries_all_ways_locked(0) || !paged_.replace() || !carries_all_ways_locked(0)) return Trust::none;
    return carries_all_ways_locked(kOddOffset) ? Trust::full : Trust::page_aligned;
  }

 private:
  bool carries_all_ways_locked(size_t offset) REQUIRES(registrar_->transfer) {
    return carries_locked(IBV_WR_RDMA_WRITE, true, offset) && carries_locked(IBV_WR_RDMA_READ, true, offset) &&
           carries_locked(IBV_WR_RDMA_WRITE, false, offset) && carries_locked(IBV_WR_RDMA_READ, false, offset);
  }

  // Moves a little more than two pages at the offset of the on-demand pages, and compares all bytes of both regions.
  bool carries_locked(ibv_wr_opcode opcode, bool paged_is_remote, size_t offset) REQUIRES(registrar_->transfer) {
    const size_t length = bytes_ / kPages * 2 + 333;
    const bool to_paged = (opcode == IBV_WR_RDMA_WRITE) == paged_is_remote;
    fill(paged_.at(), bytes_, ++seed_);
    fill(pinned_.at(), bytes_, ++seed_);
    std::vector<unsigned char> paged(paged_.at(), paged_.at() + bytes_), pinned(pinned_.at(), pinned_.at() + bytes_);
    if (to_paged) {
      std::copy_n(pinned.begin(), length, paged.begin() + static_cast<ptrdiff_t>(offset));
    } else {
      std::copy_n(paged.begin() + static_cast<ptrdiff_t>(offset), length, pinned.begin());
    }
    return move_locked(opcode, paged_is_remote, offset, length) &&
           std::equal(paged.begin(), paged.end(), paged_.at()) &&
           std::equal(pinned.begin(), pinned.end(), pinned_.at());
  }

  bool move_locked(ibv_wr_opcode opcode, bool paged_is_remote, size_t offset, size_t length)
      REQUIRES(registrar_->transfer) {
    if (!open_loopback_locked(registrar_).ok()) return false;
    const void* const paged = paged_.at() + offset;
    const void* const local = paged_is_remote ? pinned_.at() : paged;
    const void* const remote = paged_is_remote ? paged : pinned_.at();
    const ibv_mr* const local_region = paged_is_remote ? pinned_region_ : paged_region_;
    const ibv_mr* const remote_region = paged_is_remote ? paged_region_ : pinned_region_;
    const Outcome outcome = operate_locked(
        registrar_,
        {opcode, local, local_region->lkey, reinterpret_cast<uintptr_t>(remote), remote_region->rkey, length});
    if (!outcome.ok()) close_loopback_locked(registrar_);
    return outcome.ok();
  }

  Registrar* const registrar_;
  const size_t bytes_;
  OwnPages paged_, pinned_;
  ibv_mr *paged_region_ = nullptr, *pinned_region_ = nullptr;
  unsigned seed_ = 0;
};

// What the device claims.
bool claims(const Registrar& registrar, bool implicit) {
  verbs_context* const extended = __extension__ verbs_get_ctx_op(registrar.context, query_device_ex);
  if (extended == nullptr) return false;
  ibv_device_attr_ex attributes{};
  if (extended->query_device_ex(registrar.context, nullptr, &attributes, sizeof(attributes)) != 0) return false;
  constexpr uint32_t kNeeded = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  const uint64_t general = uint64_t{IBV_ODP_SUPPORT} | (implicit ? uint64_t{IBV_ODP_SUPPORT_IMPLICIT} : uint64_t{0});
  return (attributes.odp_caps.general_caps & general) == general &&
         (attributes.odp_caps.per_transport_caps.rc_odp_caps & kNeeded) == kNeeded;
}

// Tries it. why_out: why the trust is not full.
Trust try_odp(Registrar* registrar, bool implicit, const char** why_out) {
  *why_out =
      implicit ? "the device does not offer it for all memory at once (implicit)" : "the device does not offer it";
  if (!claims(*registrar, implicit)) return Trust::none;
  Trial trial(registrar);
  const int error = trial.begin(implicit);
  if (error != 0) {
    log_reason(registrar->host, "no registration on demand", ErrnoText(error).c_str());
    *why_out = "the device offers it and refused a registration of some pages";
    return Trust::none;
  }
  *why_out = "the device moved wrong bytes or failed in a trial";
  const Trust trust = trial.run();
  if (trust == Trust::page_aligned) {
    *why_out = "the device moved wrong bytes in a trial that did not begin at the start of a page";
  }
  return trust;
}

void report_odp(const Registrar& registrar, const char* why, bool is_error, bool is_right_if_aligned) {
  constexpr const char* kNames[] = {"off", "explicit", "implicit", "auto"};
  show(registrar.host, "no paging on demand",
       {{"odp", kNames[static_cast<int>(registrar.settings.odp)]},
        {"why", why},
        {"follows", is_error ? "the registrar verbs is not available" : "memory is registered on demand by no request"},
        {"todo", is_right_if_aligned
                     ? "set registrar_verbs_odp_page_aligned=yes if programs transfer from the start of pages only"
                     : "pin the memory (the pool grdma), or use another device or path MTU"}});
}

// Whether the trust is enough for the settings.
bool is_enough(const Registrar& registrar, Trust trust) {
  return trust == Trust::full || (trust == Trust::page_aligned && registrar.settings.odp_page_aligned);
}

void accept(Registrar* registrar, Trust trust, bool implicit) {
  registrar->aligned_only = trust == Trust::page_aligned;
  registrar->limits.on_demand = implicit ? PINRAIL_ON_DEMAND_IMPLICIT : PINRAIL_ON_DEMAND_EXPLICIT;
  const size_t most = registrar->limits.max_length;
  registrar->limits.on_demand_max_length = most != 0 ? std::min(most, kLongestOnDemand) : kLongestOnDemand;
}

pinrail_status_t status_of(int error) {
  if (error == 0) return PINRAIL_SUCCESS;
  if (is_lacking(error)) return PINRAIL_ERR_NOT_SUPPORTED;
  return error == ENOMEM ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR;
}

}  // namespace

Status choose_odp(Registrar* registrar) {
  const Odp wanted = registrar->settings.odp;
  if (wanted == Odp::off) return success();
  const char* why = "";
  Trust trust = Trust::none;
  bool implicit = wanted != Odp::one_by_one;
  if (implicit) trust = try_odp(registrar, true, &why);
  if (!is_enough(*registrar, trust) && wanted != Odp::implicit) {
    implicit = false;
    trust = try_odp(registrar, false, &why);
  }
  if (is_enough(*registrar, trust)) {
    accept(registrar, trust, implicit);
    return success();
  }
  const bool is_error = wanted != Odp::automatic;
  report_odp(*registrar, why, is_error, trust == Trust::page_aligned);
  return is_error ? PINRAIL_ERR_NOT_AVAILABLE : PINRAIL_SUCCESS;
}

// By the driver, or by the system call where the driver lacks it.
pinrail_status_t advise(void* context, const pinrail_registration_t* reg, size_t offset, size_t length,
                        pinrail_advice_t advice) {
  auto* registrar = static_cast<Registrar*>(context);
  if (!is_device_open(registrar)) return PINRAIL_ERR_ERROR;
  constexpr ibv_advise_mr_advice kAdvice[] = {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                              IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT};
  ibv_sge piece{};
  piece.lkey = reg->lkey;
  constexpr size_t kMost = size_t{1} << 30;  // the field has 32 bits
  for (size_t done = 0; done < length; done += piece.length) {
    piece.addr = device_address(*reg, offset + done);
    piece.length = static_cast<uint32_t>(std::min(length - done, kMost));
    const verbs_context* const extended = __extension__ verbs_get_ctx_op(registrar->context, advise_mr);
    int error = EOPNOTSUPP;
    if (extended != nullptr) error = extended->advise_mr(registrar->pd, kAdvice[advice], 0, &piece, 1);
    if (error == EOPNOTSUPP && registrar->library.cmd_advise_mr != nullptr) {
      error = registrar->library.cmd_advise_mr(registrar->pd, kAdvice[advice], 0, &piece, 1);
    }
    if (error != 0) return status_of(error);
  }
  return PINRAIL_SUCCESS;
}

}  // namespace pinrail::verbs
