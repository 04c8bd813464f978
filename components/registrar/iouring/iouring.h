// SPDX-License-Identifier: BSD-3-Clause
// iouring.h - registrar/iouring: registrations as io_uring's registered buffers. Rings, their slots, and transfers.
//
// Owns     the rings of one registrar, their buffer tables, and the files through which transfers go.
// Threads  register_mem, deregister_mem and transfers may run together; open_registrar() and the destructors exclude
//          all others.
// Context  API.
//
// A key is ring index << kSlotBits | slot; it is both lkey and rkey. A key belongs to one registration at a time, and
// is used again only after its slot was cleared.
//
// iouring/U2  rings[i] is written once, before the first key of ring i is used, and does not change until the registrar
//     closes.
//
// The slots lock is held across no system call but the C library's for more memory, when a ring is added. A ring's
// transfer lock is (in transfers and settle() only), and the growth lock.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_IOURING_IOURING_H
#define PINRAIL_COMPONENTS_REGISTRAR_IOURING_IOURING_H

#include <liburing.h>
#include <pinrail/component.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/core/status.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"

namespace pinrail::iouring {

constexpr uint32_t kSlotBits = 14;  // the kernel's largest buffer table: 16,384
constexpr uint32_t kSlots = 1u << kSlotBits;
constexpr size_t kMaxLength = size_t{1} << 30;  // the kernel's largest buffer

// One io_uring with a sparse buffer table of full size.
struct Ring {
  explicit Ring(uint32_t number) : index(number) {}
  ~Ring();
  const uint32_t index;
  io_uring uring{};
  OwnFile file;  // uring's descriptor, which keeps the pages pinned

  Mutex transfer{LockRank::leaf};  // guards submission queue, completion queue and table of files
  uint64_t operations GUARDED_BY(transfer) = 1;
  // The table of files has one entry: a memfd through which the device's bytes pass. The first transfer makes it. It
  // has no descriptor, whose number the program could close and give to a file of its own.
  bool has_file GUARDED_BY(transfer) = false;

  std::atomic<bool> is_lost{false};    // the program has closed the descriptor; the ring's memory is unmapped
  std::atomic<bool> unsettled{false};  // slots were cleared since settle(); used only if releases are late
};

struct Registrar {
  Registrar(const pinrail_host_t* where, uint32_t limit) : host(where), max_rings(limit) {}
  const pinrail_host_t* const host;
  const uint32_t max_rings;
  pinrail_registrar_t limits{};  // the table that the pool calls; check_request() reads its limits
  std::atomic<bool> loss_reported{false};
  bool releases_late = false;  // this kernel (before 6.4) unpins a cleared slot about a second later

  Mutex growth{LockRank::device};  // held while a ring is added
  Mutex slots{LockRank::leaf};
  uint32_t ring_count GUARDED_BY(slots) = 0;
  std::vector<uint32_t> free_keys GUARDED_BY(slots);  // has room for the slots of all rings
  std::unique_ptr<std::unique_ptr<Ring>[]> rings;     // max_rings of them; iouring/U2
};

// iouring_ring.cc: rings and their slots.

// NOT_AVAILABLE, and a line in the log: io_uring cannot be used here. OUT_OF_RESOURCE: no memory or descriptor.
Status open_registrar(const pinrail_host_t* host, uint32_t max_rings, std::unique_ptr<Registrar>* registrar_out);

// take_slot() takes the slots lock and may open a ring. OUT_OF_RESOURCE: every slot of all permitted rings is in use.
// give_slot() frees a cleared slot.
Status take_slot(Registrar* registrar, uint32_t* key_out);
void give_slot(Registrar* registrar, uint32_t key);

inline Ring* ring_of(const Registrar& registrar, uint32_t key) { return registrar.rings[key >> kSlotBits].get(); }
inline uint32_t slot_of(uint32_t key) { return key & (kSlots - 1); }

// Puts a buffer into a slot ({NULL, 0} clears it). Returns 0 or a negative errno; -EBADF: the ring is lost.
int update_slot(Ring* ring, uint32_t slot, iovec buffer, uint64_t tag);

// The program has closed the ring's descriptor: gives back the ring's memory, with which the kernel unpins what it
// holds, hands out no slot of it any more, and reports that once. Takes the ring's transfer lock, then the slots lock.
void lose_ring(Registrar* registrar, Ring* ring);

// If releases are late, waits (some 50 ms) until the cleared slots are unpinned. No lock may be held.
void settle(Registrar* registrar);

}  // namespace pinrail::iouring

#endif
