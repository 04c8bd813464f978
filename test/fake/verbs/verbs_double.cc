// SPDX-License-Identifier: BSD-3-Clause
// verbs_double.cc - libibverbs.so.1 without a device: memory regions that are only counted.
//
// As seen with rdma-core 44: ibv_reg_mr() calls ibv_reg_mr_iova2() by name; a length of 0, a NULL address and a remote
// right without local write are refused; a domain that has regions cannot be freed (EBUSY); closing a device, or ending
// the use of an imported domain, frees nothing else; regions with equal keys have different handles. Deregistering and
// freeing a domain go through functions that provider libraries call by name (ibv_cmd_*), after which the provider
// frees the memory. ibv_rereg_mr() keeps the keys but for another range.
#include "test/fake/verbs/verbs_double.h"

#include <infiniband/verbs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// Public headers do not declare them.
extern "C" int ibv_cmd_dereg_mr(ibv_mr* mr);
extern "C" int ibv_cmd_dealloc_pd(ibv_pd* pd);

#define EXPORTED __attribute__((visibility("default")))

namespace {

struct Domain {
  ibv_pd pd;
  std::atomic<int> regions;
};

constexpr uint64_t kOwn = 0x646f75626c65;

struct Region {
  ibv_mr mr;
  unsigned type;  // as struct verbs_mr of libibverbs
  unsigned access;
  uint64_t own;  // kOwn: this double's
  bool live;
  void* of_provider;  // a device's driver allocates in each call, and frees as it deregisters
};

// What a device knows by key.
std::mutex mutex;
std::map<uint32_t, Region*>& keys() {
  static auto* const all = new std::map<uint32_t, Region*>;  // threads may use it while the process exits
  return *all;
}
void set_key(uint32_t key, Region* region) {
  const std::lock_guard<std::mutex> guard(mutex);
  if (region != nullptr)
    keys()[key] = region;
  else
    keys().erase(key);
}

std::atomic<uint64_t> made{0}, live{0}, fail_from{0}, most_live{UINT64_MAX}, last_iova{0};
std::atomic<uint64_t> leaving{0};
std::atomic<unsigned> slow_ms{0};
std::atomic<uint32_t> next_key{1};

Domain* domain_of(ibv_pd* pd) { return reinterpret_cast<Domain*>(pd); }

ibv_mr* fail(int error) {
  errno = error;
  return nullptr;
}

// The memory of a region is kept, so that a second deregistration is seen.
ibv_mr* make(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  constexpr unsigned kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (length == 0) return fail(EINVAL);
  if (addr == nullptr || length > UINT64_MAX - reinterpret_cast<uintptr_t>(addr)) return fail(EFAULT);
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return fail(EINVAL);
  const uint64_t number = made.fetch_add(1) + 1, failing = fail_from.load();
  if ((failing != 0 && number >= failing) || live.load() >= most_live.load()) return fail(ENOMEM);
  auto* region = new Region{};
  const uint32_t key = next_key.fetch_add(1);
  region->mr.context = pd->context;
  region->mr.pd = pd;
  region->mr.addr = addr;
  region->mr.length = length;
  region->mr.lkey = region->mr.rkey = key;
  region->mr.handle = key + 1000;
  region->access = access;
  region->own = kOwn;
  region->live = true;
  set_key(key, region);
  region->of_provider = std::malloc(40);
  domain_of(pd)->regions.fetch_add(1);
  live.fetch_add(1);
  last_iova.store(iova);
  return &region->mr;
}

}  // namespace

extern "C" {

EXPORTED uint64_t verbs_double_registered() { return made.load(); }
EXPORTED uint64_t verbs_double_live() { return live.load(); }
EXPORTED uint64_t verbs_double_iova() { return last_iova.load(); }
EXPORTED void verbs_double_slow(unsigned ms) { slow_ms.store(ms); }
EXPORTED uint64_t verbs_double_leaving() { return leaving.load(); }
EXPORTED void verbs_double_most_live(uint64_t n) { most_live.store(n); }
EXPORTED void verbs_double_fail_from(uint64_t n) { fail_from.store(n == 0 ? 0 : made.load() + n); }

EXPORTED ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* domain = new Domain{};
  domain->pd.context = context;
  return &domain->pd;
}

