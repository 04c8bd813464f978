// SPDX-License-Identifier: BSD-3-Clause
// Keeps E5: calls each function on memory that is not used otherwise, and expects its report at a subscription, as a
// pool gets it. Start-up or API context; the caller holds Context::mutex.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cstdio>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr size_t kScratchLength = 3 * kPage;
constexpr int kNoFile = -1;
#ifdef __GLIBC__
constexpr bool kIsGlibc = true;
#else
constexpr bool kIsGlibc = false;  // musl: brk() always fails, and the loader is libc itself
#endif

using patch::system_call_hook;

template <typename Call>
Call* callable(uintptr_t function) {
  return reinterpret_cast<Call*>(function);  // NOLINT(performance-no-int-to-ptr): an address of code
}
void* pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): an address in the scratch memory
}

void give_back(const Scratch& scratch) {
  if (scratch.length != 0) {
    system_call_hook(SYS_munmap, scratch.base, scratch.length);
  }
}

// Makes the file of the trials, which the hooks know by its inode: what is cut off it counts as the scratch memory,
// where it need not be mapped. Without it, calls that name a file are not seen.
void make_file(Scratch* scratch) {
  struct stat about {};
  scratch->file = static_cast<int>(system_call_hook(SYS_memfd_create, "pinrail-probe", MFD_CLOEXEC));
  system_call_hook(SYS_fstat, scratch->file, &about);
  std::snprintf(scratch->path, sizeof(scratch->path), "/proc/self/fd/%d", scratch->file);
  scratch->context->probe_inode.store(about.st_ino);
}

// Maps what earlier trials have taken away.
bool make_whole(Scratch* scratch) {
  if (scratch->length == kScratchLength) return true;
  give_back(*scratch);
  const long mapped =
      system_call_hook(SYS_mmap, 0, kScratchLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  scratch->base = static_cast<uintptr_t>(mapped);
  scratch->length = patch::is_error_hook(mapped) ? 0 : kScratchLength;
  return scratch->length != 0;
}

void probe_munmap(uintptr_t function, Scratch* scratch) {
  const size_t length = scratch->length;
  scratch->length = 0;
  callable<int(void*, size_t)>(function)(pointer(scratch->base), length);
}

// Tries some of the calls; the others need not be patched (leave_out).
void probe_syscall(uintptr_t function, Scratch* scratch) {
  auto* const call = callable<long(long, ...)>(function);
  call(SYS_madvise, scratch->base, kPage, MADV_DONTNEED);
  call(SYS_mprotect, scratch->base, kPage, PROT_READ | PROT_EXEC);
  const size_t length = scratch->length;
  scratch->length = 0;
  call(SYS_munmap, scratch->base, length);
}

void probe_mmap(uintptr_t function, Scratch* scratch) {
  callable<void*(void*, size_t, int, int, int, off_t)>(function)(pointer(scratch->base), scratch->length,
                                                                 PROT_READ | PROT_WRITE,
                                                                 MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, kNoFile, 0);
}

// Unmaps the last page. Where huge pages may begin, more is reported than the scratch memory (rounded_up_by_hook()), so
// the call begins a page later there.
void probe_mremap(uintptr_t function, Scratch* scratch) {
  constexpr uintptr_t kSmallestHugePage = uintptr_t{64} << 10;
  const uintptr_t first = scratch->base % kSmallestHugePage == 0 ? kPage : 0;
  scratch->length -= kPage;
  callable<void*(void*, size_t, size_t, int, ...)>(function)(
      pointer(scratch->base + first), scratch->length + kPage - first, scratch->length - first, 0);
}

void probe_madvise(uintptr_t function, Scratch* scratch) {
  callable<int(void*, size_t, int)>(function)(pointer(scratch->base), kPage, MADV_DONTNEED);
}

void probe_mprotect(uintptr_t function, Scratch* scratch) {
  callable<int(void*, size_t, int)>(function)(pointer(scratch->base), kPage, PROT_READ | PROT_EXEC);
}

// The descriptor is invalid, so the kernel refuses the call.
void probe_process_madvise(uintptr_t function, Scratch* scratch) {
  const iovec list{pointer(scratch->base), kPage};
  callable<ssize_t(int, const iovec*, size_t, int, unsigned)>(function)(kNoFile, &list, 1, MADV_DONTNEED, 0);
}

// The kernel refuses the call, because anonymous memory has no pages of a file.
void probe_remap_file_pages(uintptr_t function, Scratch* scratch) {
  callable<int(void*, size_t, int, size_t, int)>(function)(pointer(scratch->base), kPage, 0, 0, 0);
}

// The break may not be changed, because other threads use the memory behind it. The kernel refuses an address in the
// first page, which fire() looks for.
void probe_brk(uintptr_t function, Scratch*) { callable<int(void*)>(function)(pointer(1)); }

// The kernel refuses the call, because the mapping is no segment. The page has other rights than its neighbours, so a
// mapping begins there.
void probe_shmdt(uintptr_t function, Scratch* scratch) {
  const uintptr_t middle = scratch->base + kPage;
  system_call_hook(SYS_mprotect, middle, kPage, PROT_NONE);
  callable<int(const void*)>(function)(pointer(middle));
}

void probe_shmat(uintptr_t function, Scratch* scratch) {
  constexpr int kNoSegment = -1;
  callable<void*(int, const void*, int)>(function)(kNoSegment, pointer(scratch->base), SHM_REMAP);
}

void probe_fallocate(uintptr_t function, Scratch* scratch) {
  callable<int(int, int, off_t, off_t)>(function)(scratch->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage);
}

void probe_ftruncate(uintptr_t function, Scratch* scratch) { callable<int(int, off_t)>(function)(scratch->file, 0); }

void probe_truncate(uintptr_t function, Scratch* scratch) {
  callable<int(const char*, off_t)>(function)(scratch->path, 0);
}

constexpr int kCut = O_WRONLY | O_TRUNC | O_CLOEXEC;

void probe_open(uintptr_t function, Scratch* scratch) {
  system_call_hook(SYS_close, callable<int(const char*, int, ...)>(function)(scratch->path, kCut));
}

void probe_openat(uintptr_t function, Scratch* scratch) {
  system_call_hook(SYS_close, callable<int(int, const char*, int, ...)>(function)(AT_FDCWD, scratch->path, kCut));
}

#ifndef __aarch64__
void probe_creat(uintptr_t function, Scratch* scratch) {
  system_call_hook(SYS_close, callable<int(const char*, mode_t)>(function)(scratch->path, 0600));
}
#endif

}  // namespace

