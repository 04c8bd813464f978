// SPDX-License-Identifier: BSD-3-Clause
// Hook context: mappings that are unmapped, mapped over, moved, or lose their pages; System V shared memory; and the
// hook of every patch, which passes a call to these.
#include <linux/magic.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/statfs.h>
#include <sys/uio.h>

#include <algorithm>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr size_t kLongestList = 1024;  // the kernel refuses longer ones

uintptr_t address_hook(long arg) { return static_cast<uintptr_t>(arg); }

// Returns whether the advice leaves every page in place. Unknown advice is reported: that costs a needless miss, but
// leaves no stale page.
bool keeps_pages_hook(int advice) {
  constexpr int kPopulateRead = 22, kPopulateWrite = 23, kCollapse = 25;  // the last one spares pinned pages
  constexpr int kKept[] = {MADV_NORMAL,   MADV_RANDOM,     MADV_SEQUENTIAL, MADV_WILLNEED,   MADV_DONTFORK,
                           MADV_DOFORK,   MADV_MERGEABLE,  MADV_HUGEPAGE,   MADV_NOHUGEPAGE, MADV_DONTDUMP,
                           MADV_DODUMP,   MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_COLD,       MADV_PAGEOUT,
                           kPopulateRead, kPopulateWrite,  kCollapse};
  return std::find(std::begin(kKept), std::end(kKept), advice) != std::end(kKept);
}

// Of a mapping on huge pages the kernel takes whole pages, and nothing says how large they are without a look at the
// list of mappings. Returns how many bytes that may be more than the lengths say, at an address that is a multiple of
// huge pages of some size. What lies there and goes on is registered again by its next use.
size_t rounded_up_by_hook(uintptr_t base, size_t length) {
  constexpr uintptr_t kSizes[] = {
#ifdef __aarch64__
      uintptr_t{64} << 10, uintptr_t{32} << 20,
#endif
      uintptr_t{2} << 20, uintptr_t{1} << 30};
  size_t more = 0;
  for (const uintptr_t size : kSizes) {
    if (base % size == 0 && length <= SIZE_MAX - size) more = std::max(more, round_up_hook(length, size) - length);
  }
  return more;
}

// The size of the pages that the kernel takes whole for a new mapping; 0: the default one of huge pages, whichever.
size_t page_of_hook(const long* args) {
  const auto flags = static_cast<unsigned>(args[3]);
  if ((flags & MAP_ANONYMOUS) == 0) {
    struct statfs about {};
    const bool is_huge = patch::system_call_hook(SYS_fstatfs, args[4], &about) == 0 && about.f_type == HUGETLBFS_MAGIC;
    return is_huge ? static_cast<size_t>(about.f_bsize) : kPage;
  }
  const unsigned power = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;
  return (flags & MAP_HUGETLB) == 0 ? kPage : power == 0 ? 0 : size_t{1} << power;
}

// What a call lays over, if it does.
struct Over {
  bool is_any;
  uintptr_t base;
};

// Each call is reported before and after it is made (patcher/H1). Another thread may register the range between the
// first report and the call; that registration is stale after the call.
bool munmap_hook(const Site& site, long number, const long* args, long* result_out) {
  report_hook(site, address_hook(args[0]), static_cast<size_t>(args[1]));
  *result_out = call_original_hook(site, number, args);
  report_hook(site, address_hook(args[0]), static_cast<size_t>(args[1]));
  return true;
}

// Makes a call that maps memory. What it lays over is reported before, and afterwards what it returns, or what it was
// to lay over: a call that fails may have unmapped that before.
template <typename LengthAt>
bool map_hook(const Site& site, long number, const long* args, long* result_out, Over over, LengthAt length_at) {
  const auto report = [&](uintptr_t base) { report_hook(site, base, length_at(base)); };
  if (over.is_any) report(over.base);
  const long result = call_original_hook(site, number, args);
  const bool is_mapped = !patch::is_error_hook(result);
  if (is_mapped || over.is_any) report(is_mapped ? address_hook(result) : over.base);
  *result_out = result;
  return true;
}

bool mmap_hook(const Site& site, long number, const long* args, long* result_out) {
  const size_t page = page_of_hook(args);
  const Over over{(args[3] & MAP_FIXED) != 0, address_hook(args[0])};
  return map_hook(site, number, args, result_out, over, [&](uintptr_t base) {
    const auto length = static_cast<size_t>(args[1]);
    const bool is_known = page != 0 && length <= SIZE_MAX - page;
    return is_known ? round_up_hook(length, page) : length + rounded_up_by_hook(base, length);
  });
}

