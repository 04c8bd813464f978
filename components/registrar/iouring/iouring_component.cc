// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "components/registrar/iouring/iouring.h"
#include "framework/registrar/request.h"

namespace pinrail::iouring {
namespace {

// Registers: takes a slot of a ring and puts the buffer into it. Deregisters: clears and frees the slot. API context;
// no lock is held across the system call.

// Returns 0 or an errno.
int fill_slot(Registrar* registrar, uint32_t key, iovec buffer) {
  Ring* ring = ring_of(*registrar, key);
  const int error = -update_slot(ring, slot_of(key), buffer, 0);
  if (error != ENOMEM || !registrar->releases_late) return error;
  settle(registrar);
  return -update_slot(ring, slot_of(key), buffer, 0);
}

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  Status status = check_request(registrar->limits, *request);
  if (!status.ok()) return status.code();
  if ((request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0 || has_own_iova(*request)) return PINRAIL_ERR_NOT_SUPPORTED;
  for (;;) {
    uint32_t key = 0;
    status = take_slot(registrar, &key);
    if (!status.ok()) return status.code();
    const int error = fill_slot(registrar, key, {request->addr, request->length});
    if (error == EBADF) {
      lose_ring(registrar, ring_of(*registrar, key));
      continue;  // another ring
    }
    if (error != 0) {
      give_slot(registrar, key);
      // EFAULT: a hole, or memory that is not writable; EOPNOTSUPP: pages of a file, on kernels before 6.5.
      return status_of_refusal(registrar->host, request->length, error).code();
    }
    reg->lkey = reg->rkey = key;
    return PINRAIL_SUCCESS;
  }
}

// The reason does not matter: a slot holds pages, not addresses.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  Ring* ring = ring_of(*registrar, reg->lkey);
  const int error = -update_slot(ring, slot_of(reg->lkey), {nullptr, 0}, 0);
  if (error == EBADF) {
    lose_ring(registrar, ring);  // with which the kernel unpins it
    return PINRAIL_SUCCESS;
  }
  if (registrar->releases_late) ring->unsettled = true;
  // The slot is freed even after an error: the next buffer in it replaces the old one.
  give_slot(registrar, reg->lkey);
  if (error == 0) return PINRAIL_SUCCESS;
  show_errno(registrar->host, "deregister failed", reg->length, error);
  return PINRAIL_ERR_ERROR;
}

// Reads and writes a registration through the ring, which copies between the registered pages and a file in memory. API
// context. transfer() takes the ring's transfer lock.

constexpr size_t kWindow = size_t{256} << 10;  // the most bytes in one operation

enum class Direction : uint8_t { device_reads, device_writes };

// What moves bytes between the start of the ring's file and the memory.
struct Operation {
  io_uring_op code;
  void* memory;
  size_t length;
  uint32_t slot;  // of a registration; not used where the memory is ordinary
};

// Gives the ring its file unless it has one. It will have so many bytes. Returns 0 or an errno.
int need_file_locked(Ring* ring, size_t bytes) REQUIRES(ring->transfer) {
  if (!may_make_file(bytes)) return EFBIG;
  if (ring->has_file) return 0;
  const Descriptor file(memfd_create("pinrail-iouring", MFD_CLOEXEC));
  if (!file.is_open()) return errno;
  const int number = file.get(), result = io_uring_register_files(&ring->uring, &number, 1);
  ring->has_file = result == 0;
  return -result;
}

void prepare_locked(Ring* ring, io_uring_sqe* sqe, const Operation& operation) REQUIRES(ring->transfer) {
  constexpr int kFile = 0;  // in the table of files
  io_uring_prep_rw(operation.code, sqe, kFile, operation.memory, static_cast<unsigned>(operation.length), 0);
  sqe->flags = IOSQE_FIXED_FILE;
  sqe->buf_index = static_cast<uint16_t>(operation.slot);
  sqe->user_data = ++ring->operations;
}

// Returns how many entries the kernel took, or a negative errno.
int submit_locked(Ring* ring) REQUIRES(ring->transfer) {
  if (!ring->file.is_open()) return -EBADF;
  int submitted = io_uring_submit(&ring->uring);
  while (submitted == -EINTR) submitted = io_uring_submit(&ring->uring);
  return submitted;
}

// Waits for the completions of as many operations, from that number on. Older completions, such as the probe's, are
// dropped. Returns 0 or a negative errno.
int wait_completions_locked(Ring* ring, uint64_t first, int count, int* results_out) REQUIRES(ring->transfer) {
  for (int seen = 0; seen < count;) {
    io_uring_cqe* cqe = nullptr;
    if (!ring->file.is_open()) return -EBADF;
    const int error = io_uring_wait_cqe(&ring->uring, &cqe);
    if (error == -EINTR) continue;
    if (error != 0) return error;
    const uint64_t which = cqe->user_data - first;
    if (which < static_cast<uint64_t>(count)) {
      results_out[which] = cqe->res;
      ++seen;
    }
    io_uring_cqe_seen(&ring->uring, cqe);
  }
  return 0;
}

// Runs the second operation after the first, and not at all if the first moves fewer bytes. Returns what the second
// moved, or what the first did if that is less than it should; or a negative errno.
int run_both_locked(Ring* ring, const Operation& first, const Operation& second) REQUIRES(ring->transfer) {
  constexpr int kBoth = 2;
  // What was refused before, and does nothing now.
  if (io_uring_sq_space_left(&ring->uring) < kBoth) submit_locked(ring);
  if (io_uring_sq_space_left(&ring->uring) < kBoth) return -EBUSY;
  io_uring_sqe* const entries[] = {io_uring_get_sqe(&ring->uring), io_uring_get_sqe(&ring->uring)};
  const uint64_t number = ring->operations + 1;
  prepare_locked(ring, entries[0], first);
  entries[0]->flags |= IOSQE_IO_LINK;
  prepare_locked(ring, entries[1], second);
  const int submitted = submit_locked(ring);
  const int taken = std::max(submitted, 0);
  // What was not taken stays in the queue until the next submission, when other memory may have the slot.
  for (int i = taken; i < kBoth; ++i) io_uring_prep_nop(entries[i]);
  int moved[kBoth] = {};
  const int error = wait_completions_locked(ring, number, taken, moved);
  if (error != 0) return error;
  if (taken < kBoth) return submitted < 0 ? submitted : -EAGAIN;
  return moved[0] == static_cast<int>(first.length) ? moved[1] : moved[0];
}

// Moves at most one window. Returns the bytes moved, or a negative errno.
int move_window_locked(Ring* ring, uint32_t slot, char* at, char* memory, size_t length, Direction direction)
    REQUIRES(ring->transfer) {
  const bool reads = direction == Direction::device_reads;
  for (;;) {
    const Operation in =
        reads ? Operation{IORING_OP_WRITE_FIXED, at, length, slot} : Operation{IORING_OP_WRITE, memory, length, 0};
    const Operation out =
        reads ? Operation{IORING_OP_READ, memory, length, 0} : Operation{IORING_OP_READ_FIXED, at, length, slot};
    const int moved = run_both_locked(ring, in, out);
    // The rest of the memory cannot be accessed: once more, with the bytes that can.
    if (moved <= 0 || moved == static_cast<int>(length)) return moved;
    length = static_cast<size_t>(moved);
  }
}

Status failed(const Registrar& registrar, size_t bytes, int error) {
  if (error == EBADF) return PINRAIL_ERR_ERROR;  // reported
  if (error == EFAULT) return PINRAIL_ERR_BAD_PARAM;
  if (error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOSPC) return PINRAIL_ERR_OUT_OF_RESOURCE;
  show_errno(registrar.host, "transfer failed", bytes, error);
  return PINRAIL_ERR_ERROR;
}

// Takes the ring's transfer lock. BAD_PARAM: out of range, or memory that cannot be accessed.
Status transfer(const Registrar& registrar, const pinrail_registration_t& reg, size_t offset, char* memory,
                size_t length, Direction direction) {
  Ring* ring = ring_of(registrar, reg.lkey);
  char* at = static_cast<char*>(reg.base) + offset;
  Guard guard(ring->transfer);
  if (ring->is_lost || !ring->file.is_open()) return failed(registrar, length, EBADF);
  const int error = need_file_locked(ring, std::min(length, kWindow));
  if (error != 0) return failed(registrar, length, error);
  for (size_t done = 0; done < length;) {
    const size_t step = std::min(length - done, kWindow);
    const int moved = move_window_locked(ring, slot_of(reg.lkey), at + done, memory + done, step, direction);
    if (moved <= 0) return failed(registrar, length, moved == 0 ? EIO : -moved);
    done += static_cast<size_t>(moved);
  }
  return success();
}

// Reports a ring that the program has closed.
pinrail_status_t transfer_or_lose(Registrar* registrar, const pinrail_registration_t& reg, size_t offset, char* memory,
                                  size_t length, Direction direction) {
  if (!within(reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  const Status status = transfer(*registrar, reg, offset, memory, length, direction);
  Ring* const ring = ring_of(*registrar, reg.lkey);
  if (!status.ok() && !ring->file.is_open()) lose_ring(registrar, ring);
  return status.code();
}

pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length) {
  return transfer_or_lose(static_cast<Registrar*>(context), *reg, offset, static_cast<char*>(into), length,
                          Direction::device_reads);
}

pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length) {
  // const_cast: device_writes only reads from this memory.
  char* memory = const_cast<char*>(static_cast<const char*>(from));
  return transfer_or_lose(static_cast<Registrar*>(context), *reg, offset, memory, length, Direction::device_writes);
}

// Descriptor, parameters, creates and destroys registrars.

const char kHelp[] =
#include "components/registrar/iouring/iouring_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "max_rings", "64",
     "Most io_urings of one registrar; each serves 16384 registrations and costs one descriptor and about 200 KiB. "
     "Too low: registrations are evicted for want of slots.",
     PINRAIL_TYPE_UNSIGNED, PINRAIL_SCOPE_READONLY, 6, nullptr, 1, 4096, nullptr}};

