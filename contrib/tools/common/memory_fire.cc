// SPDX-License-Identifier: BSD-3-Clause
// Events that unmap, move or replace mappings; afterwards memory is mapped again.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/io_uring.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "contrib/tools/common/memory_events.h"

namespace pinrail::tools {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr int kMove = MREMAP_MAYMOVE | MREMAP_FIXED;

bool gone(EventMemory* memory) {
  memory->base = nullptr;
  memory->length = 0;
  return false;
}

// Sets the new base of the memory. NULL: the event failed and the memory is gone.
bool is_now(EventMemory* memory, unsigned char* base) {
  if (base == nullptr) return gone(memory);
  memory->base = base;
  return true;
}

bool map_all_anew(const Calls& calls, EventMemory* memory, unsigned char* at) {
  return is_now(memory, map_anonymous(calls, at, memory->length));
}

// Maps the unmapped second half again. If another thread has mapped that place, the first half is given up too.
bool map_half_anew(const Calls& calls, EventMemory* memory) {
  const size_t half = memory->length / 2;
  unsigned char* const there = map_anonymous(calls, memory->base + half, half);
  if (there == memory->base + half) return true;
  if (there != nullptr) calls.munmap(there, half);
  calls.munmap(memory->base, half);
  return map_all_anew(calls, memory, nullptr);
}

// Reserves an unused address range, to which pages can be moved.
unsigned char* reserve(const Calls& calls, size_t length) {
  void* const at = calls.mmap(nullptr, length, PROT_NONE, kAnonymous | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at);
}

// Moves all pages to another address. NULL and errno on failure.
unsigned char* move_away(const Calls& calls, const EventMemory& memory, int flags) {
  unsigned char* const elsewhere = reserve(calls, memory.length);
  if (elsewhere == nullptr) return nullptr;
  if (calls.mremap(memory.base, memory.length, memory.length, flags, elsewhere) == elsewhere) return elsewhere;
  const int kept = errno;
  calls.munmap(elsewhere, memory.length);
  errno = kept;
  return nullptr;
}

// Allocates a new block; malloc usually returns the address of the one freed last.
bool take_new_block(EventMemory* memory) {
  if (take_block(memory)) return true;
  memory->owner = nullptr;
  return gone(memory);
}

}  // namespace

bool fire_munmap(const Calls& calls, EventMemory* memory) {
  return calls.munmap(memory->base, memory->length) == 0 && map_all_anew(calls, memory, memory->base);
}

bool fire_munmap_half(const Calls& calls, EventMemory* memory) {
  const size_t half = memory->length / 2;
  return calls.munmap(memory->base + half, half) == 0 && map_half_anew(calls, memory);
}

bool fire_munmap_reuse(const Calls& calls, EventMemory* memory) {
  return calls.munmap(memory->base, memory->length) == 0 && map_all_anew(calls, memory, nullptr);
}

bool fire_mmap_over(const Calls& calls, EventMemory* memory) {
  return calls.mmap(memory->base, memory->length, kReadWrite, kAnonymous | MAP_FIXED, -1, 0) == memory->base;
}

bool fire_mremap_move(const Calls& calls, EventMemory* memory) {
  unsigned char* const moved = move_away(calls, *memory, kMove);
  if (moved == nullptr) return false;
  const bool mapped = map_all_anew(calls, memory, memory->base);
  calls.munmap(moved, memory->length);
  return mapped;
}

bool fire_mremap_onto(const Calls& calls, EventMemory* memory) {
  unsigned char* const other = map_anonymous(calls, nullptr, memory->length);
  if (other == nullptr) return false;
  if (calls.mremap(other, memory->length, memory->length, kMove, memory->base) == memory->base) return true;
  const int kept = errno;
  calls.munmap(other, memory->length);
  errno = kept;
  return false;
}

bool fire_mremap_dontunmap(const Calls& calls, EventMemory* memory) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
  void* const moved = calls.mremap(memory->base, memory->length, memory->length, kFlags, nullptr);
  return moved != MAP_FAILED && calls.munmap(moved, memory->length) == 0;
}

bool fire_mremap_shrink(const Calls& calls, EventMemory* memory) {
  const bool shrunk = calls.mremap(memory->base, memory->length, memory->length / 2, 0, nullptr) == memory->base;
  return shrunk && map_half_anew(calls, memory);
}

// The old place stays mapped meanwhile (MREMAP_DONTUNMAP): in a hole another thread could map, and
// moving back would replace its mapping.
bool fire_mremap_back(const Calls& calls, EventMemory* memory) {
  unsigned char* const moved = move_away(calls, *memory, kMove | MREMAP_DONTUNMAP);
  if (moved == nullptr) return false;
  void* const back = calls.mremap(moved, memory->length, memory->length, kMove, memory->base);
  return is_now(memory, back == memory->base ? memory->base : moved);
}

bool fire_brk(const Calls& calls, EventMemory* memory) {
  unsigned char* const end = memory->base + memory->length;
  if (sbrk(0) != end) {
    errno = EBUSY;
    return false;
  }
  if (calls.brk(memory->base) != 0) return false;
  return calls.brk(end) == 0 || gone(memory);
}

bool fire_shmdt(const Calls& calls, EventMemory* memory) {
  if (calls.shmdt(memory->base) != 0) return false;
  unsigned char* base = attach_segment(calls, memory->base, memory->length, 0);
  if (base == nullptr) base = attach_segment(calls, nullptr, memory->length, 0);
  return is_now(memory, base);
}

bool fire_shmat_remap(const Calls& calls, EventMemory* memory) {
  return attach_segment(calls, memory->base, memory->length, SHM_REMAP) == memory->base;
}

bool fire_dlclose(const Calls&, EventMemory* memory) {
  if (dlclose(memory->owner) != 0) return false;
  return load_library(memory) || gone(memory);
}

bool fire_free(const Calls&, EventMemory* memory) {
  std::free(memory->owner);
  return take_new_block(memory);
}

bool fire_trim(const Calls&, EventMemory* memory) {
  std::free(memory->owner);
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  return take_new_block(memory);
}

bool fire_realloc(const Calls&, EventMemory* memory) {
  void* const grown = std::realloc(memory->owner, 4 * memory->length);
  if (grown == nullptr) return false;
  const bool taken = take_new_block(memory);
  std::free(grown);
  return taken;
}

bool fire_fork(const Calls&, EventMemory* memory) {
  const pid_t child = fork();
  if (child == 0) {
    memory->base[0] = static_cast<unsigned char>(memory->base[0] + 1);  // the child's own copy
    _exit(0);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Events that keep the mapping in place and replace its pages, or keep them too.

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
