// SPDX-License-Identifier: BSD-3-Clause
// interpose.cc - the functions that the program calls instead of libibverbs' own. libpinrun.map gives them the versions
// that programs ask for.
#include <cerrno>

#include "contrib/pinrun/domains.h"
#include "contrib/pinrun/real_verbs.h"
#include "contrib/pinrun/recorder.h"
#include "contrib/pinrun/regions.h"

namespace pinrail::pinrun {
namespace {

struct Request {
  bool is_dmabuf;  // the address is one of GPU memory, whose dmabuf the pool exports itself
  ibv_pd* domain;
  void* addr;
  size_t length;
  uint64_t iova;  // the address on the wire
  unsigned access;
};

uint64_t address_of(const void* addr) { return reinterpret_cast<uintptr_t>(addr); }

void count_passed() {
  if (!inside_real_call()) counts().passed.fetch_add(1, std::memory_order_relaxed);
}

// Fills in the region that the program sees.
void show(const Request& request, Region* region) {
  const pinrail_registration_t& reg = *region->handle.reg;
  region->iova = request.iova;
  region->access = request.access;
  region->mr.context = request.domain->context;
  region->mr.pd = request.domain;
  region->mr.addr = request.addr;
  region->mr.length = request.length;
  region->mr.handle = device_handle_of(&reg);
  region->mr.lkey = reg.lkey;
  region->mr.rkey = reg.rkey;
}

// Whether the registration, of the range that was asked for, is also of the memory and at the address on the wire.
bool serves(const pinrail_registration_t* reg, const Request& request) {
  return request.is_dmabuf == is_dmabuf(reg) && shift_of(reg) == request.iova - address_of(request.addr);
}

// NOT_FOUND: the pool has another registration of the range.
pinrail_status_t register_in(pinrail_mpool_t* pool, const Request& request, uint32_t access,
                             pinrail_handle_t* handle_out) {
  if (pool == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_handle_t handle{};
  wanted_shift = request.iova - address_of(request.addr);
  const pinrail_status_t status = pinrail_mpool_register(pool, request.addr, request.length, access, 0, &handle);
  wanted_shift = 0;
  if (status != PINRAIL_SUCCESS) return status;
  if (serves(handle.reg, request)) {
    *handle_out = handle;
    return PINRAIL_SUCCESS;
  }
  static_cast<void>(pinrail_mpool_deregister(handle));
  return PINRAIL_ERR_NOT_FOUND;
}

// A pool has one registration of a range, at one address on the wire: another address needs another pool.
pinrail_status_t register_in_some_pool(const Request& request, uint32_t access, pinrail_handle_t* handle_out) {
  if (request.iova == address_of(request.addr))
    return register_in(pool_of(request.domain, 0), request, access, handle_out);
  pinrail_status_t status = PINRAIL_ERR_NOT_FOUND;
  for (unsigned number = 1; number < kPools && status == PINRAIL_ERR_NOT_FOUND; ++number)
    status = register_in(pool_of(request.domain, number), request, access, handle_out);
  return status;
}

// Returns false if the request cannot be cached; nothing is held then.
bool register_cached(const Request& request, Region* region) {
  uint32_t access = 0;
  if (request.length == 0 || !cacheable(request.access, &access)) return false;
  if (register_in_some_pool(request, access, &region->handle) != PINRAIL_SUCCESS) return false;
  counts().registrations.fetch_add(1, std::memory_order_relaxed);
  region->trace_id = Recorder::registered(request.addr, request.length, access & PINRAIL_RIGHTS_MASK);
  region->real = nullptr;
  show(request, region);
  return true;
}

// Registers by a real function. Without pinrun, what the pools keep unused would not be at the device: it goes if the
// device lacks something. The last try is for what was dead.
template <typename Function, typename... Arguments>
ibv_mr* register_real(Function function, Arguments... arguments) {
  ibv_mr* region = call_real(function, arguments...);
  bool has_more = !inside_real_call();
  while (region == nullptr && is_lack(errno) && has_more) {
    has_more = make_room();
    region = call_real(function, arguments...);
  }
  return region;
}

// Returns NULL if the request cannot be cached, or comes from libibverbs itself.
ibv_mr* cached_region(const Request& request) {
  if (inside_real_call()) return nullptr;
  Region* region = new_region();
  if (region == nullptr) return nullptr;
  if (register_cached(request, region)) return &region->mr;
  free_region(region);
  count_passed();
  return nullptr;
}

// Gives back what the region stands for. Returns 0 or an errno.
int release(const Region& region) {
  if (region.real != nullptr) return call_real(real_verbs().dereg_mr, region.real);
  if (region.handle.reg == nullptr) return EINVAL;  // deregistered already
  Recorder::deregistered(region.trace_id, region.mr.addr, region.mr.length);
  return pinrail_mpool_deregister(region.handle) == PINRAIL_SUCCESS ? 0 : EINVAL;
}

// What a region that ibv_rereg_mr() changes is asked to be.
Request changed(const Region& region, int flags, ibv_pd* domain, void* addr, size_t length, int access) {
  Request request{false, region.mr.pd, region.mr.addr, region.mr.length, region.iova, region.access};
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) request.domain = domain;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) request.access = static_cast<unsigned>(access);
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0) return request;
  request.addr = addr;
  request.length = length;
  request.iova = address_of(addr);
  return request;
}

