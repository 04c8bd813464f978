// SPDX-License-Identifier: BSD-3-Clause
// What every monitor must do: it reports what it says that it sees, in time, to the copy of the library that started
// it, and from its hooks does nothing that a hook must not do.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/core/own_component.h"
#include "base/loader/loader.h"
#include "contrib/tools/common/memory_events.h"
#include "framework/api/api.h"
#include "framework/monitor/monitor.h"
#include "test/conform/suite/component.h"
#include "test/fake/fake_host.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::conform {
namespace {

using tools::EventMemory;
using tools::Extent;
using tools::MemoryEvent;

constexpr unsigned char kMark = 0x5a;
constexpr int kCopies = 2;

// What one copy of the library was told. A hook writes it: no memory, no lock.
struct Told {
  static constexpr size_t kRoom = 1024;
  std::atomic<size_t> count{0};
  struct Report {
    uintptr_t base;
    size_t length;
    bool in_time;  // the kernel had not acted yet, or register and find were held
  } reports[kRoom]{};
  std::atomic<int> holds{0};
  std::atomic<bool> ended{false};
  std::atomic<bool> after_end{false};
  std::atomic<const unsigned char*> watched{nullptr};  // its first byte is marked until the event
  std::atomic<bool> listens{true};
  bool left_held = false;  // after the last event

  void clear() {
    count.store(0);
    listens.store(true);
  }
};

// By the copy; the host table has no room for a context of ours.
Told told[kCopies];

// The kernel looks, for there may be nothing there.
bool is_marked_hook(const unsigned char* at) {
  const int kept = errno;
  unsigned char byte = 0;
  iovec local{&byte, 1};
  iovec remote{const_cast<unsigned char*>(at), 1};
  const bool read = syscall(SYS_process_vm_readv, getpid(), &local, 1L, &remote, 1L, 0L) == 1;
  errno = kept;
  return read && byte == kMark;
}

template <int kCopy>
void report_hook(const pinrail_host_t*, uintptr_t base, size_t length) {
  Told& mine = told[kCopy];
  if (mine.ended.load()) mine.after_end.store(true);
  monitor::report_hook(0, base, length);  // a monitor that tries itself subscribes
  if (!mine.listens.load()) return;
  const size_t at = mine.count.fetch_add(1);
  const unsigned char* const watched = mine.watched.load();
  const bool in_time = mine.holds.load() > 0 || watched == nullptr || is_marked_hook(watched);
  if (at < Told::kRoom) mine.reports[at] = {base, length, in_time};
}
template <int kCopy>
void hold_hook(const pinrail_host_t*) {
  told[kCopy].holds.fetch_add(1);
}
template <int kCopy>
void release_hook(const pinrail_host_t*) {
  told[kCopy].holds.fetch_sub(1);
}
void nothing_blind(const pinrail_host_t*, const char*) {}

// The library reports what happens to a file by itself, which would not be heard here: all memory is reported instead.
template <int kCopy>
const void* extension(const pinrail_host_t* host, const char* name, uint32_t version) {
  static const auto of_library = api::make_services().extension;
  const void* const found = of_library(host, name, version);
  if (found == nullptr || std::strcmp(name, monitor_services::kName) != 0) return found;
  static pinrail_monitor_services_t own;
  own = *static_cast<const pinrail_monitor_services_t*>(found);
  own.keeps_files_hook = [] { return 1; };
  own.report_file_hook = [](const pinrail_file_part_t*) { report_hook<kCopy>(nullptr, 0, UINTPTR_MAX); };
  return &own;
}

pinrail_host_t services_of(int copy) {
  pinrail_host_t host = api::make_services();
  host.monitor_report_hook = copy == 0 ? report_hook<0> : report_hook<1>;
  host.monitor_hold_hook = copy == 0 ? hold_hook<0> : hold_hook<1>;
  host.monitor_release_hook = copy == 0 ? release_hook<0> : release_hook<1>;
  host.monitor_blind = nothing_blind;
  host.extension = copy == 0 ? extension<0> : extension<1>;
  return host;
}

// An opened monitor. It is not closed: like the library, the process keeps its hooks until it ends.
class Monitor {
 public:
  Monitor(const File& file, int copy, Verdict* verdict) : copy_(copy) {
    component_ = load(file, verdict);
    if (component_ == nullptr) return;
    if (loader::text_of(component_->name) == "external") {
      verdict->skipped = "the program itself reports";
      return;
    }
    host_ = new fake::FakeHost(*component_, services_of(copy));
    const pinrail_status_t opened = component_->open(host_->table(), &context_);
    if (opened != PINRAIL_SUCCESS) {
      verdict->skipped = "it cannot be opened here";
      return;
    }
    ops_ = static_cast<const pinrail_monitor_ops_t*>(component_->ops);
    if (ops_->start == nullptr || ops_->stop == nullptr) verdict->breaks("C1", "start() or stop() is NULL");
  }
  bool usable(Verdict* verdict) {
    if (ops_ == nullptr || !verdict->kept()) return false;
    const pinrail_status_t started = ops_->start(context_);
    if (!is_status(started)) verdict->breaks("C5", "start() returns a code that does not exist");
    if (started != PINRAIL_SUCCESS) verdict->skipped = "it does not start here";
    return started == PINRAIL_SUCCESS && verdict->kept();
  }
  uint32_t sees() const { return ops_->sees == nullptr ? 0 : ops_->sees(context_); }
  // With what it sees of this memory alone.
  uint32_t sees(const EventMemory& memory) const {
    if (ops_->cover == nullptr) return sees();
    pinrail_mapping_t mapping{};
    mapping.size = sizeof(mapping);
    mapping.base = reinterpret_cast<uintptr_t>(memory.base);
    mapping.end = mapping.base + memory.length;
    mapping.kind =
        memory.kind == tools::MemoryKind::shared_file ? PINRAIL_MAPPING_SHARED_FILE : PINRAIL_MAPPING_ANONYMOUS;
    return sees() | ops_->cover(context_, &mapping);
  }
  const pinrail_monitor_ops_t& ops() const { return *ops_; }
  void* context() const { return context_; }
  void stop() {
    ops_->stop(context_);
    told[copy_].ended.store(true);
  }
  Told& heard() const { return told[copy_]; }

