// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes a registration through the ring, which copies between the registered pages and a file in memory. API
// context. transfer() takes the ring's transfer lock.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/core/errno_text.h"
#include "base/core/file_limit.h"
#include "components/registrar/iouring/iouring.h"
#include "framework/registrar/request.h"

namespace pinrail::iouring {
namespace {

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
  const int file = memfd_create("pinrail-iouring", MFD_CLOEXEC);
  if (file < 0) return errno;
  const int result = io_uring_register_files(&ring->uring, &file, 1);
  close(file);
  ring->has_file = result == 0;
  return -result;
}

// Waits for the completion of the last operation and returns its result. Older completions, such as the probe's, are
// dropped.
int wait_completion_locked(Ring* ring) REQUIRES(ring->transfer) {
  for (;;) {
    io_uring_cqe* cqe = nullptr;
    const int error = io_uring_wait_cqe(&ring->uring, &cqe);
    if (error == -EINTR) continue;
    if (error != 0) return error;
    const bool ours = cqe->user_data == ring->operations;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring->uring, cqe);
    if (ours) return result;
  }
}

// Returns a negative errno if the kernel took nothing.
int submit_locked(Ring* ring) REQUIRES(ring->transfer) {
  int submitted = io_uring_submit(&ring->uring);
  while (submitted == -EINTR) submitted = io_uring_submit(&ring->uring);
  return submitted;
}

// Returns the bytes moved, or a negative errno.
int run_locked(Ring* ring, const Operation& operation) REQUIRES(ring->transfer) {
  if (io_uring_sq_space_left(&ring->uring) == 0) submit_locked(ring);  // what was refused before, and does nothing now
  io_uring_sqe* sqe = io_uring_get_sqe(&ring->uring);
  if (sqe == nullptr) return -EBUSY;
  constexpr int kFile = 0;  // in the table of files
  io_uring_prep_rw(operation.code, sqe, kFile, operation.memory, static_cast<unsigned>(operation.length), 0);
  sqe->flags = IOSQE_FIXED_FILE;
  sqe->buf_index = static_cast<uint16_t>(operation.slot);
  sqe->user_data = ++ring->operations;
  const int submitted = submit_locked(ring);
  if (submitted >= 0) return wait_completion_locked(ring);
  // It stays in the queue until the next submission, when other memory may have the slot.
  io_uring_prep_nop(sqe);
  return submitted;
}

// Moves at most one window. Returns the bytes moved, or a negative errno.
int move_window_locked(Ring* ring, uint32_t slot, char* at, char* memory, size_t length, Direction direction)
    REQUIRES(ring->transfer) {
  if (direction == Direction::device_reads) {
    const int moved = run_locked(ring, {IORING_OP_WRITE_FIXED, at, length, slot});
    return moved <= 0 ? moved : run_locked(ring, {IORING_OP_READ, memory, static_cast<size_t>(moved), 0});
  }
  const int moved = run_locked(ring, {IORING_OP_WRITE, memory, length, 0});
  return moved <= 0 ? moved : run_locked(ring, {IORING_OP_READ_FIXED, at, static_cast<size_t>(moved), slot});
}

Status failed(const Registrar& registrar, size_t bytes, int error) {
  if (error == EFAULT) return PINRAIL_ERR_BAD_PARAM;
  if (error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOSPC) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const NumberText bytes_text(bytes);
  const ErrnoText error_text(error);
  const pinrail_help_arg_t args[] = {{"bytes", bytes_text.c_str()}, {"errno", error_text.c_str()}};
  registrar.host->help(registrar.host, "transfer failed", args, 2);
  return PINRAIL_ERR_ERROR;
}

// Takes the ring's transfer lock. BAD_PARAM: out of range, or memory that cannot be accessed.
Status transfer(const Registrar& registrar, const pinrail_registration_t& reg, size_t offset, char* memory,
                size_t length, Direction direction) {
  if (!within(reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  Ring* ring = ring_of(registrar, reg.lkey);
  char* at = static_cast<char*>(reg.base) + offset;
  Guard guard(ring->transfer);
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

}  // namespace

pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length) {
  return transfer(*static_cast<Registrar*>(context), *reg, offset, static_cast<char*>(into), length,
                  Direction::device_reads)
      .code();
}

pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length) {
  // const_cast: device_writes only reads from this memory.
  char* memory = const_cast<char*>(static_cast<const char*>(from));
  return transfer(*static_cast<Registrar*>(context), *reg, offset, memory, length, Direction::device_writes).code();
}

}  // namespace pinrail::iouring
