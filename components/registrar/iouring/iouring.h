// SPDX-License-Identifier: BSD-3-Clause
// iouring.h - registrations as io_uring's registered buffers: rings, their slots, and what moves bytes.
//
// Owns     the rings of one registrar, their buffer tables and the files that transfers go through.
// Threads  register, deregister and transfers may run together; open_registrar() and close_registrar() exclude all.
//
// iouring/U1  A key is ring index << kSlotBits | slot; it is both lkey and rkey. A key is handed out to one
//     registration at a time, and not again before its slot was cleared.
// iouring/U2  rings[i] is written once, before the first key of ring i is handed out, and stands until the registrar
//     closes.
// iouring/U3  The slots lock is never held across a system call; a ring's transfer lock is (transfers and settle()
//     only).
#ifndef PINRAIL_COMPONENTS_REGISTRAR_IOURING_IOURING_H
#define PINRAIL_COMPONENTS_REGISTRAR_IOURING_IOURING_H

#include <liburing.h>
#include <pinrail/component.h>

#include <atomic>
#include <memory>

#include "base/core/status.h"
#include "base/sync/closed_in_child.h"
#include "base/sync/lock.h"

namespace pinrail::iouring {

constexpr uint32_t kSlotBits = 14;  // the kernel's largest buffer table: 16,384
constexpr uint32_t kSlots = 1u << kSlotBits;
constexpr uint32_t kNone = ~0u;
constexpr size_t kMaxLength = size_t{1} << 30;  // the kernel's largest buffer

// One io_uring with a full, sparse buffer table.
struct Ring {
  explicit Ring(uint32_t number) : index(number) {}
  const uint32_t index;
  io_uring uring{};
  closed_in_child::Note* note = nullptr;  // of uring's descriptor, which holds what is pinned

  Mutex transfer{LockRank::registrar};  // submission and completion queue, file
  uint64_t operations GUARDED_BY(transfer) = 1;
  int file GUARDED_BY(transfer) = -1;  // memfd that the device's bytes pass through; made by the first transfer

  std::atomic<bool> unsettled{false};  // slots were cleared since settle(); only where releases are late

  // Guarded by the registrar's slots lock.
  uint32_t first_free = kNone;
  uint32_t next_free[kSlots];
  Ring* next_with_free = nullptr;
};

struct Registrar {
  Registrar(const pinrail_host_t* where, uint32_t limit) : host(where), max_rings(limit) {}
  const pinrail_host_t* const host;
  const uint32_t max_rings;
  pinrail_registrar_t limits{};  // the table that the pool calls, for check_request()
  bool releases_late = false;    // this kernel (before 6.4) unpins a cleared slot about a second later

  Mutex slots{LockRank::registrar};
  Condition grown;
  bool growing GUARDED_BY(slots) = false;
  uint32_t ring_count GUARDED_BY(slots) = 0;
  Ring* with_free GUARDED_BY(slots) = nullptr;
  std::unique_ptr<Ring*[]> rings;  // max_rings of them; iouring/U2
};

// iouring_ring.cc - life of rings and slots.

// NOT_AVAILABLE and a line in the log: no io_uring here.
Status open_registrar(const pinrail_host_t* host, uint32_t max_rings, std::unique_ptr<Registrar>* registrar_out);
void close_registrar(Registrar* registrar);

// OUT_OF_RESOURCE: every slot of every ring that may be is taken.
Status take_slot(Registrar* registrar, uint32_t* key_out);
void give_slot(Registrar* registrar, uint32_t key);

inline Ring* ring_of(const Registrar& registrar, uint32_t key) { return registrar.rings[key >> kSlotBits]; }
inline uint32_t slot_of(uint32_t key) { return key & (kSlots - 1); }

// Puts a buffer into a slot ({NULL, 0} clears it). 0, or a negative errno.
int update_slot(Ring* ring, uint32_t slot, iovec buffer, uint64_t tag);

// Where releases are late, waits (some 50 ms) until what was cleared is unpinned.
void settle(Registrar* registrar);

// iouring_register.cc
pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason);

// iouring_transfer.cc
pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length);
pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length);

}  // namespace pinrail::iouring

#endif
