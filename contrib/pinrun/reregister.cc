// SPDX-License-Identifier: BSD-3-Clause
// reregister.cc - takes the device's region from its pool, or makes another one if the program has more regions of it.
#include "contrib/pinrun/reregister.h"

#include <cerrno>

#include "contrib/pinrun/real_verbs.h"

namespace pinrail::pinrun {
namespace {

// Returns the device's region if no other region of the program uses it. The pool forgets it, and what else it keeps of
// that range.
ibv_mr* take_from_pool(const pinrail_handle_t& handle) {
  pinrail_registration_t* reg = handle.reg;
  ibv_mr* taken = take_device_region(reg);
  if (taken == nullptr) return nullptr;
  static_cast<void>(pinrail_mpool_invalidate_range(reg->pool, reg->base, reg->length));
  return taken;
}

// Returns a region of the device with the same range and access, whose keys are other ones. The dmabuf of a region of
// GPU memory is not known any more.
ibv_mr* make_another(const Region& region) {
  if (!is_dmabuf(region.handle.reg))
    return register_real(region.mr.pd, region.mr.addr, region.mr.length, region.iova, region.access);
  errno = EOPNOTSUPP;
  return nullptr;
}

void give_up_registration(Region* region) {
  end_use(region->handle.reg);
  static_cast<void>(pinrail_mpool_deregister(region->handle));
  region->handle.reg = nullptr;
}

int change_real(ibv_mr* real, const Change& to) {
  return with_room([&] { return real_verbs().rereg_mr(real, to.flags, to.domain, to.addr, to.length, to.access); },
                   [](int status) { return status == 0; });
}

void show(const ibv_mr& real, Region* region) {
  region->mr.pd = real.pd;
  region->mr.handle = real.handle;
  region->mr.lkey = real.lkey;
  region->mr.rkey = real.rkey;
}

// With --share the device's region may be larger, so that its address and length are not the program's.
int change_own(Region* region, const Change& change) {
  const int status = change_real(region->real, change);
  if (status != 0) return status;
  show(*region->real, region);
  if ((change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0) return 0;
  region->mr.addr = change.addr;
  region->mr.length = change.length;
  return 0;
}

// If the change fails, the program's region stays as it is.
int change_another(Region* region, const Change& change) {
  Region next = *region;
  next.real = make_another(*region);
  if (next.real == nullptr) return IBV_REREG_MR_ERR_CMD;
  const int status = change_own(&next, change), error = errno;
  if (status != 0) {
    real_verbs().dereg_mr(next.real);
    errno = error;
    return status;
  }
  give_up_registration(region);
  next.handle.reg = nullptr;
  *region = next;
  return 0;
}

}  // namespace

int reregister(Region* region, const Change& change) {
  if (region->real == nullptr) {
    ibv_mr* taken = take_from_pool(region->handle);
    if (taken == nullptr) return change_another(region, change);
    region->real = taken;
    give_up_registration(region);
  }
  return change_own(region, change);
}

}  // namespace pinrail::pinrun