EXPORTED int ibv_cmd_dealloc_pd(ibv_pd* pd) { return domain_of(pd)->regions.load() != 0 ? EBUSY : 0; }

// The memory is overwritten, so that later use is seen.
EXPORTED int ibv_dealloc_pd(ibv_pd* pd) {
  const int error = ibv_cmd_dealloc_pd(pd);
  if (error != 0) return error;
  pd->context = nullptr;
  delete domain_of(pd);
  return 0;
}

EXPORTED void ibv_unimport_pd(ibv_pd* pd) {
  pd->context = nullptr;
  delete domain_of(pd);
}

EXPORTED ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  return nullptr;
}

EXPORTED ibv_context* ibv_open_device(ibv_device*) { return nullptr; }

EXPORTED int ibv_close_device(ibv_context*) { return 0; }

EXPORTED ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  return make(pd, addr, length, iova, access);
}

EXPORTED ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}

EXPORTED ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, reinterpret_cast<uintptr_t>(addr), static_cast<unsigned>(access));
}

EXPORTED ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t, size_t length, uint64_t iova, int, int access) {
  return make(pd, reinterpret_cast<void*>(iova), length, iova, static_cast<unsigned>(access));
}

EXPORTED int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  auto* region = reinterpret_cast<Region*>(mr);
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  const bool changes_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  if (region->type != 0 || (flags & ~7) != 0 || (moves && (addr == nullptr || length == 0)) ||
      (access != 0 && !changes_access)) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  if (region->own != kOwn || !region->live) std::abort();
  if (moves) {
    const uint64_t number = made.fetch_add(1) + 1, failing = fail_from.load();
    if (failing != 0 && number >= failing) return static_cast<void>(fail(ENOMEM)), IBV_REREG_MR_ERR_CMD;
    set_key(mr->rkey, nullptr);
    mr->lkey = mr->rkey = next_key.fetch_add(1);
    mr->addr = addr;
    mr->length = length;
    last_iova.store(reinterpret_cast<uintptr_t>(addr));
    set_key(mr->rkey, region);
  }
  if (changes_access) region->access = static_cast<unsigned>(access);
  if ((flags & IBV_REREG_MR_CHANGE_PD) == 0) return 0;
  domain_of(mr->pd)->regions.fetch_sub(1);
  domain_of(pd)->regions.fetch_add(1);
  mr->pd = pd;
  return 0;
}

// The memory of a region of this double is kept, so that a second deregistration is seen.
EXPORTED int ibv_cmd_dereg_mr(ibv_mr* mr) {
  auto* region = reinterpret_cast<Region*>(mr);
  if (region->own != kOwn || !region->live) std::abort();
  region->live = false;
  leaving.fetch_add(1);
  if (slow_ms.load() != 0) usleep(slow_ms.load() * 1000);
  leaving.fetch_sub(1);
  set_key(mr->rkey, nullptr);
  std::free(region->of_provider);
  domain_of(mr->pd)->regions.fetch_sub(1);
  live.fetch_sub(1);
  return 0;
}

EXPORTED int ibv_dereg_mr(ibv_mr* mr) {
  const bool own = reinterpret_cast<Region*>(mr)->own == kOwn;
  const int error = ibv_cmd_dereg_mr(mr);
  if (error == 0 && !own) std::free(mr);
  return error;
}

EXPORTED bool verbs_double_allows(uint32_t key, const ibv_pd* pd, const void* addr, unsigned access) {
  const std::lock_guard<std::mutex> guard(mutex);
  const auto found = keys().find(key);
  if (found == keys().end()) return false;
  const Region& region = *found->second;
  const size_t offset = reinterpret_cast<uintptr_t>(addr) - reinterpret_cast<uintptr_t>(region.mr.addr);
  return region.mr.pd == pd && offset < region.mr.length && (region.access & access) == access;
}

}  // extern "C"
