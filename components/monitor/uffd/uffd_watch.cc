// SPDX-License-Identifier: BSD-3-Clause
// The descriptor, and the ranges that it watches. Start-up or API context, no lock; unwatch_all() also runs in the
// reader thread.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "base/patch/maps.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
constexpr uint64_t kWriteProtect = uint64_t{1} << 0;   // UFFD_FEATURE_PAGEFAULT_FLAG_WP, since Linux 5.7
constexpr uint64_t kSharedMemory = uint64_t{1} << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM, since Linux 5.19
constexpr int kUserModeOnly = 1;                       // UFFD_USER_MODE_ONLY, since Linux 5.11: needs no privilege

bool ask_for(Context* context, uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (ioctl_of(context->watch.number(), UFFDIO_API, &api) != 0) return false;
  context->features = features;
  return true;
}

Status refused(const Context& context, const char* what) {
  const std::string why = std::string(what) + ": " + ErrnoText(errno).c_str();
  context.host->log(context.host, PINRAIL_LOG_INFO, why.c_str());
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Moves the descriptor to a high number, which a program that closes all descriptors and opens files of its own does
// not soon reach.
int moved_to_high_number(int descriptor) {
  constexpr int kOutOfTheWay = 500;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, kOutOfTheWay);
  if (moved < 0) return descriptor;  // the process may not have so many descriptors
  close(descriptor);
  return moved;
}

// Returns a new userfaultfd, or -1 and an errno.
int open_userfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  auto opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags | kUserModeOnly));
  if (opened < 0 && errno == EINVAL) opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags));
  return opened < 0 ? -1 : moved_to_high_number(opened);
}

}  // namespace

// NOT_AVAILABLE if the kernel refuses it or forks come between again and again. Kernels before 5.19 watch anonymous
// memory only.
Status open_watch(Context* context) {
  if (!context->watch.open(FileKind::userfaultfd, open_userfaultfd)) {
    return refused(*context, "userfaultfd is refused");
  }
  const bool granted =
      ask_for(context, kEvents | kWriteProtect | kSharedMemory) || ask_for(context, kEvents | kWriteProtect);
  return granted ? success() : refused(*context, "this kernel's userfaultfd has no write-protect mode");
}

bool watch_range(const Context& context, const Span& span) {
  uffdio_register range{};
  range.range = {span.base, span.length()};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl_of(context.watch.number(), UFFDIO_REGISTER, &range) == 0;
}

// The kernel looks at the count of events before it looks at the range, which is empty: EINVAL. After another error the
// descriptor is lost, and the reader or check() finds that out.
int is_quiet(void* context_pointer) {
  const auto* const context = static_cast<const Context*>(context_pointer);
  uffdio_writeprotect nothing{};
  const long status = system_call_hook(SYS_ioctl, context->watch.number(), UFFDIO_WRITEPROTECT, &nothing);
  return status == -EAGAIN ? 0 : 1;
}

// Returns whether another descriptor watches the mapping: the kernel refuses to register that. Only its beginning is
// tried, up to where no transparent huge page is split, because registering and unregistering take time for each page.
// The kernel refuses a part of a page of hugetlbfs.
static bool is_watched_by_another(const Context& context, const Span& mapping) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const Span beginning{mapping.base, std::min(mapping.end, (mapping.base / kHugePage + 1) * kHugePage)};
  if (watch_range(context, beginning)) return false;
  return errno == EBUSY || (errno == EINVAL && !watch_range(context, mapping) && errno == EBUSY);
}

// Unregisters range by range: the kernel refuses a range with a mapping of a kind that it cannot watch. Kernels before
// 6.17 also unregister what another descriptor watches: one of another copy of the library, or the program's own.
void unwatch_all(const Context& context) {
  if (!context.watch.is_open()) return;
  patch::for_each_mapping([&](const patch::Mapping& mapping) {
    uffdio_range range{mapping.base, mapping.end - mapping.base};
    const bool is_ours = !is_watched_by_another(context, {mapping.base, mapping.end});
    if (is_ours) ioctl_of(context.watch.number(), UFFDIO_UNREGISTER, &range);
    return true;
  });
}

uint64_t count_mappings() {
  uint64_t count = 0;
  const bool is_read = patch::for_each_mapping([&](const patch::Mapping&) { return ++count != 0; });
  return is_read ? count : UINT64_MAX;
}

// Chooses which mappings are watched. API context, no lock. Whole mappings are watched, not registrations: watching a
// part would split the mapping, and the number of mappings of a process is limited.

namespace {

// Not PINRAIL_EVENT_REMOVE: the kernel reports MADV_REMOVE for the mapping that it names, and not for the other
// mappings of the same file, which lose the pages as well.
constexpr uint32_t kSeen = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                           PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_PROCESS_MADVISE |
                           PINRAIL_EVENT_BRK;

// Returns whether one more mapping may be watched. A watched mapping does not merge with its neighbours any more, so
// that in time there is one mapping more. relaxed: an estimate. When it is too high, the mappings are counted, but not
// at each call, because counting takes long.
bool has_room(Context* context) {
  constexpr uint64_t kRefusals = 256;
  constexpr auto relaxed = std::memory_order_relaxed;
  if (context->taken.fetch_add(1, relaxed) < context->most_mappings) return true;
  if (context->refused.fetch_add(1, relaxed) % kRefusals != 0) return false;
  const uint64_t count = count_mappings();
  context->taken.store(count, relaxed);
  if (count >= context->most_mappings) return false;
  context->refused.store(0, relaxed);  // most of what was watched is gone: the next refusal counts again
  return true;
}

void report_refused(const Context& context, const pinrail_mapping_t& mapping) {
  if (errno == EINVAL) return;  // a kind that the kernel does not watch; the README lists them
  const std::string line = std::string("the kernel does not watch a mapping of ") +
                           NumberText(mapping.end - mapping.base).c_str() + " bytes: " + ErrnoText(errno).c_str();
  context.host->log(context.host, PINRAIL_LOG_DEBUG, line.c_str());
}

}  // namespace

// Starts to watch the mapping. Returns the events that are then seen, or 0.
uint32_t cover(Context* context, const pinrail_mapping_t& mapping) {
  const bool may_be = mapping.kind != PINRAIL_MAPPING_NONE && mapping.kind != PINRAIL_MAPPING_DEVICE;
  if (!may_be || context->lost.load() || !is_same_process(*context) || !has_room(context)) return 0;
  if (watch_range(*context, {mapping.base, mapping.end})) return kSeen;
  report_refused(*context, mapping);
  return 0;
}

}  // namespace pinrail::uffd
