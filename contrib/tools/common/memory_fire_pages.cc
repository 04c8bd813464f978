// SPDX-License-Identifier: BSD-3-Clause
// Events that keep the mapping in place and replace its pages, or keep them too.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "contrib/tools/common/memory_calls.h"

namespace pinrail::tools {
namespace {

// Missing in some headers.
constexpr int kDontneedLocked = 24;
constexpr int kGuardInstall = 102;
constexpr int kGuardRemove = 103;

bool advise(const Calls& calls, const EventMemory& memory, int advice) {
  return calls.madvise(memory.base, memory.length, advice) == 0;
}

std::string path_of(const EventMemory& memory) { return "/proc/self/fd/" + std::to_string(memory.file); }

off_t file_length(const EventMemory& memory) { return static_cast<off_t>(2 * memory.length); }
off_t shown_at(const EventMemory& memory) { return static_cast<off_t>(memory.shown); }

// After its file was opened and cut.
bool grow_again(const Calls& calls, const EventMemory& memory, int opened) {
  if (opened < 0) return false;
  close(opened);
  return calls.ftruncate(memory.file, file_length(memory)) == 0;
}

}  // namespace

bool fire_dontneed(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, MADV_DONTNEED); }
bool fire_locked_dontneed(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, kDontneedLocked); }
bool fire_free_pages(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, MADV_FREE); }
bool fire_remove(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, MADV_REMOVE); }
bool fire_cold(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, MADV_COLD); }
bool fire_pageout(const Calls& calls, EventMemory* memory) { return advise(calls, *memory, MADV_PAGEOUT); }

bool fire_guard_install(const Calls& calls, EventMemory* memory) {
  return advise(calls, *memory, kGuardInstall) && advise(calls, *memory, kGuardRemove);
}

bool fire_process_madvise(const Calls& calls, EventMemory* memory) {
  const auto self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (self < 0) return false;
  const iovec list{memory->base, memory->length};
  const ssize_t advised = calls.process_madvise(self, &list, 1, MADV_DONTNEED, 0);
  const int kept = errno;
  close(self);
  errno = kept;
  return advised == static_cast<ssize_t>(memory->length);
}

// Maps the other half of the file, and empties the half that was mapped before, so that the next call shows zeros too.
bool fire_remap_file_pages(const Calls& calls, EventMemory* memory) {
  const size_t other = memory->shown == 0 ? memory->length : 0;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (calls.remap_file_pages(memory->base, memory->length, 0, other / page, 0) != 0) return false;
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  syscall(SYS_fallocate, memory->file, kPunch, shown_at(*memory), static_cast<off_t>(memory->length));
  memory->shown = other;
  return true;
}

bool fire_punch_hole(const Calls& calls, EventMemory* memory) {
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return calls.fallocate(memory->file, kPunch, shown_at(*memory), static_cast<off_t>(memory->length)) == 0;
}

bool fire_ftruncate(const Calls& calls, EventMemory* memory) {
  const off_t half = shown_at(*memory) + static_cast<off_t>(memory->length / 2);
  return calls.ftruncate(memory->file, half) == 0 && calls.ftruncate(memory->file, file_length(*memory)) == 0;
}

bool fire_truncate(const Calls& calls, EventMemory* memory) {
  const off_t half = shown_at(*memory) + static_cast<off_t>(memory->length / 2);
  const std::string path = path_of(*memory);
  return calls.truncate(path.c_str(), half) == 0 && calls.truncate(path.c_str(), file_length(*memory)) == 0;
}