 private:
  const int copy_;
  const pinrail_component_t* component_ = nullptr;
  fake::FakeHost* host_ = nullptr;
  void* context_ = nullptr;
  const pinrail_monitor_ops_t* ops_ = nullptr;
};

#define MONITOR(name)             \
  Monitor name(file, 0, verdict); \
  if (!(name).usable(verdict)) return

// The bit of what a fired event is, by name; 0: none of those that the checks fire.
uint32_t bit_of(const char* name) {
  constexpr struct {
    const char* name;
    uint32_t bit;
  } kBits[] = {{"munmap", PINRAIL_EVENT_UNMAP},
               {"munmap-half", PINRAIL_EVENT_UNMAP},
               {"mmap-over", PINRAIL_EVENT_MAP_OVER},
               {"mremap-move", PINRAIL_EVENT_REMAP},
               {"mremap-onto", PINRAIL_EVENT_REMAP_ONTO},
               {"madvise-dontneed", PINRAIL_EVENT_DONTNEED},
               {"madvise-remove", PINRAIL_EVENT_REMOVE},
               {"madvise-guard-install", PINRAIL_EVENT_GUARD_INSTALL},
               {"process-madvise", PINRAIL_EVENT_PROCESS_MADVISE},
               {"fallocate-punch-hole", PINRAIL_EVENT_PUNCH_HOLE},
               {"ftruncate", PINRAIL_EVENT_TRUNCATE},
               {"remap-file-pages", PINRAIL_EVENT_REMAP_FILE_PAGES}};
  for (const auto& one : kBits) {
    if (std::strcmp(one.name, name) == 0) return one.bit;
  }
  return 0;
}

constexpr size_t kLength = 16 * 4096;

std::unique_ptr<EventMemory> marked_memory(tools::MemoryKind kind) {
  auto memory = tools::prepare_memory(kind, kLength);
  if (memory != nullptr) std::memset(memory->base, kMark, memory->length);
  return memory;
}

// Fires the event at marked memory. False: this kernel does not do it, or the monitor does not claim to see it.
bool fire(const Monitor& monitor, const MemoryEvent& event, Extent* lost_out) {
  const auto memory = marked_memory(event.kind);
  if (memory == nullptr || (monitor.sees(*memory) & bit_of(event.name)) == 0) return false;
  *lost_out = tools::lost(event, *memory);
  monitor.heard().clear();
  monitor.heard().watched.store(lost_out->base);
  const bool fired = tools::fire_memory_event(event, memory.get());
  // What the kernel tells a thread of the monitor may arrive a little later than the call returns: then it was held.
  for (int i = 0; i < 100 && monitor.heard().count.load() == 0; ++i) usleep(1000);
  for (int i = 0; i < 1000 && monitor.heard().holds.load() != 0; ++i) usleep(1000);
  monitor.heard().left_held = monitor.heard().holds.load() != 0;
  monitor.heard().listens.store(false);  // the memory is unmapped now
  monitor.heard().watched.store(nullptr);
  return fired;
}

// The reports of an event, by when they came.
enum class Which : uint8_t { any, in_time, late };

bool covers(const Told& heard, const Extent& range, Which which) {
  const auto from = reinterpret_cast<uintptr_t>(range.base);
  uintptr_t reached = from;
  const size_t count = std::min(heard.count.load(), Told::kRoom);
  for (size_t round = 0; round < count; ++round) {
    for (size_t i = 0; i < count; ++i) {
      const Told::Report& report = heard.reports[i];
      if (which != Which::any && report.in_time != (which == Which::in_time)) continue;
      const uintptr_t end = report.length > UINTPTR_MAX - report.base ? UINTPTR_MAX : report.base + report.length;
      if (report.base <= reached && end > reached) reached = end;
    }
  }
  return reached >= from + range.length;
}

void it_claims_only_events_that_exist(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  KEEPS("C5", (monitor.sees() & ~uint32_t{PINRAIL_EVENTS_ALL}) == 0, "sees() has bits that are no PINRAIL_EVENT_*");
  constexpr uint32_t kKinds = PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF | PINRAIL_KIND_REMOTE | PINRAIL_KIND_GPU;
  constexpr uint32_t kFlags = PINRAIL_MONITOR_ANY_CALLER | PINRAIL_MONITOR_AFTERWARDS;
  KEEPS("C5", (monitor.ops().kinds & ~kKinds) == 0, "kinds has bits that are no PINRAIL_KIND_*");
  KEEPS("C5", (monitor.ops().flags & ~kFlags) == 0, "flags has unknown bits");
}

void what_it_claims_to_see_is_reported_whole(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  for (const MemoryEvent& event : tools::memory_events()) {
    Extent lost{};
    if (bit_of(event.name) == 0 || !fire(monitor, event, &lost)) continue;
    verdict->at = event.name;
    KEEPS("E5", monitor.heard().count.load() != 0, "an event that sees() or cover() names is not reported");
    KEEPS("E1", covers(monitor.heard(), lost, Which::any), "a report lacks a part of what went away");
  }
}

void reports_come_before_the_kernel_acts_or_are_held(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  for (const MemoryEvent& event : tools::memory_events()) {
    Extent lost{};
    if (bit_of(event.name) == 0 || event.contents == tools::Contents::kept || !fire(monitor, event, &lost)) continue;
    verdict->at = event.name;
    KEEPS("E1", monitor.heard().count.load() == 0 || covers(monitor.heard(), lost, Which::in_time),
          "an event is reported when the memory is gone, without monitor_hold_hook()");
    KEEPS("E1", !monitor.heard().left_held, "monitor_hold_hook() is called without monitor_release_hook()");
  }
}

void what_it_says_that_it_reports_afterwards_is(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  APPLIES_IF((monitor.ops().flags & PINRAIL_MONITOR_AFTERWARDS) != 0, "it does not say that it reports afterwards");
  for (const MemoryEvent& event : tools::memory_events()) {
    Extent lost{};
    if ((monitor.sees() & bit_of(event.name)) == 0 || event.contents == tools::Contents::kept) continue;
    if (!fire(monitor, event, &lost)) continue;
    verdict->at = event.name;
    KEEPS("E1", covers(monitor.heard(), lost, Which::late), "an event is not reported again when the memory is gone");
  }
}

void its_hooks_allocate_nothing_and_keep_errno(const File& file, Verdict* verdict) {
  APPLIES_IF(allocations_of_thread() >= 0, "allocations cannot be counted in this build");
  MONITOR(monitor);
  const size_t page = test::page_size();
  for (int round = 0; round < 3; ++round) {
    const test::Mapping mapping(8 * page);
    mapping.fill(1);
    errno = ENOTTY;
    static_cast<void>(allocations_of_thread());
    const int unmapped = munmap(mapping.at(page), 4 * page);
    const long allocated = allocations_of_thread();
    const int error = errno;
    KEEPS("E3", unmapped == 0, "with it, munmap fails");
    KEEPS("E3", allocated == 0, "its hook of munmap allocates or frees");
    KEEPS("E3", error == ENOTTY, "its hook of munmap changes errno");
  }
}

void four_threads_unmap_and_map_at_once(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  std::atomic<int> wrong{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      const test::Mapping mapping(4 * test::page_size());
      mapping.fill(2);
      void* const again = mmap(mapping.base(), mapping.length(), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      if (again != mapping.base() || *mapping.base() != 0) ++wrong;
    }
  };
  test::on_threads(4, work);
  KEEPS("E3", wrong.load() == 0, "with it, mmap over a mapping does not replace it");
}

void after_stop_its_events_go_nowhere(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  monitor.stop();
  for (int i = 0; i < 50; ++i) {
    const test::Mapping mapping(4 * test::page_size());
    mapping.fill(3);
  }
  KEEPS("E7", !monitor.heard().after_end.load(), "after stop() it reports through a host table that is gone");
  monitor.heard().ended.store(false);
  KEEPS("E7", monitor.ops().start(monitor.context()) == PINRAIL_SUCCESS, "after stop() it does not start again");
  Extent lost{};
  const MemoryEvent* munmap_event = tools::find_memory_event("munmap");
  KEEPS("E5", !fire(monitor, *munmap_event, &lost) || monitor.heard().count.load() != 0,
        "after a second start() it reports nothing");
}

void two_copies_hear_their_own(const File& file, Verdict* verdict) {
  Monitor first(file, 0, verdict), second(file, 1, verdict);
  if (!first.usable(verdict)) return;
  {
    const test::Mapping mapping(4 * test::page_size());
    mapping.fill(4);
  }
  KEEPS("C2", second.heard().count.load() == 0, "a copy of the library that did not start it gets its reports");
  const bool also = second.usable(verdict);
  KEEPS("C2", also, "while one copy of the library uses it, another cannot start it");
  Extent lost{};
  const MemoryEvent* munmap_event = tools::find_memory_event("munmap");
  if (fire(first, *munmap_event, &lost)) {
    KEEPS("C2", covers(first.heard(), lost, Which::any), "with two copies of the library, the first hears nothing");
  }
  second.heard().clear();
  first.stop();
  if (fire(second, *munmap_event, &lost)) {
    KEEPS("C2", covers(second.heard(), lost, Which::any),
          "when one copy of the library stops it, the other hears nothing");
  }
}

void its_check_finds_nothing_wrong(const File& file, Verdict* verdict) {
  MONITOR(monitor);
  APPLIES_IF(monitor.ops().check != nullptr, "it has no check()");
  KEEPS("E6", monitor.ops().check(monitor.context()) == PINRAIL_SUCCESS,
        "check() fails although nothing was disturbed");
}

}  // namespace

const std::vector<FileCheck>& monitor_checks() {
#define CHECK_OF(rule, function) \
  { rule, #function, function }
  static const auto* const checks =
      new std::vector<FileCheck>{CHECK_OF("C5", it_claims_only_events_that_exist),
                                 CHECK_OF("E5", what_it_claims_to_see_is_reported_whole),
                                 CHECK_OF("E1", reports_come_before_the_kernel_acts_or_are_held),
                                 CHECK_OF("E1", what_it_says_that_it_reports_afterwards_is),
                                 CHECK_OF("E3", its_hooks_allocate_nothing_and_keep_errno),
                                 CHECK_OF("E3", four_threads_unmap_and_map_at_once),
                                 CHECK_OF("E7", after_stop_its_events_go_nowhere),
                                 CHECK_OF("C2", two_copies_hear_their_own),
                                 CHECK_OF("E6", its_check_finds_nothing_wrong)};
#undef CHECK_OF
  return *checks;
}

}  // namespace pinrail::conform
