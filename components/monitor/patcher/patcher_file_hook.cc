// SPDX-License-Identifier: BSD-3-Clause
// Hook context: files that are cut, or of which parts are removed. A file is looked at only while memory that shows a
// file is kept: then its length is found out before the call, since the kernel removes what lies behind the new end.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "base/sync/hook_scope.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

// A file: the inode is 0 where mappings may show another number, as those of an overlay file system.
struct FileState {
  bool known;
  uint64_t inode, length;
};

FileState state_of_file_hook(long descriptor) {
  struct stat status {};
  struct statfs fs {};
  const bool is_file = patch::system_call_hook(SYS_fstat, descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const bool is_shown =
      patch::system_call_hook(SYS_fstatfs, descriptor, &fs) == 0 && fs.f_type != OVERLAYFS_SUPER_MAGIC;
  return {is_file, is_shown ? status.st_ino : 0, static_cast<uint64_t>(status.st_size)};
}

// A path that leads nowhere names nothing that can be cut: the call will fail as well. What cannot be opened for
// another reason, as too many files are open, may be any file.
FileState state_of_path_hook(long folder, long path) {
  const long file = patch::system_call_hook(SYS_openat, folder, path, O_PATH | O_CLOEXEC, 0);
  const bool leads_nowhere = file == -ENOENT || file == -ENOTDIR || file == -ELOOP || file == -ENAMETOOLONG;
  if (patch::is_error_hook(file)) return {!leads_nowhere, 0, UINT64_MAX};
  const FileState state = state_of_file_hook(file);
  patch::system_call_hook(SYS_close, file);
  return state;
}

// What a call removes from a file.
struct RemovedPart {
  bool is_any;
  bool is_cut;  // nothing is removed unless the file grows before the call
  pinrail_file_part_t part;
};

RemovedPart cut_part_hook(const FileState& about, long length) {
  const bool is_cut = about.known && length >= 0;
  const bool is_any = is_cut && static_cast<uint64_t>(length) < about.length;
  return {is_any, is_cut, {about.inode, static_cast<uint64_t>(length) & ~(kPage - 1), UINT64_MAX, 0}};
}

RemovedPart punched_part_hook(const long* args) {
  const auto mode = static_cast<unsigned>(args[1]);
  // These remove or move all bytes behind the offset.
  constexpr unsigned kShifts = FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE;
  if (args[2] < 0 || args[3] <= 0) return {};
  const FileState about = state_of_file_hook(args[0]);
  const auto begin = static_cast<uint64_t>(args[2]), end = begin + static_cast<uint64_t>(args[3]);
  return {about.known, false, {about.inode, begin & ~(kPage - 1), (mode & kShifts) != 0 ? UINT64_MAX : end, 0}};
}
constexpr long kOpenat2 = 437;  // since Linux 5.6

constexpr bool cuts_hook(long flags) { return (flags & O_TRUNC) != 0; }

// Whether the call may remove a part of a file.
bool may_remove_hook(long number, const long* args) {
  uint64_t flags = 0;  // the first member of openat2()'s struct open_how
  switch (number) {
    case SYS_fallocate: return (args[1] & ~long{FALLOC_FL_KEEP_SIZE}) != 0;
    case SYS_openat: return cuts_hook(args[2]);
#ifdef SYS_open
    case SYS_open: return cuts_hook(args[1]);
#endif
    case kOpenat2: return read_own_memory_hook(args[2], &flags, sizeof(flags)) && cuts_hook(static_cast<long>(flags));
    default: return true;
  }
}

RemovedPart removed_part_hook(long number, const long* args) {
  switch (number) {
    case SYS_fallocate: return punched_part_hook(args);
    case SYS_ftruncate: return cut_part_hook(state_of_file_hook(args[0]), args[1]);
    case SYS_truncate: return cut_part_hook(state_of_path_hook(AT_FDCWD, args[0]), args[1]);
    case SYS_openat: return cut_part_hook(state_of_path_hook(args[0], args[1]), 0);
#ifdef SYS_open
    case SYS_open:
    case SYS_creat: return cut_part_hook(state_of_path_hook(AT_FDCWD, args[0]), 0);
#endif
    default: return {true, true, {0, 0, UINT64_MAX, 0}};  // openat2() may look the path up in another way
  }
}

}  // namespace

bool may_show_files_hook(const Site& site) {
  if (!is_active_hook(site)) return false;
  const Context& context = context_of_hook(site);
  return context.own.load()->keeps_files_hook() != 0 || context.probe_inode.load() != 0;
}

void report_file_hook(const Site& site, const pinrail_file_part_t& part) {
  const Context& context = context_of_hook(site);
  const uint64_t tried = context.probe_inode.load();
  if (tried != 0 && tried == part.inode) {
    report_hook(site, context.probe.base.load(), context.probe.end.load() - context.probe.base.load());
  }
  const int kept = errno;
  context.own.load()->report_file_hook(&part);
  errno = kept;
}