namespace {

constexpr const char* kNothing = "no memory is kept registered";
constexpr const char* kFiles = "mappings of files are not kept registered; all other memory is";
constexpr const char* kShared = "shared memory is not kept registered; all other memory is";
constexpr const char* kHeap = "the heap that brk() moves is not kept registered; all other memory is";
constexpr const char* kSegments = "System V segments are not kept registered; all other memory is";
constexpr const char* kLate = "libraries that patch over Pinrail are noticed later (check_interval)";

constexpr uint32_t kDrop = PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_REMOVE | PINRAIL_EVENT_GUARD_INSTALL;
constexpr uint32_t kRemap = PINRAIL_EVENT_REMAP | PINRAIL_EVENT_REMAP_ONTO;

#ifdef SYS_open
constexpr patch::Calls kOpenCalls{SYS_openat, SYS_open};  // of glibc, of musl
#else
constexpr patch::Calls kOpenCalls{SYS_openat};
#endif

}  // namespace

const Function kFunctionTable[kFunctions] = {
    // The first one: patches of other libraries call it, so that the events of functions that they patched arrive by
    // it.
    {"syscall", false, false, probe_syscall, {patch::kAnyCall}, PINRAIL_EVENTS_ALL, kNothing},
    {"munmap", false, false, probe_munmap, {SYS_munmap}, PINRAIL_EVENT_UNMAP, kNothing},
    {"mmap", false, false, probe_mmap, {SYS_mmap}, PINRAIL_EVENT_MAP_OVER, kNothing},
    {"mremap", false, false, probe_mremap, {SYS_mremap}, kRemap, kNothing},
    {"madvise", false, false, probe_madvise, {SYS_madvise}, kDrop, kNothing},
    // glibc 2.36 on
    {"process_madvise",
     false,
     true,
     probe_process_madvise,
     {SYS_process_madvise},
     PINRAIL_EVENT_PROCESS_MADVISE,
     kNothing},
    {"remap_file_pages",
     false,
     true,
     probe_remap_file_pages,
     {SYS_remap_file_pages},
     PINRAIL_EVENT_REMAP_FILE_PAGES,
     kShared},
    {"brk", false, !kIsGlibc, probe_brk, {SYS_brk}, PINRAIL_EVENT_BRK, kHeap},
    {"shmdt", false, false, probe_shmdt, {SYS_shmdt}, PINRAIL_EVENT_SHMDT, kSegments},
    {"shmat", false, false, probe_shmat, {SYS_shmat}, PINRAIL_EVENT_SHMAT_OVER, kNothing},
    {"fallocate", false, false, probe_fallocate, {SYS_fallocate}, PINRAIL_EVENT_PUNCH_HOLE, kFiles},
    {"ftruncate", false, false, probe_ftruncate, {SYS_ftruncate}, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"truncate", false, false, probe_truncate, {SYS_truncate}, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"open", false, false, probe_open, kOpenCalls, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"openat", false, false, probe_openat, {SYS_openat}, PINRAIL_EVENT_TRUNCATE, kFiles},
    // of glibc, for its own shm_open()
    {"__open64_nocancel", false, true, probe_open, {SYS_openat}, PINRAIL_EVENT_TRUNCATE, kFiles},
#ifndef __aarch64__
    {"creat", false, false, probe_creat, {SYS_creat}, PINRAIL_EVENT_TRUNCATE, kFiles},
#endif
    // Detects libraries that are about to patch; it causes no memory event.
    {"mprotect", false, false, probe_mprotect, {SYS_mprotect}, 0, kLate},
    {"munmap of the loader", true, !kIsGlibc, probe_munmap, {SYS_munmap}, PINRAIL_EVENT_UNMAP, kNothing},
};

Scratch::~Scratch() {
  give_back(*this);
  context->probe_inode.store(0);
  system_call_hook(SYS_close, file);
}

bool fire(const Function& function, uintptr_t address, Scratch* scratch) {
  if (scratch->file == kNoFile) make_file(scratch);
  if (!make_whole(scratch)) return false;
  Context* const context = scratch->context;
  const bool in_first_page = function.probe == probe_brk;
  context->probe_base.store(in_first_page ? 0 : scratch->base);
  context->probe_end.store(in_first_page ? kPage : scratch->base + scratch->length);
  context->probe_seen.store(false);
  function.probe(address, scratch);
  context->probe_end.store(0);
  return context->probe_seen.load();
}

}  // namespace pinrail::patcher

#endif