bool fire_open_truncate(const Calls& calls, EventMemory* memory) {
  return grow_again(calls, *memory, calls.open(path_of(*memory).c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
}
bool fire_creat(const Calls& calls, EventMemory* memory) {
  return grow_again(calls, *memory, creat(path_of(*memory).c_str(), 0600));
}

namespace {

// Writes zeros over the file, by a descriptor of these flags.
bool write_zeros(const EventMemory& memory, int open_flags, int write_flags) {
  const int opened = open(path_of(memory).c_str(), O_RDWR | O_CLOEXEC | open_flags);
  if (opened < 0) return false;
  iovec zeros{map_anonymous(kLibcCalls, nullptr, memory.length), memory.length};
  const ssize_t written = pwritev2(opened, &zeros, 1, shown_at(memory), write_flags);
  const bool is_done = written == static_cast<ssize_t>(memory.length) && fsync(opened) == 0;
  const int kept = is_done ? 0 : errno;
  munmap(zeros.iov_base, zeros.iov_len);
  close(opened);
  errno = kept;
  return is_done;
}

}  // namespace

bool fire_direct_write(const Calls&, EventMemory* memory) { return write_zeros(*memory, O_DIRECT, 0); }
bool fire_uncached_write(const Calls&, EventMemory* memory) {
  constexpr int kDontCache = 0x80;  // RWF_DONTCACHE
  return write_zeros(*memory, 0, kDontCache);
}

bool fire_map_again(const Calls& calls, EventMemory* memory) {
  return calls.mmap(memory->base, memory->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file,
                    shown_at(*memory)) == memory->base;
}

bool fire_mprotect(const Calls&, EventMemory* memory) {
  return mprotect(memory->base, memory->length, PROT_READ) == 0 &&
         mprotect(memory->base, memory->length, PROT_READ | PROT_WRITE) == 0;
}

// Events by io_uring: requests are entries in shared memory, which no function of the C library sees.

namespace {

constexpr uint8_t kFtruncate = 55;  // IORING_OP_FTRUNCATE, Linux 6.9

// A ring for one operation. It does without liburing, so that the program does not depend on it.
class Ring {
 public:
  Ring() : file_(static_cast<int>(syscall(SYS_io_uring_setup, 1, &about_))) {
    if (file_ < 0) return;
    length_ = about_.cq_off.cqes + about_.cq_entries * sizeof(io_uring_cqe);
    rings_ = map(length_, IORING_OFF_SQ_RING);
    entry_ = map(sizeof(io_uring_sqe), IORING_OFF_SQES);
  }
  ~Ring() {
    if (rings_ != MAP_FAILED) munmap(rings_, length_);
    if (entry_ != MAP_FAILED) munmap(entry_, sizeof(io_uring_sqe));
    if (file_ >= 0) close(file_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Runs the operation. Returns its result, or -1 and errno.
  int run(const io_uring_sqe& operation) {
    if (file_ < 0) return -1;
    if (rings_ == MAP_FAILED || entry_ == MAP_FAILED || (about_.features & IORING_FEAT_SINGLE_MMAP) == 0)
      return no_ring();
    std::memcpy(entry_, &operation, sizeof(operation));
    *at<unsigned>(about_.sq_off.array) = 0;
    __atomic_store_n(at<unsigned>(about_.sq_off.tail), 1U,
                     __ATOMIC_RELEASE);  // release: pairs with the kernel's acquire
    if (syscall(SYS_io_uring_enter, file_, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0) != 1) return -1;
    const int result = at<io_uring_cqe>(about_.cq_off.cqes)->res;
    if (result >= 0) return result;
    errno = -result;
    return -1;
  }

 private:
  static int no_ring() {
    errno = ENOSYS;
    return -1;
  }
  void* map(size_t length, off_t what) const {
    return mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, what);
  }
  template <typename T>
  T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(rings_) + offset);
  }

  io_uring_params about_{};
  int file_;
  size_t length_ = 0;
  void* rings_ = MAP_FAILED;
  void* entry_ = MAP_FAILED;
};

int run(const io_uring_sqe& operation) {
  Ring ring;
  return ring.run(operation);
}

io_uring_sqe operation(uint8_t code, int file) {
  io_uring_sqe made{};
  made.opcode = code;
  made.fd = file;
  return made;
}

bool cut(int file, off_t length) {
  io_uring_sqe made = operation(kFtruncate, file);
  made.off = static_cast<uint64_t>(length);
  return run(made) == 0;
}

}  // namespace

bool fire_ring_madvise(const Calls&, EventMemory* memory) {
  io_uring_sqe made = operation(IORING_OP_MADVISE, -1);
  made.addr = reinterpret_cast<uintptr_t>(memory->base);
  made.len = static_cast<uint32_t>(memory->length);
  made.fadvise_advice = MADV_DONTNEED;
  return run(made) == 0;
}

bool fire_ring_fallocate(const Calls&, EventMemory* memory) {
  io_uring_sqe made = operation(IORING_OP_FALLOCATE, memory->file);
  made.off = memory->shown;
  made.addr = memory->length;  // the kernel expects the length in addr
  made.len = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return run(made) == 0;
}

bool fire_ring_ftruncate(const Calls&, EventMemory* memory) {
  const auto half = static_cast<off_t>(memory->shown + memory->length / 2);
  return cut(memory->file, half) && cut(memory->file, static_cast<off_t>(2 * memory->length));
}

bool fire_ring_open_truncate(const Calls& calls, EventMemory* memory) {
  const std::string path = "/proc/self/fd/" + std::to_string(memory->file);
  io_uring_sqe made = operation(IORING_OP_OPENAT, AT_FDCWD);
  made.addr = reinterpret_cast<uintptr_t>(path.c_str());
  made.open_flags = O_RDWR | O_TRUNC | O_CLOEXEC;
  const int opened = run(made);
  if (opened < 0) return false;
  close(opened);
  return calls.ftruncate(memory->file, static_cast<off_t>(2 * memory->length)) == 0;
}

}  // namespace pinrail::tools