// Reports what the call removes, before it and afterwards (patcher/H1). If no file was kept before, but one is
// afterwards, it is found out afterwards.
bool file_hook(const Site& site, long number, const long* args, long* result_out) {
  if (!may_remove_hook(number, args)) return false;
  // The functions are cancellation points, and some may be cancelled at any instruction inside. The hook is not.
  int cancel_state = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  const bool before = may_show_files_hook(site);
  RemovedPart removed = before ? removed_part_hook(number, args) : RemovedPart{};
  if (removed.is_any) report_file_hook(site, removed.part);
  *result_out = call_original_hook(site, number, args);
  if (!before && may_show_files_hook(site)) removed = removed_part_hook(number, args);
  if (removed.is_any || (removed.is_cut && !patch::is_error_hook(*result_out))) report_file_hook(site, removed.part);
  pthread_setcancelstate(cancel_state, nullptr);
  return true;
}

// Functions that all hooks use, and the hook of every patch.

// acquire: pairs with the release store in try_install_locked().
Context& context_of_hook(const Site& site) { return *site.context.load(std::memory_order_acquire); }

// Keeps F1: reads the word before it touches anything else of the library.
bool is_active_hook(const Site& site) {
  const Context& context = context_of_hook(site);
  return context.host.load(std::memory_order_acquire) != nullptr &&  // acquire: pairs with the release store in begin()
         context.alive->load(std::memory_order_relaxed) != 0;  // relaxed: the kernel writes it before the child runs
}

// Reports the range to the library, which rounds it out to pages, unless the context is stopped or inherited by a
// forked child.
void report_hook(const Site& site, uintptr_t base, size_t length) {
  if (length == 0 || !is_active_hook(site)) return;
  Context& context = context_of_hook(site);
  // The count rises before the second load of host; stop() clears host and then waits for the count. Both are seq_cst.
  context.in_flight.fetch_add(1);
  if (const pinrail_host_t* host = context.host.load()) {
    const int kept = errno;
    host->monitor_report_hook(host, base, length);
    errno = kept;
  }
  context.in_flight.fetch_sub(1);
}

// relaxed: it is constant, and written before `context`.
long call_original_hook(const Site& site, long number, const long* args) {
  const ForeignScope theirs;  // the call may sleep, and a signal handler may run meanwhile or leave by longjmp
  const patch::Record* const original = site.original.load(std::memory_order_relaxed);
  long result;
  if (original != nullptr && patch::call_original_hook(original, number, args, &result)) return result;
  return patch::system_call_hook(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

// Where a seccomp filter forbids the call, the memory is read as it is.
bool read_own_memory_hook(long address, void* copy_out, size_t length) {
  const auto* const from = reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr): an argument
  const iovec local{copy_out, length}, remote{const_cast<void*>(from), length};
  const long got =
      patch::system_call_hook(SYS_process_vm_readv, patch::system_call_hook(SYS_getpid), &local, 1, &remote, 1, 0);
  if (got == -EFAULT) return false;
  if (got < 0) std::memcpy(copy_out, from, length);
  return got < 0 || static_cast<size_t>(got) == length;
}

// Wakes the checking thread.
void raise_alarm_hook(Context* context) {
  context->alarm.fetch_add(1);
  patch::system_call_hook(SYS_futex, &context->alarm, FUTEX_WAKE_PRIVATE, 1);
}

// Hook context: the hook of every patch. syscall() makes any system call: some allocators (tcmalloc, mimalloc) and
// hooks of other runtimes (UCX, Open MPI) use it.

static CallHook* hook_of_hook(long number) {
  switch (number) {
    case SYS_munmap: return munmap_hook;
    case SYS_remap_file_pages: return munmap_hook;
    case SYS_mmap: return mmap_hook;
    case SYS_mremap: return mremap_hook;
    case SYS_madvise: return madvise_hook;
    case SYS_mprotect: return mprotect_hook;
    case SYS_process_madvise: return process_madvise_hook;
    case SYS_brk: return brk_hook;
    case SYS_shmdt: return shmdt_hook;
    case SYS_shmat: return shmat_hook;
#ifdef SYS_open
    case SYS_open:
    case SYS_creat:
#endif
    case SYS_fallocate:
    case SYS_ftruncate:
    case SYS_truncate:
    case SYS_openat:
    case kOpenat2: return file_hook;
    default: return nullptr;
  }
}

bool enter_hook(void* site_pointer, long number, const long* args, long* result_out) {
  const auto& site = *static_cast<const Site*>(site_pointer);
  CallHook* const hook = hook_of_hook(number);
  const HookScope scope;
  if (is_active_hook(site) && hook != nullptr && hook(site, number, args, result_out)) return true;
  // Another copy of this library that patched first may live on when this one has ended. relaxed: `context` was read.
  const patch::Record* const original = site.original.load(std::memory_order_relaxed);
  return original != nullptr && patch::call_original_hook(original, number, args, result_out);
}

}  // namespace pinrail::patcher

#endif