// Returns the range that mremap takes or may take from the old place. A growing mapping may move; a shrinking one loses
// its end; with old length 0 it is only mapped a second time. more: see rounded_up_by_hook().
Span moved_range_hook(const long* args, size_t more) {
  const uintptr_t base = address_hook(args[0]);
  const auto old_length = static_cast<size_t>(args[1]);
  const auto length = static_cast<size_t>(args[2]);
  const bool moves = (args[3] & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0;
  const bool may_move = length > old_length && (args[3] & MREMAP_MAYMOVE) != 0;
  const uintptr_t kept = moves || may_move ? 0 : round_up_hook(length, kPage);
  return kept < old_length ? Span{base + kept, base + old_length + more} : Span{base, base};
}

bool mremap_hook(const Site& site, long number, const long* args, long* result_out) {
  constexpr long kFifth = MREMAP_FIXED | MREMAP_DONTUNMAP;  // the fifth argument exists only with these flags
  const long given[6] = {args[0], args[1], args[2], args[3], (args[3] & kFifth) != 0 ? args[4] : 0, 0};
  const size_t more = std::max(rounded_up_by_hook(address_hook(given[0]), static_cast<size_t>(given[1])),
                               rounded_up_by_hook(address_hook(given[0]), static_cast<size_t>(given[2])));
  const Span taken = moved_range_hook(given, more);
  report_hook(site, taken.base, taken.length());
  const size_t length = static_cast<size_t>(given[2]) + more;
  const size_t replaced = (given[3] & MREMAP_FIXED) != 0 ? length : 0;
  report_hook(site, address_hook(given[4]), replaced);
  const long result = call_original_hook(site, number, given);
  *result_out = result;
  report_hook(site, taken.base, taken.length());
  if (patch::is_error_hook(result)) {  // the new place may be unmapped nevertheless, or hold a part of the old one
    report_hook(site, address_hook(given[4]), replaced);
    return true;
  }
  const size_t kept = result == given[0] ? round_up_hook(static_cast<size_t>(given[1]), kPage) : 0;
  if (length > kept) report_hook(site, address_hook(result) + kept, length - kept);
  return true;
}

// MADV_REMOVE takes the pages out of their file, so out of all its mappings. Which file that is only the list of
// mappings says: all that is kept of files is reported.
void report_advice_hook(const Site& site, uintptr_t base, size_t length, int advice) {
  report_hook(site, base, length);
  constexpr pinrail_file_part_t kAnyFile{0, 0, UINT64_MAX, 0};
  if (advice == MADV_REMOVE && may_show_files_hook(site)) report_file_hook(site, kAnyFile);
}

bool madvise_hook(const Site& site, long number, const long* args, long* result_out) {
  const auto advice = static_cast<int>(args[2]);
  if (keeps_pages_hook(advice)) return false;
  report_advice_hook(site, address_hook(args[0]), static_cast<size_t>(args[1]), advice);
  *result_out = call_original_hook(site, number, args);
  report_advice_hook(site, address_hook(args[0]), static_cast<size_t>(args[1]), advice);
  return true;
}

bool holds_patched_code_hook(const Context& context, const Span& span) {
  return std::any_of(std::begin(context.code_at), std::end(context.code_at), [&](const std::atomic<uintptr_t>& each) {
    const uintptr_t at = each.load(std::memory_order_relaxed);  // relaxed: the address of a function does not change
    return at >= span.base && at < span.end;
  });
}

// No memory goes away. But a library that makes patched code writable is about to patch it, or has just done so (E6).
bool mprotect_hook(const Site& site, long number, const long* args, long* result_out) {
  if ((args[2] & PROT_EXEC) == 0) return false;
  *result_out = call_original_hook(site, number, args);
  const Span span = Span::of(address_hook(args[0]), static_cast<size_t>(args[1]));
  Context& context = context_of_hook(site);
  if (holds_patched_code_hook(context, span)) raise_alarm_hook(&context);
  Probe::report_hook(&context.probe, span.base, span.length());
  return true;
}

// The kernel copies the list, because its address may be invalid; then the kernel reports the error to the caller.
// Returns the sum of what the list holds.
uintptr_t report_list_hook(const Site& site, const long* args) {
  constexpr size_t kBatch = 16;
  iovec copies[kBatch];
  uintptr_t sum = 0;
  const auto count = static_cast<size_t>(args[2]);
  for (size_t done = 0; done < count; done += kBatch) {
    const size_t batch = std::min(kBatch, count - done);
    const auto offset = static_cast<long>(done * sizeof(iovec));
    if (!read_own_memory_hook(args[1] + offset, copies, batch * sizeof(iovec))) return sum;
    for (size_t i = 0; i < batch; ++i) {
      report_advice_hook(site, reinterpret_cast<uintptr_t>(copies[i].iov_base), copies[i].iov_len,
                         static_cast<int>(args[3]));
      sum += reinterpret_cast<uintptr_t>(copies[i].iov_base) + copies[i].iov_len;
    }
  }
  return sum;
}

// The descriptor says whose memory it is. If it is another process's, its addresses cost this process a needless miss.
bool process_madvise_hook(const Site& site, long number, const long* args, long* result_out) {
  if (keeps_pages_hook(static_cast<int>(args[3])) || static_cast<size_t>(args[2]) > kLongestList) return false;
  const uintptr_t sum = report_list_hook(site, args);
  *result_out = call_original_hook(site, number, args);
  // The list itself may lie in memory that the call has dropped.
  if (report_list_hook(site, args) != sum) report_hook(site, 0, UINTPTR_MAX);
  return true;
}

// Returns the part of the heap that is unmapped when the break moves. An address in the first page is used only by a
// probe: the kernel refuses it.
Span below_break_hook(uintptr_t asked, uintptr_t now) {
  const uintptr_t end = round_up_hook(asked, kPage);
  if (asked < kPage) return {asked, asked + 1};
  return end < now ? Span{end, now} : Span{now, now};
}

// Reports what goes away below the old break, and what is new above it. The kernel returns the new break.
bool brk_hook(const Site& site, long number, const long* args, long* result_out) {
  if (args[0] == 0) return false;  // asks for the break
  const auto now = static_cast<uintptr_t>(patch::system_call_hook(SYS_brk, 0));
  const Span gone = below_break_hook(address_hook(args[0]), now);
  report_hook(site, gone.base, gone.length());
  *result_out = call_original_hook(site, number, args);
  report_hook(site, gone.base, gone.length());
  const uintptr_t reached = address_hook(*result_out);
  const uintptr_t above = round_up_hook(now, kPage);  // the page in which the heap ended was there before
  if (reached > above) report_hook(site, above, reached - above);
  return true;
}

// shmdt() unmaps every mapping of the segment that lies where it would lie if the segment began at this address. The
// first page is always reported, as the trial of this function expects.
void report_attached_hook(const Site& site, uintptr_t begin) {
  report_hook(site, begin, kPage);
  if (may_show_files_hook(site)) report_file_hook(site, {0, 0, UINT64_MAX, begin});
}

// A caller that may attach a segment may also ask for its size. Otherwise the kernel will refuse the call, and one page
// is reported.
size_t segment_length_hook(long id) {
  shmid_ds about{};
  const long status = patch::system_call_hook(SYS_shmctl, id, IPC_STAT, &about);
  if (status != 0) return kPage;
  return (about.shm_segsz + kPage - 1) / kPage * kPage;
}

bool shmdt_hook(const Site& site, long number, const long* args, long* result_out) {
  const auto begin = static_cast<uintptr_t>(args[0]);
  report_attached_hook(site, begin);
  *result_out = call_original_hook(site, number, args);
  report_attached_hook(site, begin);
  return true;
}

// A segment on huge pages is mapped up to the end of the last one, and the kernel does not say that it has huge pages.
bool shmat_hook(const Site& site, long number, const long* args, long* result_out) {
  const Over over{(args[2] & SHM_REMAP) != 0, address_hook(args[1])};
  const size_t length = segment_length_hook(args[0]);
  return map_hook(site, number, args, result_out, over,
                  [&](uintptr_t base) { return over.is_any ? length + rounded_up_by_hook(base, length) : length; });
}

// Hook context: the hook of every patch. syscall() makes any system call: some allocators (tcmalloc, mimalloc) and
// hooks of other runtimes (UCX, Open MPI) use it.

using CallHook = bool(const Site& site, long number, const long* args, long* result_out);
CallHook* hook_of_hook(long number) {
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

}  // namespace

bool enter_hook(void* site_pointer, long number, const long* args, long* result_out) {
  const auto& site = *static_cast<const Site*>(site_pointer);
  CallHook* const hook = hook_of_hook(number);
  const HookScope scope;
  if (is_active_hook(site) && hook != nullptr && hook(site, number, args, result_out)) return true;
  // Another copy of this library that patched first may live on when this one has ended. relaxed: `context` was read.
  const patch::Record* const original = site.original.load(std::memory_order_relaxed);
  const ForeignScope theirs;
  return original != nullptr && patch::call_original_hook(original, number, args, result_out);
}

}  // namespace pinrail::patcher

#endif
