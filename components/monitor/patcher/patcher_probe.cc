// SPDX-License-Identifier: BSD-3-Clause
// Keeps E5: calls each function on memory that is not used otherwise, and expects its report at a subscription, as a
// pool gets it. Start-up or API context; the caller holds Context::mutex.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <climits>
#include <cstdio>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr size_t kScratchLength = 2 * kPage;
constexpr int kNoFile = -1;
#ifdef __GLIBC__
constexpr bool kIsGlibc = true;
#else
constexpr bool kIsGlibc = false;  // musl: brk() always fails, and the loader is libc itself
#endif

using patch::system_call_hook;

// Makes the file of the trials, which the hooks know by its inode: what is cut off it counts as the scratch memory,
// where it need not be mapped. Without it, calls that name a file are not seen.
void make_file(Scratch* scratch) {
  struct stat about {};
  scratch->file = static_cast<int>(system_call_hook(SYS_memfd_create, "pinrail-probe", MFD_CLOEXEC));
  system_call_hook(SYS_fstat, scratch->file, &about);
  std::snprintf(scratch->path, sizeof(scratch->path), "/proc/self/fd/%d", scratch->file);
  scratch->context->probe_inode.store(about.st_ino);
}

bool make_memory(Scratch* scratch) {
  const long mapped =
      system_call_hook(SYS_mmap, 0, kScratchLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  scratch->base = patch::is_error_hook(mapped) ? 0 : static_cast<uintptr_t>(mapped);
  return scratch->base != 0;
}

// Arguments of a trial that are known only then: the scratch memory; an address in it where no huge page can begin,
// since more is reported there (rounded_up_by_hook()); the file and its path; a list of one page.
constexpr long kMemory = LONG_MIN, kNoHugePage = LONG_MIN + 1, kFile = LONG_MIN + 2, kPath = LONG_MIN + 3,
               kList = LONG_MIN + 4;

long argument_of(long given, const Scratch& scratch, const iovec& list) {
  constexpr uintptr_t kSmallestHugePage = uintptr_t{64} << 10;
  switch (given) {
    case kMemory: return static_cast<long>(scratch.base);
    case kNoHugePage: return static_cast<long>(scratch.base + (scratch.base % kSmallestHugePage == 0 ? kPage : 0));
    case kFile: return scratch.file;
    case kPath: return reinterpret_cast<long>(scratch.path);
    case kList: return reinterpret_cast<long>(&list);
    default: return given;
  }
}

// Calls the function, whose arguments are all integers or pointers: it finds them in the same registers, whether or not
// it is one of those with a variable number of them.
void call(const Function& function, uintptr_t address, Scratch* scratch) {
  using Call = long(long, long, long, long, long, long);
  auto* const called = reinterpret_cast<Call*>(address);  // NOLINT(performance-no-int-to-ptr): an address of code
  const iovec list{reinterpret_cast<void*>(scratch->base), kPage};  // NOLINT(performance-no-int-to-ptr): as it is given
  long args[6];
  for (size_t i = 0; i < 6; ++i) args[i] = argument_of(function.trial[i], *scratch, list);
  if (function.calls.number == SYS_munmap) scratch->base = 0;
  const long result = called(args[0], args[1], args[2], args[3], args[4], args[5]);
  const bool opens = function.calls.or_number == SYS_openat;
  if (opens) system_call_hook(SYS_close, static_cast<int>(result));
}

constexpr const char* kNothing = "no memory is kept registered";
constexpr const char* kFiles = "mappings of files are not kept registered; all other memory is";
constexpr const char* kShared = "shared memory is not kept registered; all other memory is";
constexpr const char* kHeap = "the heap that brk() moves is not kept registered; all other memory is";
constexpr const char* kSegments = "System V segments are not kept registered; all other memory is";
constexpr const char* kLate = "libraries that patch over Pinrail are noticed later (check_interval)";

constexpr uint32_t kDrop = PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_REMOVE | PINRAIL_EVENT_GUARD_INSTALL;
constexpr uint32_t kRemap = PINRAIL_EVENT_REMAP | PINRAIL_EVENT_REMAP_ONTO;
constexpr uint32_t kProcessMadvise = PINRAIL_EVENT_PROCESS_MADVISE, kRemapFile = PINRAIL_EVENT_REMAP_FILE_PAGES;

constexpr int kOver = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kReadExecute = PROT_READ | PROT_EXEC, kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
constexpr int kCut = O_WRONLY | O_TRUNC | O_CLOEXEC;
constexpr long kNowhere = 1;  // the kernel refuses to move a mapping there, or the break
constexpr long kNoSegment = -1;

#ifdef SYS_open
constexpr patch::Calls kOpenCalls{SYS_open, SYS_openat};  // of musl, of glibc
#else
constexpr patch::Calls kOpenCalls{SYS_openat};
#endif

}  // namespace

