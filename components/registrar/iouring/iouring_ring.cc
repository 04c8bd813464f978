// SPDX-License-Identifier: BSD-3-Clause
// Rings and their slots. Rings are opened one by one when slots run out, and closed together. API context.
// The functions take the locks that they need.
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>

#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "components/registrar/iouring/iouring.h"

namespace pinrail::iouring {
namespace {

constexpr unsigned kQueueDepth = 2;  // transfers run one at a time
constexpr uint64_t kProbeTag = 1;
constexpr useconds_t kGraceMicroseconds = 30000;

bool may_lock_nothing() {
  rlimit limit{};
  return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < page_bytes();
}

// Translates the error of a refused ring. Descriptors and memory may be free again later; an io_uring that is switched
// off or too old will stay so. A ring's own pages count as locked memory.
Status status_of_refused_ring(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case ENOMEM: return may_lock_nothing() ? PINRAIL_ERR_NOT_AVAILABLE : PINRAIL_ERR_OUT_OF_RESOURCE;
    default: return PINRAIL_ERR_NOT_AVAILABLE;
  }
}

// Returns 0 or a positive errno. liburing does not let the descriptor's number be chosen (see base/core/files.h).
int open_ring(Ring* ring) {
  constexpr int kTries = 100;  // the process may fork at that moment
  for (int i = 0; i < kTries; ++i) {
    const uint64_t forks = own_file::count_forks();
    int result = io_uring_queue_init(kQueueDepth, &ring->uring, 0);
    if (result < 0) return -result;
    ring->uring.ring_fd = ring->uring.enter_ring_fd = above_standard(ring->uring.ring_fd);
    if (ring->uring.ring_fd < 0) result = -errno;
    if (result >= 0 && !ring->file.take(ring->uring.ring_fd, FileKind::ring, forks)) result = -errno;
    if (result >= 0) result = io_uring_ring_dontfork(&ring->uring);
    if (result >= 0) result = io_uring_register_buffers_sparse(&ring->uring, kSlots);
    if (result >= 0) return 0;
    static_cast<void>(ring->file.release());
    io_uring_queue_exit(&ring->uring);
    if (result != -EAGAIN) return -result;
  }
  return EAGAIN;
}

// Closes no descriptor: the program has, and the number may name a file of its own.
void unmap_ring(Ring* ring) {
  io_uring without_descriptor = ring->uring;
  without_descriptor.ring_fd = -1;
  io_uring_queue_exit(&without_descriptor);
}

// In a forked child there is nothing to close: neither the descriptor nor the ring's memory was inherited (F1). Nor is
// there where the ring could not be opened.
void close_ring(Ring* ring) {
  const bool has_none = ring->file.number_unchecked() == -1;
  const bool is_open = ring->file.is_open();
  static_cast<void>(ring->file.release());
  Guard guard(ring->transfer);
  if (has_none || ring->is_lost) return;
  if (!is_open) return unmap_ring(ring);
  // Unpins before it returns; closing the descriptor alone does not guarantee that.
  while (io_uring_unregister_buffers(&ring->uring) == -EINTR) {
  }
  io_uring_queue_exit(&ring->uring);
}

void log_refusal(const Registrar& registrar, uint32_t index, int error) {
  char line[128];
  std::snprintf(line, sizeof(line), "io_uring number %u was refused (errno %s)", index, ErrnoText(error).c_str());
  registrar.host->log(registrar.host, PINRAIL_LOG_INFO, line);
}

// Makes room, so that no slot that is given back needs memory.
Status make_room_for_keys(Registrar* registrar, size_t rings) {
  Guard guard(registrar->slots);
  return guarded([=]() NO_THREAD_SAFETY_ANALYSIS {  // runs inside the call, under the lock
    registrar->free_keys.reserve(rings * kSlots);
  });
}

// Opens the ring of that index and adds its slots.
Status add_ring(Registrar* registrar, uint32_t index) {
  std::unique_ptr<Ring> ring(new (std::nothrow) Ring(index));
  if (ring == nullptr || !make_room_for_keys(registrar, index + 1).ok()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const int error = open_ring(ring.get());
  if (error != 0) {
    log_refusal(*registrar, index, error);
    return status_of_refused_ring(error);
  }
  registrar->rings[index] = std::move(ring);
  Guard guard(registrar->slots);
  for (uint32_t slot = kSlots; slot-- > 0;) registrar->free_keys.push_back(index << kSlotBits | slot);
  registrar->ring_count = index + 1;
  return success();
}

// Registers a page and clears it, to test whether this user may pin and whether a clear unpins at once. The kernel
// posts a completion when a tagged buffer is gone.
Status probe(Registrar* registrar) {
  const size_t bytes = page_bytes();
  const OwnPages page(bytes);
  if (!page.is_mapped()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Ring* ring = ring_of(*registrar, 0);
  const int error = -update_slot(ring, 0, {page.at(), bytes}, kProbeTag);
  // The limit is in use at the moment: evicting may help later. What was not found out goes by the kernel's release.
  utsname kernel{};
  registrar->releases_late = uname(&kernel) != 0 || is_release_before(kernel.release, 6, 4);
  if (error == ENOMEM && !may_lock_nothing()) return success();
  if (error != 0) {
    log_refusal(*registrar, 0, error);
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  update_slot(ring, 0, {nullptr, 0}, 0);
  io_uring_cqe* done = nullptr;
  registrar->releases_late = io_uring_peek_cqe(&ring->uring, &done) != 0;
  ring->unsettled = registrar->releases_late;
  settle(registrar);
  return success();
}

// Takes the slots lock. False: no slot is free.
bool pop_key(Registrar* registrar, uint32_t* key_out) {
  Guard guard(registrar->slots);
  if (registrar->free_keys.empty()) return false;
  *key_out = registrar->free_keys.back();
  registrar->free_keys.pop_back();
  return true;
}

uint32_t ring_count(Registrar* registrar) {
  Guard guard(registrar->slots);
  return registrar->ring_count;
}

void settle_ring(Ring* ring) {
  Guard guard(ring->transfer);  // before the test, so that a thread that settles already is waited for
  if (!ring->unsettled.exchange(false) || !ring->file.is_open()) return;
  // These kernels put what was removed from a ring's tables on a queue after an RCU grace period, and run the queue a
  // second later. Unregistering a table runs it at once and waits for its end. A table of files is used for that,
  // because it can be added and removed beside the buffers. If it is unregistered before the grace period is over, the
  // call waits the whole second.
  usleep(kGraceMicroseconds);
  if (!ring->has_file && io_uring_register_files_sparse(&ring->uring, 1) != 0) return;
  ring->has_file = false;
  while (io_uring_unregister_files(&ring->uring) == -EINTR) {
  }
}

}  // namespace

// Opens the first ring and tests that pinning works. NOT_AVAILABLE: it does not, or io_uring is refused.
// OUT_OF_RESOURCE.
Status open_registrar(const pinrail_host_t* host, uint32_t max_rings, std::unique_ptr<Registrar>* registrar_out) {
  std::unique_ptr<Registrar> registrar(new (std::nothrow) Registrar(host, max_rings));
  if (registrar == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  registrar->rings.reset(new (std::nothrow) std::unique_ptr<Ring>[max_rings]);
  if (registrar->rings == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Status status = add_ring(registrar.get(), 0);
  if (status.ok()) status = probe(registrar.get());
  if (status.ok()) *registrar_out = std::move(registrar);
  return status;
}

Ring::~Ring() { close_ring(this); }

// If no slot is free one thread opens a further ring, without the slots lock, and the others wait for it.
// OUT_OF_RESOURCE: no ring can be added.
Status take_slot(Registrar* registrar, uint32_t* key_out) {
  if (pop_key(registrar, key_out)) return success();
  Guard growing(registrar->growth);
  while (!pop_key(registrar, key_out)) {
    const uint32_t index = ring_count(registrar);
    // OUT_OF_RESOURCE, because slots of the other rings can still be evicted.
    if (index == registrar->max_rings || !add_ring(registrar, index).ok()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  return success();
}

// Takes the slots lock. The slot was cleared, or its buffer will be replaced.
void give_slot(Registrar* registrar, uint32_t key) {
  Guard guard(registrar->slots);
  if (!ring_of(*registrar, key)->is_lost) registrar->free_keys.push_back(key);
}

int update_slot(Ring* ring, uint32_t slot, iovec buffer, uint64_t tag) {
  if (!ring->file.is_open()) return -EBADF;
  __u64 kernel_tag = tag;
  const int result = io_uring_register_buffers_update_tag(&ring->uring, slot, &buffer, &kernel_tag, 1);
  return result < 0 ? result : 0;
}

void lose_ring(Registrar* registrar, Ring* ring) {
  {
    Guard guard(ring->transfer);
    if (!ring->is_lost.exchange(true)) unmap_ring(ring);
  }
  {
    Guard guard(registrar->slots);
    std::vector<uint32_t>& keys = registrar->free_keys;
    const auto is_lost = [ring](uint32_t key) { return key >> kSlotBits == ring->index; };
    keys.erase(std::remove_if(keys.begin(), keys.end(), is_lost), keys.end());
  }
  if (!registrar->loss_reported.exchange(true)) show(registrar->host, "ring closed");
}

void settle(Registrar* registrar) {
  if (!registrar->releases_late) return;
  const uint32_t count = ring_count(registrar);
  for (uint32_t i = 0; i < count; ++i) settle_ring(registrar->rings[i].get());
}

}  // namespace pinrail::iouring