void fill_table(Registrar* registrar) {
  pinrail_registrar_t& table = registrar->limits;
  table = make_registrar("iouring", registrar, PINRAIL_KIND_HOST, page_bytes(), register_mem, deregister_mem);
  table.max_length = kMaxLength;
  table.device_read = device_read;
  table.device_write = device_write;
}

pinrail_status_t create(void* component, void*, pinrail_registrar_t* registrar_out) {
  const pinrail_host_t* host = static_cast<const pinrail_host_t*>(component);
  pinrail_param_value_t max_rings{};
  const pinrail_status_t found = host->param(host, "max_rings", &max_rings);
  if (found != PINRAIL_SUCCESS) return found;
  std::unique_ptr<Registrar> registrar;
  const Status status = open_registrar(host, static_cast<uint32_t>(max_rings.u), &registrar);
  if (!status.ok()) return status.code();
  fill_table(registrar.get());
  *registrar_out = registrar.release()->limits;
  return PINRAIL_SUCCESS;
}

void destroy(void*, pinrail_registrar_t* registrar) { delete static_cast<Registrar*>(registrar->context); }

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_REGISTRAR_ABI, 40, "registrar", "iouring",
                         "Pins with io_uring's registered buffers: for machines without an RDMA device, and for tests.",
                         keep_host, forget_host, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::iouring

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::iouring::kComponent;
