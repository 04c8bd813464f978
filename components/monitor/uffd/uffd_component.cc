// SPDX-License-Identifier: BSD-3-Clause
// Its trial, the ranges that it watches, and the component: parameters, open, close, start and stop in start-up
// context, check in API context. Functions with REQUIRES are called with Context::mutex held.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>

#include "base/core/kernel.h"
#include "base/core/status.h"
#include "base/patch/maps.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {

// Keeps E5 with real events. It makes the system calls itself: a report by a patched function would not show that the
// kernel reports. Start-up context; the caller holds Context::mutex.

namespace {

constexpr size_t kLength = 2 * kPage;

void unmap(uintptr_t base) { system_call_hook(SYS_munmap, base, kLength); }

void drop(uintptr_t base) {
  system_call_hook(SYS_madvise, base, kLength, MADV_DONTNEED);
  unmap(base);
}

void move(uintptr_t base) {
  const uintptr_t onto = map_scratch(kLength);
  if (onto != 0) system_call_hook(SYS_mremap, base, kLength, kLength, MREMAP_MAYMOVE | MREMAP_FIXED, onto);
  unmap(onto != 0 ? onto : base);
}

// The kernel lets the caller continue before the reader has reported the event, so the report may come later.
bool wait_until_seen(const Context& context) {
  constexpr int kNaps = 2000;
  constexpr unsigned kNapMicroseconds = 1000;
  for (int i = 0; i < kNaps && !context.probe.is_seen.load() && !context.lost.load(); ++i) {
    if (i != 0) usleep(kNapMicroseconds);
  }
  return context.probe.is_seen.load();
}

// Watches scratch memory and acts on it. False if it cannot be watched or its event does not arrive.
bool fire(Context* context, void (*act)(uintptr_t base)) {
  const uintptr_t base = map_scratch(kLength);
  if (base == 0) return false;
  if (!watch_range(*context, {base, base + kLength})) {
    unmap(base);
    return false;
  }
  context->probe.is_seen.store(false);
  context->probe.base.store(base);
  context->probe.end.store(base + kLength);
  act(base);
  const bool seen = wait_until_seen(*context);
  context->probe.end.store(0);
  return seen;
}

}  // namespace

uintptr_t map_scratch(size_t length) {
  const long got =
      system_call_hook(SYS_mmap, nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return patch::is_error_hook(got) ? 0 : static_cast<uintptr_t>(got);
}

// NOT_AVAILABLE: an event of some kind does not arrive.
static Status try_events_locked(Context* context) REQUIRES(context->mutex) {
  const pinrail_host_t* host = context->host;
  void* subscription;
  const Status subscribed =
      host->monitor_subscribe(host, PINRAIL_KIND_HOST, Probe::report_hook, &context->probe, &subscription);
  if (!subscribed.ok()) return subscribed;
  const bool seen = fire(context, unmap) && fire(context, drop) && fire(context, move);
  host->monitor_unsubscribe(host, subscription);
  if (!seen) host->log(host, PINRAIL_LOG_INFO, "the kernel's events do not arrive");
  return seen ? success() : Status(PINRAIL_ERR_NOT_AVAILABLE);
}

// The descriptor, and the ranges that it watches. Start-up or API context, no lock; unwatch_all() also runs in the
// reader thread.

namespace {

constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
constexpr uint64_t kWriteProtect = uint64_t{1} << 0;   // UFFD_FEATURE_PAGEFAULT_FLAG_WP, since Linux 5.7
constexpr uint64_t kSharedMemory = uint64_t{1} << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM, since Linux 5.19
constexpr int kUserModeOnly = 1;                       // UFFD_USER_MODE_ONLY, since Linux 5.11: needs no privilege

bool ask_for(const Context& context, uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  return ioctl_of(context.watch.number(), UFFDIO_API, &api) == 0;
}

// Returns a new userfaultfd, or -1 and an errno.
int open_userfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  auto opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags | kUserModeOnly));
  if (opened < 0 && errno == EINVAL) opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags));
  return opened;
}

}  // namespace

// NOT_AVAILABLE if the kernel refuses it or forks come between again and again. Kernels before 5.19 watch anonymous
// memory only.
static Status open_watch(Context* context) {
  if (!context->watch.open(FileKind::userfaultfd, open_userfaultfd)) {
    return not_available(context->host, "userfaultfd is refused", ErrnoText(errno).c_str());
  }
  const bool granted =
      ask_for(*context, kEvents | kWriteProtect | kSharedMemory) || ask_for(*context, kEvents | kWriteProtect);
  if (granted) return success();
  return not_available(context->host, "this kernel's userfaultfd has no write-protect mode", ErrnoText(errno).c_str());
}

bool watch_range(const Context& context, const Span& span) {
  uffdio_register range{};
  range.range = {span.base, span.length()};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl_of(context.watch.number(), UFFDIO_REGISTER, &range) == 0;
}

