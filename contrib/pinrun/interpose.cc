// SPDX-License-Identifier: BSD-3-Clause
// interpose.cc - the functions that the program calls instead of libibverbs' own. libpinrun.map gives them the versions
// that programs ask for. And the options from the environment, and what is printed when the process exits.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "pinrun.h"

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

void count_passed() { counts().passed.fetch_add(1, std::memory_order_relaxed); }

// A pool calls such ranges wrong in words; libibverbs and the kernel have an errno for them.
bool is_range(const Request& request) {
  return request.addr != nullptr && request.length != 0 && request.length <= SIZE_MAX / 4 &&
         request.length <= UINT64_MAX - address_of(request.addr);
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

// Whether the registration, of the range that was asked for, is also of the memory and at the address on the wire, and
// no other region took what the device has of it.
bool serves(pinrail_registration_t* reg, const Request& request) {
  return request.is_dmabuf == is_dmabuf(reg) && shift_of(reg) == request.iova - address_of(request.addr) &&
         start_use(reg);
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
  if (!is_range(request) || !cacheable(request.access, &access)) return false;
  if (register_in_some_pool(request, access, &region->handle) != PINRAIL_SUCCESS) return false;
  counts().registrations.fetch_add(1, std::memory_order_relaxed);
  show(request, region);
  return true;
}

// Returns NULL if the request cannot be cached.
ibv_mr* cached_region(const Request& request) {
  Region* region = new_region();
  if (region == nullptr) return nullptr;
  if (register_cached(request, region)) return &region->mr;
  free_region(region);
  count_passed();
  return nullptr;
}

ibv_mr* cached_or_real(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  ibv_mr* cached = cached_region({false, domain, addr, length, iova, access});
  return cached != nullptr ? cached : register_real(domain, addr, length, iova, access);
}

// Gives back what the region stands for. Returns 0 or an errno.
int release(const Region& region) {
  if (region.real != nullptr) return real_verbs().dereg_mr(region.real);
  end_use(region.handle.reg);
  return pinrail_mpool_deregister(region.handle) == PINRAIL_SUCCESS ? 0 : EINVAL;
}

}  // namespace
}  // namespace pinrail::pinrun

using namespace pinrail::pinrun;

extern "C" {

PINRAIL_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return cached_or_real(pd, addr, length, address_of(addr), static_cast<unsigned>(access));
}

PINRAIL_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  return cached_or_real(pd, addr, length, iova, access);
}

PINRAIL_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return cached_or_real(pd, addr, length, iova, static_cast<unsigned>(access));
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
    return with_room([&] { return real_verbs().reg_dmabuf_mr(pd, offset, length, iova, fd, access); },
                     [](ibv_mr* region) { return region != nullptr; });
  errno = EOPNOTSUPP;
  return nullptr;
}

PINRAIL_API int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  Region* region = region_of(mr);
  if (region != nullptr) return reregister(region, {flags, pd, addr, length, access});
  return real_verbs().rereg_mr(mr, flags, pd, addr, length, access);
}

PINRAIL_API int ibv_dereg_mr(ibv_mr* mr) {
  if (is_gone(mr)) return EINVAL;
  Region* region = region_of(mr);
  if (region == nullptr) return real_verbs().dereg_mr(mr);
  const int error = release(*region);
  if (error != 0) return error;
  mark_as_gone(region);
  free_region(region);
  return 0;
}

// Provider libraries call this one to deregister, and free the region's memory afterwards. A region of ours comes here
// if the program called libibverbs' own ibv_dereg_mr().
PINRAIL_API int ibv_cmd_dereg_mr(ibv_mr* mr) {
  Region* region = region_of(mr);
  if (region == nullptr) return real_verbs().cmd_dereg_mr(mr);
  const int error = release(*region);
  if (error == 0) mark_as_gone(region);
  return error;
}

PINRAIL_API int ibv_dealloc_pd(ibv_pd* pd) { return end_domain(pd, real_verbs().dealloc_pd); }

// Provider libraries call this one to free a domain: also if the program called libibverbs' own ibv_dealloc_pd().
PINRAIL_API int ibv_cmd_dealloc_pd(ibv_pd* pd) { return end_domain(pd, real_verbs().cmd_dealloc_pd); }

// An imported domain ends with this call, which cannot refuse. The domain itself lives on in the process that shared
// it.
PINRAIL_API void ibv_unimport_pd(ibv_pd* pd) {
  abandon_domain(pd);
  if (real_verbs().unimport_pd != nullptr) real_verbs().unimport_pd(pd);
}

PINRAIL_API int ibv_close_device(ibv_context* device) {
  forget_device(device);
  return real_verbs().close_device(device);
}

}  // extern "C"

namespace pinrail::pinrun {
namespace {

Options chosen;
Counts figures;
pthread_once_t read = PTHREAD_ONCE_INIT;
pthread_once_t watched = PTHREAD_ONCE_INIT;

const char* value_of(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

void read_options() {
  const char* stats = value_of("PINRUN_STATS");
  chosen.stats = stats != nullptr;
  chosen.command = stats != nullptr ? std::strtol(stats, nullptr, 10) : 0;
  chosen.share = value_of("PINRUN_SHARE") != nullptr;
  chosen.release = value_of("PINRUN_RELEASE") != nullptr;
}

// A parent prints its own figures.
void fork_child() {
  for (auto* figure : {&figures.registrations, &figures.passed, &figures.device_calls, &figures.device_ns,
                       &figures.releases, &figures.release_ns})
    figure->store(0, std::memory_order_relaxed);
}
void watch_forks() { pthread_atfork(nullptr, nullptr, fork_child); }

double microseconds(uint64_t ns, uint64_t calls) {
  return calls != 0 ? static_cast<double>(ns) / 1e3 / static_cast<double>(calls) : 0;
}

__attribute__((destructor)) void at_exit() {
  if (options().stats) print_stats();
}

}  // namespace

const Options& options() {
  pthread_once(&read, read_options);
  return chosen;
}

Counts& counts() {
  pthread_once(&watched, watch_forks);
  return figures;
}

// A registration and a deregistration would have been made for each call; both are taken at their mean cost here.
void print_stats() {
  const uint64_t calls = figures.registrations, passed = figures.passed, made = figures.device_calls;
  if (calls + passed == 0) {
    if (options().command == getpid())
      std::fprintf(stderr, "pinrun: %s (pid %ld): no registration by this process\n", program_invocation_short_name,
                   static_cast<long>(getpid()));
    return;
  }
  const uint64_t hits = calls > made ? calls - made : 0;
  const double cost = microseconds(figures.device_ns, made) + microseconds(figures.release_ns, figures.releases);
  std::fprintf(stderr,
               "pinrun: %s (pid %ld): %" PRIu64 " registrations by the program: %" PRIu64 " from the cache, %" PRIu64
               " by the device, %" PRIu64
               " not cacheable\n"
               "pinrun: %.1f us each by the device (registration and deregistration): about %.3f s saved\n",
               program_invocation_short_name, static_cast<long>(getpid()), calls + passed, hits, calls - hits, passed,
               cost, static_cast<double>(hits) * cost / 1e6);
}

}  // namespace pinrail::pinrun