bool register_somehow(const Request& request, Region* region) {
  if (register_cached(request, region)) return true;
  ibv_mr* real = register_real(real_region, request.domain, request.addr, request.length, request.iova, request.access);
  if (real == nullptr) return false;
  count_passed();
  region->mr = *real;
  region->real = real;
  region->iova = request.iova;
  region->access = request.access;
  return true;
}

// The old region is given back last, so that it stays valid if the new registration fails.
int reregister(Region* region, const Request& request) {
  Region next{};
  if (!register_somehow(request, &next)) return IBV_REREG_MR_ERR_CMD;
  release(*region);
  *region = next;
  return 0;
}

}  // namespace
}  // namespace pinrail::pinrun

using namespace pinrail::pinrun;

extern "C" {

PINRAIL_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  ibv_mr* cached = cached_region({false, pd, addr, length, address_of(addr), static_cast<unsigned>(access)});
  return cached != nullptr ? cached : register_real(real_verbs().reg_mr, pd, addr, length, access);
}

PINRAIL_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  ibv_mr* cached = cached_region({false, pd, addr, length, iova, access});
  return cached != nullptr ? cached : register_real(real_verbs().reg_mr_iova2, pd, addr, length, iova, access);
}

PINRAIL_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  ibv_mr* cached = cached_region({false, pd, addr, length, iova, static_cast<unsigned>(access)});
  return cached != nullptr ? cached : register_real(real_verbs().reg_mr_iova, pd, addr, length, iova, access);
}

// Pools register whole allocations of GPU memory, so that a key exposes more than was asked for: only with --share. The
// descriptor names the buffer, but every export makes another one; the pool knows a buffer by its address, and asks the
// driver at each hit whether it is still the same.
PINRAIL_API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  ibv_mr* cached = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as the caller gave it
  void* addr = reinterpret_cast<void*>(iova);
  if (options().share)
    cached = cached_region({true, pd, addr, length, iova, static_cast<unsigned>(access)});
  else
    count_passed();
  if (cached != nullptr) return cached;
  if (real_verbs().reg_dmabuf_mr != nullptr)
    return register_real(real_verbs().reg_dmabuf_mr, pd, offset, length, iova, fd, access);
  errno = EOPNOTSUPP;
  return nullptr;
}

PINRAIL_API int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  constexpr int kKnown = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  Region* region = region_of(mr);
  if (region == nullptr) return call_real(real_verbs().rereg_mr, mr, flags, pd, addr, length, access);
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if ((flags & ~kKnown) == 0 && !(moves && (addr == nullptr || length == 0)))
    return reregister(region, changed(*region, flags, pd, addr, length, access));
  errno = EINVAL;
  return IBV_REREG_MR_ERR_INPUT;
}

PINRAIL_API int ibv_dereg_mr(ibv_mr* mr) {
  Region* region = region_of(mr);
  if (region == nullptr) return call_real(real_verbs().dereg_mr, mr);
  const int error = release(*region);
  if (error != 0) return error;
  region->handle.reg = nullptr;
  region->real = nullptr;
  free_region(region);
  return 0;
}

PINRAIL_API int ibv_dealloc_pd(ibv_pd* pd) {
  return forget_domain(pd) ? call_real(real_verbs().dealloc_pd, pd) : EBUSY;
}

// An imported domain ends with this call, which cannot refuse. The domain itself lives on in the process that shared
// it.
PINRAIL_API void ibv_unimport_pd(ibv_pd* pd) {
  abandon_domain(pd);
  if (real_verbs().unimport_pd != nullptr) call_real(real_verbs().unimport_pd, pd);
}

PINRAIL_API int ibv_close_device(ibv_context* device) {
  forget_device(device);
  return call_real(real_verbs().close_device, device);
}

}  // extern "C"
