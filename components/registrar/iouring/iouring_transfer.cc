// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes a registration through the ring, which copies between the registered pages and a file in memory. API
// context. transfer() takes the ring's transfer lock.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/core/errno_text.h"
#include "base/core/file_limit.h"
#include "base/core/standard_descriptors.h"
#include "components/registrar/iouring/iouring.h"
#include "framework/registrar/request.h"

namespace pinrail::iouring {
namespace {

constexpr size_t kWindow = size_t{256} << 10;  // the most bytes in one operation

enum class Direction : uint8_t { device_reads, device_writes };

// Opens the ring's file unless it is open. It will have so many bytes. Returns 0 or an errno.
int open_file_locked(Ring* ring, size_t bytes) REQUIRES(ring->transfer) {
  if (!may_make_file(bytes)) return EFBIG;
  if (ring->file < 0) ring->file = above_standard(memfd_create("pinrail-iouring", MFD_CLOEXEC));
  return ring->file < 0 ? errno : 0;
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

// Runs one operation between the registration and the start of the file. Returns the bytes moved, or a negative errno.
int run_operation_locked(Ring* ring, uint32_t slot, char* at, size_t length, Direction direction)
    REQUIRES(ring->transfer) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring->uring);
  if (sqe == nullptr) return -EBUSY;
  const auto bytes = static_cast<unsigned>(length);
  if (direction == Direction::device_reads) {
    io_uring_prep_write_fixed(sqe, ring->file, at, bytes, 0, static_cast<int>(slot));
  } else {
    io_uring_prep_read_fixed(sqe, ring->file, at, bytes, 0, static_cast<int>(slot));
  }
  sqe->user_data = ++ring->operations;
  int submitted = io_uring_submit(&ring->uring);
  while (submitted == -EINTR) submitted = io_uring_submit(&ring->uring);
  if (submitted < 0) return submitted;
  return wait_completion_locked(ring);
}

// Copies between the start of the file and ordinary memory. Returns 0 if all bytes were copied, or a negative errno.
int copy_through_file_locked(Ring* ring, char* memory, size_t length, Direction direction) REQUIRES(ring->transfer) {
  for (size_t done = 0; done < length;) {
    const auto offset = static_cast<off_t>(done);
    const ssize_t moved = direction == Direction::device_reads
                              ? pread(ring->file, memory + done, length - done, offset)
                              : pwrite(ring->file, memory + done, length - done, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? -EIO : -errno;
    done += static_cast<size_t>(moved);
  }
  return 0;
}

// Moves at most one window. Returns the bytes moved, or a negative errno.
int move_window_locked(Ring* ring, uint32_t slot, char* at, char* memory, size_t length, Direction direction)
    REQUIRES(ring->transfer) {
  if (direction == Direction::device_writes) {
    const int error = copy_through_file_locked(ring, memory, length, direction);
    return error != 0 ? error : run_operation_locked(ring, slot, at, length, direction);
  }
  const int moved = run_operation_locked(ring, slot, at, length, direction);
  if (moved <= 0) return moved;
  const int error = copy_through_file_locked(ring, memory, static_cast<size_t>(moved), direction);
  return error != 0 ? error : moved;
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
  const int error = open_file_locked(ring, std::min(length, kWindow));
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