// Returns 0 while an event of this descriptor is under way in the kernel: from before the mapping changes until the
// event was read. 1 otherwise. context: Context. Any thread. The kernel looks at the count of events before it looks at
// the range, which is empty: EINVAL. If the descriptor is closed, that cannot be told until the reader has given up: it
// would not find out if it is closed for this thread alone.
static int is_quiet(void* context_pointer) {
  auto* const context = static_cast<Context*>(context_pointer);
  uffdio_writeprotect nothing{};
  const long status = system_call_hook(SYS_ioctl, context->watch.number(), UFFDIO_WRITEPROTECT, &nothing);
  if (status == -EBADF) context->is_closed.store(true);
  return status == -EAGAIN || (status == -EBADF && !context->lost.load()) ? 0 : 1;
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

static uint64_t count_mappings() {
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
// that in time there is one mapping more. The mappings are not counted at each call, because that takes long.
bool has_room(Context* context) {
  constexpr uint64_t kBetweenCounts = 256;
  constexpr auto relaxed = std::memory_order_relaxed;  // an estimate
  const uint64_t since = context->asked.fetch_add(1, relaxed) % kBetweenCounts;
  if (since == 0) context->mappings.store(count_mappings(), relaxed);
  return context->mappings.load(relaxed) < context->most_mappings - std::min(since, context->most_mappings);
}

// Starts to watch the mapping. Returns the events that are then seen, or 0.
uint32_t cover(void* context_pointer, const pinrail_mapping_t* mapping) {
  auto* const context = static_cast<Context*>(context_pointer);
  const bool may_be = mapping->kind != PINRAIL_MAPPING_NONE && mapping->kind != PINRAIL_MAPPING_DEVICE;
  if (!may_be || context->lost.load() || !is_same_process(*context) || !has_room(context)) return 0;
  if (watch_range(*context, {mapping->base, mapping->end})) return kSeen;
  if (errno == EINVAL) return 0;  // a kind that the kernel does not watch; the README lists them
  const std::string line = std::string("the kernel does not watch a mapping of ") +
                           NumberText(mapping->end - mapping->base).c_str() + " bytes: " + ErrnoText(errno).c_str();
  context->host->log(context->host, PINRAIL_LOG_DEBUG, line.c_str());
  return 0;
}

// The component.

const char kHelp[] =
#include "components/monitor/uffd/uffd_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "map_share", "50",
     "Per cent of vm.max_map_count: while the process has more mappings than that, no further ones are watched. 0: "
     "none ever. A watched mapping does not merge with its neighbours.",
     PINRAIL_TYPE_UNSIGNED, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 90, nullptr}};

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* context = new (std::nothrow) Context;
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  context->host = host;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Context*>(context); }

Status read_params(Context* context) {
  pinrail_param_value_t share{};
  const Status status = context->host->param(context->host, "map_share", &share);
  context->most_mappings = number_in_file("/proc/sys/vm/max_map_count", "", 65530) * share.u / 100;
  context->asked.store(0);
  context->lost.store(false);
  context->is_closed.store(false);
  context->bell.store(kNone);
  context->stopping.store(false);
  return status;
}

// Starts the reader and tests that events arrive. After an error the caller calls stop_locked().
// NOT_SUPPORTED: the library is of another version.
Status start_locked(Context* context) REQUIRES(context->mutex) {
  Status status = read_params(context);
  if (status.ok()) context->alive = make_alive_word();
  context->own = monitor_services::of(context->host);
  const bool is_possible = context->alive != nullptr && context->own != nullptr;
  if (status.ok()) status = is_possible ? open_watch(context) : Status(PINRAIL_ERR_NOT_SUPPORTED);
  if (status.ok() && !start_reader(context)) {
    show(context->host, "no thread");
    status = PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  if (status.ok()) status = try_events_locked(context);
  if (status.ok()) context->own->ask_first(is_quiet, context);
  return status;
}

// In a forked child there is no reader, nothing is watched, and the descriptor is closed. Memory that is freed here
// while the reader runs may be watched; the reader then reads that event as well.
void stop_locked(Context* context) REQUIRES(context->mutex) {
  if (context->own != nullptr) context->own->ask_first(nullptr, nullptr);
  if (is_same_process(*context)) stop_reader(context);
  context->reader.forget();
  context->watch.close();
  context->own = nullptr;
  if (context->alive != nullptr) munmap(context->alive, kPage);
  context->alive = nullptr;
}

pinrail_status_t start(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  const Status status = start_locked(context);
  if (!status.ok()) stop_locked(context);
  return status.code();
}

void stop(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  stop_locked(context);
}

// Misses call it, so it causes no event. The reader itself notices when it cannot read any more.
pinrail_status_t check(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  if (!context->lost.load() && context->watch.is_open()) return PINRAIL_SUCCESS;
  if (!context->lost.load()) lose(context);
  context->host->monitor_blind(context->host, "uffd: its descriptor was closed");
  return PINRAIL_ERR_ERROR;
}

constexpr pinrail_monitor_ops_t kOps = {sizeof(pinrail_monitor_ops_t), start, stop, check, nullptr, cover, 0,
                                        PINRAIL_MONITOR_ANY_CALLER};

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MONITOR_ABI, 40, "monitor", "uffd",
                         "Has the kernel report what happens to mappings (userfaultfd): also raw system calls.", open,
                         close, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::uffd

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::uffd::kComponent;
