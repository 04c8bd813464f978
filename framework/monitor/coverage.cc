// SPDX-License-Identifier: BSD-3-Clause
// The events of each kind of memory and those of this kernel, and verdicts on mappings. API context; the callers hold
// no lock, because a verdict may read files and call monitors.
#include "framework/monitor/coverage.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include "base/core/calling_thread.h"
#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "base/param/param.h"
#include "framework/monitor/mapping.h"

namespace pinrail::monitor {
namespace {

// Events that replace or remove a mapping: possible for every kind.
constexpr uint32_t kAnywhere = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                               PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_SHMAT_OVER;
// Events that drop private pages; pages of a file stay in the page cache.
constexpr uint32_t kOwnPages = PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_GUARD_INSTALL | PINRAIL_EVENT_PROCESS_MADVISE;
constexpr uint32_t kSharedPages =
    PINRAIL_EVENT_REMOVE | PINRAIL_EVENT_GUARD_INSTALL | PINRAIL_EVENT_PROCESS_MADVISE | PINRAIL_EVENT_REMAP_FILE_PAGES;
constexpr uint32_t kFile = PINRAIL_EVENT_PUNCH_HOLE | PINRAIL_EVENT_TRUNCATE;

struct EventName {
  uint32_t event;
  const char* name;
};
constexpr EventName kEventNames[] = {{PINRAIL_EVENT_UNMAP, "unmap"},
                                     {PINRAIL_EVENT_MAP_OVER, "map_over"},
                                     {PINRAIL_EVENT_REMAP, "remap"},
                                     {PINRAIL_EVENT_REMAP_ONTO, "remap_onto"},
                                     {PINRAIL_EVENT_DONTNEED, "dontneed"},
                                     {PINRAIL_EVENT_REMOVE, "remove"},
                                     {PINRAIL_EVENT_GUARD_INSTALL, "guard_install"},
                                     {PINRAIL_EVENT_PROCESS_MADVISE, "process_madvise"},
                                     {PINRAIL_EVENT_BRK, "brk"},
                                     {PINRAIL_EVENT_SHMDT, "shmdt"},
                                     {PINRAIL_EVENT_SHMAT_OVER, "shmat_over"},
                                     {PINRAIL_EVENT_PUNCH_HOLE, "punch_hole"},
                                     {PINRAIL_EVENT_TRUNCATE, "truncate"},
                                     {PINRAIL_EVENT_REMAP_FILE_PAGES, "remap_file_pages"},
                                     {PINRAIL_EVENT_DIRECT_WRITE, "direct_write"},
                                     {PINRAIL_EVENT_DRIVER_MOVE, "driver_move"}};

constexpr int kMostLooks = 8;  // at a mapping that other threads change

// The line that is logged about a mapping that is not kept.
std::string describe(const pinrail_mapping_t& mapping, const std::string& why) {
  char range[64];
  std::snprintf(range, sizeof(range), "%" PRIxPTR "-%" PRIxPTR " (", mapping.base, mapping.end);
  return range + std::string(kind_name(mapping.kind)) + ") is not kept registered: " + why;
}

constexpr size_t kPage = 4096;
constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL, 6.13 on

// Whether the kernel has that madvise advice, or the system call, tried on the page. Raw system calls, because libc
// may lack the functions.
bool has_guard_install(void* page) {
  if (syscall(SYS_madvise, page, kPage, kGuardInstall) != 0) return false;
  constexpr int kGuardRemove = 103;
  syscall(SYS_madvise, page, kPage, kGuardRemove);
  return true;
}

bool has_process_madvise(void* page) {
  const Descriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  iovec list{page, kPage};
  return self.is_open() && syscall(SYS_process_madvise, self.get(), &list, 1L, MADV_DONTNEED, 0L) >= 0;
}

// False: the kernel lacks System V segments, or a seccomp filter refuses them.
bool has_segments() {
  constexpr long kNoSegment = -1;
  return syscall(SYS_shmat, kNoSegment, nullptr, 0L) >= 0 || (errno != ENOSYS && errno != EPERM);
}

}  // namespace

bool is_of_file(pinrail_mapping_kind_t kind) {
  return kind == PINRAIL_MAPPING_SHARED_ANONYMOUS || kind == PINRAIL_MAPPING_SYSV ||
         kind == PINRAIL_MAPPING_PRIVATE_FILE || kind == PINRAIL_MAPPING_SHARED_FILE ||
         kind == PINRAIL_MAPPING_DISK_FILE;
}

bool is_private_memory(pinrail_mapping_kind_t kind) {
  return kind == PINRAIL_MAPPING_ANONYMOUS || kind == PINRAIL_MAPPING_HEAP || kind == PINRAIL_MAPPING_STACK;
}

uint32_t events_of(pinrail_mapping_kind_t kind) {
  switch (kind) {
    case PINRAIL_MAPPING_ANONYMOUS:
    case PINRAIL_MAPPING_STACK: return kAnywhere | kOwnPages;
    case PINRAIL_MAPPING_HEAP: return kAnywhere | kOwnPages | PINRAIL_EVENT_BRK;
    case PINRAIL_MAPPING_SHARED_ANONYMOUS: return kAnywhere | kSharedPages;
    case PINRAIL_MAPPING_SYSV: return kAnywhere | kSharedPages | PINRAIL_EVENT_SHMDT;
    case PINRAIL_MAPPING_PRIVATE_FILE: return kAnywhere | kOwnPages | kFile;
    case PINRAIL_MAPPING_SHARED_FILE: return kAnywhere | kSharedPages | kFile;
    case PINRAIL_MAPPING_DISK_FILE: return kAnywhere | kSharedPages | kFile | PINRAIL_EVENT_DIRECT_WRITE;
    case PINRAIL_MAPPING_DEVICE: return kAnywhere | PINRAIL_EVENT_DRIVER_MOVE;
    case PINRAIL_MAPPING_NONE: break;
  }
  return PINRAIL_EVENTS_ALL;
}

Judgement judge(const Policy& policy, pinrail_mapping_kind_t kind, uint32_t seen) {
  return {events_of(kind) & policy.possible & ~seen, policy.is_strict && !is_private_memory(kind)};
}

std::string why_not(const Judgement& judgement) {
  if ((judgement.unseen & PINRAIL_EVENT_UNMAP) != 0) return "no monitor watches such memory";
  if (judgement.unseen != 0) return "no monitor sees " + name_events(judgement.unseen);
  return judgement.is_refused ? "another process may cut it, and monitor_strict is set" : "";
}

Status parse_events(std::string_view list, uint32_t* events_out, std::string* unknown_out) {
  uint32_t events = 0;
  for (const std::string_view word : param::split(list, ",")) {
    uint32_t event = 0;
    for (const EventName& named : kEventNames) event = word == named.name ? named.event : event;
    if (event == 0) {
      *unknown_out = word;
      return PINRAIL_ERR_BAD_PARAM;
    }
    events |= event;
  }
  *events_out = events;
  return success();
}

std::string name_events(uint32_t events) {
  std::string list;
  for (const EventName& named : kEventNames) {
    if ((events & named.event) != 0) list += (list.empty() ? "" : ", ") + std::string(named.name);
  }
  return list;
}

// Sets the policy and forgets all verdicts. Start-up, or while nothing is cached.
void Coverage::start(const Policy& policy, uint32_t reported, bool is_watched) {
  possible_.store(policy.possible);
  is_strict_.store(policy.is_strict);
  is_watched_.store(is_watched);
  covers_everything_.store((PINRAIL_EVENTS_ALL & ~reported) == 0 && !policy.is_strict);
  known_.forget_hook({0, UINTPTR_MAX});
}

// Asks the monitors what they see in the mapping. False, and logged: an event stays unseen, or monitor_strict refuses
// it.
bool Coverage::is_covered(const pinrail_mapping_t& mapping) const {
  const Judgement judgement = judge({possible_.load(), is_strict_.load()}, mapping.kind, events_seen_(mapping));
  if (!judgement.is_kept()) log_line_(describe(mapping, why_not(judgement)));
  return judgement.is_kept();
}

// Whether an event can find the mapping: one that events name by its file must have a place in the table of those.
bool Coverage::has_place(const pinrail_mapping_t& mapping) {
  if (!is_of_file(mapping.kind) || covers_everything_.load()) return true;
  if (files_.add({mapping.base, mapping.end}, mapping.inode, mapping.offset)) return true;
  log_line_(describe(mapping, "too many mappings of files are kept"));
  return false;
}

// Whether all of the mapping is mapped as it was, as one: what was mapped after a monitor began to watch the rest does
// not become one with that. It may have grown, by neighbours that are watched, too. False: it is now what is there now.
bool Coverage::is_there_still(uintptr_t at, pinrail_mapping_t* mapping) const {
  const pinrail_mapping_t was = *mapping;
  if (!find_mapping_(at, mapping)) mapping->base = UINTPTR_MAX;
  return mapping->base <= was.base && was.end <= mapping->end && mapping->kind == was.kind &&
         mapping->device == was.device && mapping->inode == was.inode &&
         (!is_of_file(was.kind) || mapping->offset - mapping->base == was.offset - was.base);
}

// Judges the mapping at the address. If an event prevents keep(), the verdict is used this once: if the event touched
// the requested range, the pool registers again (R13). API context.
Verdict Coverage::find_verdict(uintptr_t at) {
  const NoCancel no_cancel;  // reading files is a cancellation point
  const uint64_t ticket = known_.begin_lookup();
  const auto end = [](KnownMappings* known) { known->end_lookup(); };
  const std::unique_ptr<KnownMappings, decltype(end)> lookup(&known_, end);  // ended by an exception, too
  pinrail_mapping_t mapping{};
  if (!find_mapping_(at, &mapping)) mapping.base = UINTPTR_MAX;
  if (mapping.base > at) {  // what cannot be read may be of a file, whose events must find it
    const pinrail_mapping_t hole = {sizeof(hole), at, mapping.base, 0, 0, 0, PINRAIL_MAPPING_NONE, 0};
    log_line_(describe(hole, "no mapping can be read there"));
    return {{at, hole.end}, false};
  }
  // Not remembered either: that mprotect() makes it memory is no event.
  if (mapping.kind == PINRAIL_MAPPING_NONE) return {{at, mapping.end}, false};
  bool kept = is_covered(mapping);
  // What happened to it before it was watched was no event. Then what is there now is watched, until it stays as it is.
  for (int looks = 0; kept && is_watched_.load() && !is_there_still(at, &mapping); ++looks) {
    const bool is_memory = mapping.base <= at && mapping.kind != PINRAIL_MAPPING_NONE;
    if (looks == kMostLooks || !is_memory) return {{at, at + 1}, false};
    kept = is_covered(mapping);
  }
  kept = kept && has_place(mapping);
  const Verdict verdict{
      {mapping.base, mapping.end}, kept, kept && mapping.is_writable != 0 && is_private_memory(mapping.kind)};
  known_.keep(ticket, verdict);
  return verdict;
}

Verdict Coverage::verdict_on(uintptr_t at) {
  Verdict verdict;
  return known_.find(at, &verdict) ? verdict : find_verdict(at);
}

Span Coverage::private_around(const Span& span, const Span& most) {
  uintptr_t first = span.base, end = span.base;
  for (Verdict verdict; end < most.end; end = verdict.span.end) {
    verdict = verdict_on(end);
    if (!verdict.is_private) break;
  }
  if (end < span.end) return span;
  for (Verdict verdict; first > most.base; first = verdict.span.base) {
    verdict = verdict_on(first - 1);
    if (!verdict.is_private) break;
  }
  return {std::max(first, most.base), std::min(end, most.end)};
}

// Whether registrations of the span may be kept: true only if every mapping of the span is covered.
bool Coverage::covers(const Span& span) {
  if (covers_everything_.load(std::memory_order_relaxed))
    return true;  // relaxed: when a monitor goes blind, everything cached dies
  for (uintptr_t at = span.base; at < span.end;) {
    const Verdict verdict = verdict_on(at);
    if (!verdict.covered) return false;
    at = verdict.span.end;
  }
  return true;
}

uint32_t events_of_kernel() {
  const OwnPages own(kPage);
  if (!own.is_mapped()) return PINRAIL_EVENTS_ALL;
  void* const page = own.at();
  // After mlockall() new memory is locked, and the kernel refuses some advice for locked pages.
  syscall(SYS_munlock, page, kPage);
  uint32_t events = PINRAIL_EVENTS_ALL;
  if (!has_guard_install(page)) events &= ~uint32_t{PINRAIL_EVENT_GUARD_INSTALL};
  if (!has_process_madvise(page)) events &= ~uint32_t{PINRAIL_EVENT_PROCESS_MADVISE};
  if (!has_segments()) events &= ~(uint32_t{PINRAIL_EVENT_SHMAT_OVER} | PINRAIL_EVENT_SHMDT);
  return events;
}

}  // namespace pinrail::monitor
