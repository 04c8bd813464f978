// SPDX-License-Identifier: BSD-3-Clause
// registrar.cc - a registrar of one protection domain, whose tail keeps the real memory region.
#include <cerrno>
#include <ctime>
#include <new>
#include <utility>

#include "pinrun.h"

namespace pinrail::pinrun {
namespace {

struct Translation {
  unsigned verbs;
  uint32_t pinrail;
};
constexpr Translation kAccess[] = {{IBV_ACCESS_LOCAL_WRITE, PINRAIL_ACCESS_LOCAL_WRITE},
                                   {IBV_ACCESS_REMOTE_READ, PINRAIL_ACCESS_REMOTE_READ},
                                   {IBV_ACCESS_REMOTE_WRITE, PINRAIL_ACCESS_REMOTE_WRITE},
                                   {IBV_ACCESS_REMOTE_ATOMIC, PINRAIL_ACCESS_REMOTE_ATOMIC},
                                   {IBV_ACCESS_RELAXED_ORDERING, PINRAIL_TRAIT_RELAXED_ORDERING}};

unsigned verbs_access(uint32_t access) {
  unsigned result = 0;
  for (const Translation& bit : kAccess) result |= (access & bit.pinrail) != 0 ? bit.verbs : 0;
  return result;
}

struct Tail {
  ibv_mr* region;                // NULL after take_device_region()
  uint32_t kind;                 // PINRAIL_KIND_*
  uint64_t shift;                // of the wire's addresses
  std::atomic<uint32_t> in_use;  // regions of the program; kTaken is added by take_device_region()
};
constexpr uint32_t kTaken = uint32_t{1} << 31;
Tail* tail_of(const pinrail_registration_t* reg) { return static_cast<Tail*>(pinrail_registration_tail(reg)); }

ibv_mr* register_dmabuf(ibv_pd* domain, const pinrail_register_request_t& request) {
  if (real_verbs().reg_dmabuf_mr == nullptr) return nullptr;
  return real_verbs().reg_dmabuf_mr(domain, request.fd_offset, request.length,
                                    reinterpret_cast<uintptr_t>(request.addr), request.fd,
                                    static_cast<int>(verbs_access(request.rights | request.traits)));
}

ibv_mr* register_host(ibv_pd* domain, const pinrail_register_request_t& request) {
  return real_region(domain, request.addr, request.length, reinterpret_cast<uintptr_t>(request.addr) + wanted_shift,
                     verbs_access(request.rights | request.traits));
}

// Pinrail evicts and calls again only if that can help.
pinrail_status_t status_of(int error) { return is_lack(error) ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR; }

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  const uint64_t start = now_ns();
  errno = 0;
  auto* domain = static_cast<ibv_pd*>(context);
  ibv_mr* region =
      request->kind == PINRAIL_KIND_DMABUF ? register_dmabuf(domain, *request) : register_host(domain, *request);
  if (region == nullptr) return status_of(errno);
  counts().device_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
  counts().device_calls.fetch_add(1, std::memory_order_relaxed);
  new (tail_of(reg)) Tail{region, request->kind, wanted_shift, {0}};
  reg->lkey = region->lkey;
  reg->rkey = region->rkey;
  return PINRAIL_SUCCESS;
}

pinrail_status_t deregister_mem(void*, pinrail_registration_t* reg, pinrail_reason_t) {
  if (tail_of(reg)->region == nullptr) return PINRAIL_SUCCESS;
  const uint64_t start = now_ns();
  if (real_verbs().dereg_mr(tail_of(reg)->region) != 0) return PINRAIL_ERR_ERROR;
  counts().release_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
  counts().releases.fetch_add(1, std::memory_order_relaxed);
  return PINRAIL_SUCCESS;
}

}  // namespace

thread_local uint64_t wanted_shift = 0;

uint64_t shift_of(const pinrail_registration_t* reg) { return tail_of(reg)->shift; }

uint32_t device_handle_of(const pinrail_registration_t* reg) { return tail_of(reg)->region->handle; }

bool is_dmabuf(const pinrail_registration_t* reg) { return tail_of(reg)->kind == PINRAIL_KIND_DMABUF; }

// relaxed: the order of the changes of one word decides between start_use() and take_device_region(); the registration
// is complete since the pool returned it
bool start_use(pinrail_registration_t* reg) {
  return tail_of(reg)->in_use.fetch_add(1, std::memory_order_relaxed) < kTaken;
}

void end_use(pinrail_registration_t* reg) { tail_of(reg)->in_use.fetch_sub(1, std::memory_order_relaxed); }

ibv_mr* take_device_region(pinrail_registration_t* reg) {
  uint32_t one = 1;
  if (!tail_of(reg)->in_use.compare_exchange_strong(one, kTaken + 1, std::memory_order_relaxed)) return nullptr;
  return std::exchange(tail_of(reg)->region, nullptr);
}

bool cacheable(unsigned access, uint32_t* access_out) {
  uint32_t result = 0;
  for (const Translation& bit : kAccess) {
    if ((access & bit.verbs) == 0) continue;
    result |= bit.pinrail;
    access &= ~bit.verbs;
  }
  *access_out = result;
  return access == 0;
}

pinrail_registrar_t registrar_of(ibv_pd* domain) {
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "pinrun";
  table.context = domain;
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = uint32_t{PINRAIL_KIND_HOST} | uint32_t{PINRAIL_KIND_DMABUF};
  table.granularity = 1;
  table.tail_size = sizeof(Tail);
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  return table;
}

bool is_lack(int error) { return error == ENOMEM || error == ENOSPC || error == EAGAIN; }

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace pinrail::pinrun