// The kernel refuses the trials of mremap, process_madvise, remap_file_pages, brk, shmdt and shmat: a hook reports what
// such a call names as well. The break may not be changed, because other threads use the memory behind it.
const Function kFunctionTable[kFunctions] = {
    // The first one: patches of other libraries call it, so that the events of functions that they patched arrive by
    // it.
    {"syscall", {SYS_madvise, kMemory, kPage, MADV_DONTNEED}, {patch::kAnyCall}, PINRAIL_EVENTS_ALL, kNothing},
    {"munmap", {kMemory, kScratchLength}, {SYS_munmap}, PINRAIL_EVENT_UNMAP, kNothing},
    {"mmap", {kMemory, kPage, kReadWrite, kOver, kNoFile, 0}, {SYS_mmap}, PINRAIL_EVENT_MAP_OVER, kNothing},
    {"mremap", {kNoHugePage, kPage, kPage, MREMAP_FIXED | MREMAP_MAYMOVE, kNowhere}, {SYS_mremap}, kRemap, kNothing},
    {"madvise", {kMemory, kPage, MADV_DONTNEED}, {SYS_madvise}, kDrop, kNothing},
    // glibc 2.36 on
    {"process_madvise", {kNoFile, kList, 1, MADV_DONTNEED}, {SYS_process_madvise}, kProcessMadvise, kNothing, true},
    {"remap_file_pages", {kMemory, kPage}, {SYS_remap_file_pages}, kRemapFile, kShared, true},
    {"brk", {kNowhere}, {SYS_brk}, PINRAIL_EVENT_BRK, kHeap, !kIsGlibc},
    {"shmdt", {kMemory}, {SYS_shmdt}, PINRAIL_EVENT_SHMDT, kSegments},
    {"shmat", {kNoSegment, kNoHugePage, SHM_REMAP}, {SYS_shmat}, PINRAIL_EVENT_SHMAT_OVER, kNothing},
    {"fallocate", {kFile, kHole, 0, kPage}, {SYS_fallocate}, PINRAIL_EVENT_PUNCH_HOLE, kFiles},
    {"ftruncate", {kFile, 0}, {SYS_ftruncate}, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"truncate", {kPath, 0}, {SYS_truncate}, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"open", {kPath, kCut}, kOpenCalls, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"openat", {AT_FDCWD, kPath, kCut}, {SYS_openat}, PINRAIL_EVENT_TRUNCATE, kFiles},
    {"open of libpthread", {kPath, kCut}, kOpenCalls, PINRAIL_EVENT_TRUNCATE, kFiles, true, Home::libpthread},
    // of glibc, for its own shm_open()
    {"__open64_nocancel", {kPath, kCut}, {SYS_openat}, PINRAIL_EVENT_TRUNCATE, kFiles, true},
#ifndef __aarch64__
    {"creat", {kPath, 0600}, {SYS_creat, SYS_openat}, PINRAIL_EVENT_TRUNCATE, kFiles},
#endif
    // Detects libraries that are about to patch; it causes no memory event.
    {"mprotect", {kMemory, kPage, kReadExecute}, {SYS_mprotect}, 0, kLate},
    {"munmap of the loader",
     {kMemory, kScratchLength},
     {SYS_munmap},
     PINRAIL_EVENT_UNMAP,
     kNothing,
     !kIsGlibc,
     Home::loader},
};

Scratch::~Scratch() {
  if (base != 0) system_call_hook(SYS_munmap, base, kScratchLength);
  context->probe_inode.store(0);
  system_call_hook(SYS_close, file);
}

bool fire(const Function& function, uintptr_t address, Scratch* scratch) {
  if (scratch->file == kNoFile) make_file(scratch);
  if (scratch->base == 0 && !make_memory(scratch)) return false;
  Context* const context = scratch->context;
  const bool in_first_page = function.trial[0] == kNowhere;
  context->probe.base.store(in_first_page ? 0 : scratch->base);
  context->probe.end.store(in_first_page ? kPage : scratch->base + kScratchLength);
  context->probe.is_seen.store(false);
  call(function, address, scratch);
  context->probe.end.store(0);
  return context->probe.is_seen.load();
}

}  // namespace pinrail::patcher

#endif
