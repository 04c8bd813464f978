// SPDX-License-Identifier: BSD-3-Clause
// What is seen and kept, and that in words. API context or start-up; the caller holds no lock, unless the name ends in
// _locked. The caller may hold references.
#include "framework/monitor/findings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include <algorithm>
#include <memory>
#include <new>

#include "base/core/compiler.h"
#include "base/core/files.h"
#include "base/report/report.h"
#include "base/sync/fork_reinit.h"
#include "framework/monitor/mapping.h"
#include "framework/monitor/monitor.h"
#include "framework/monitor/own_calls.h"

namespace pinrail::monitor {

Mutex findings_mutex{LockRank::monitors};

namespace {

// What is kept, in words.
struct Findings {
  std::string why;       // why not everything is kept; empty: everything is
  std::string monitors;  // the names of those that work, separated by commas
  std::array<std::string, kUsualKinds.size()> why_not;
  Idle idle;  // of the last start()
  Findings* before = nullptr;
};

std::atomic<Findings*> findings{nullptr};
std::atomic<bool> keeps_something{false};
std::atomic<bool> raw_callers{false};
Policy policy;                                        // written at start-up
const std::atomic<int64_t>* verbosity_now = nullptr;  // the same

// The events that monitors see: all, and those that they see even if the caller bypasses the C library.
struct Seen {
  uint32_t events = 0, by_any_caller = 0;

  void add(const StartedMonitor& monitor, uint32_t more) {
    events |= more;
    if (sees_any_caller(*monitor.ops)) by_any_caller |= more;
  }
  // If an allocator makes raw system calls, its events count only if a monitor sees any caller's (E1).
  uint32_t result() const { return has_raw_callers() ? events & (~kAllocatorEvents | by_any_caller) : events; }
};

// Events that the monitors see in the mapping, without the given one (NULL: all monitors).
uint32_t events_seen_without(const pinrail_mapping_t& mapping, const StartedMonitor* without) {
  Seen seen;
  for_each_seeing([&](const StartedMonitor& monitor) {
    if (&monitor == without) return;
    seen.add(monitor, monitor.events.load());
    if (monitor.ops->cover != nullptr) seen.add(monitor, monitor.ops->cover(monitor.context, &mapping));
  });
  return seen.result();
}

uint32_t events_seen_in(const pinrail_mapping_t& mapping) { return events_seen_without(mapping, nullptr); }

bool watches_when_asked() {
  return any_seeing([](const StartedMonitor& monitor) { return monitor.ops->cover != nullptr; });
}

// Builds the findings. troubles: why monitors fail or are incomplete; the only reason if none sees events.
std::unique_ptr<Findings> describe_all(const Kept& kept, bool any_sees, const std::string& troubles, Idle idle) {
  auto found = std::make_unique<Findings>();
  found->idle = std::move(idle);
  for_each_seeing([&](const StartedMonitor& monitor) {
    found->monitors += (found->monitors.empty() ? "" : ", ") + std::string(monitor.name);
  });
  found->why = any_sees ? describe(kept) : troubles;
  if (any_sees && !found->why.empty() && !troubles.empty()) found->why += " (" + troubles + ")";
  for (size_t i = 0; i < kUsualKinds.size(); ++i) found->why_not[i] = any_sees ? why_not(kept.kinds[i]) : troubles;
  return found;
}

constexpr const char* kNotStarted = "no monitor is started";

// Why something is not kept, as it was found. If it was to be kept and nothing is: refresh_findings_locked() failed.
const char* reason_of(const std::string& text) {
  return text.empty() && !keeps_something.load() ? "there was no memory to find out what monitors see" : text.c_str();
}

constexpr size_t kPage = 4096;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

void* attach_segment() {
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  if (id < 0) return MAP_FAILED;
  void* const base = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  return base;
}

// Of the program, which can be read.
void* map_file() {
  const Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  return file.is_open() ? mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file.get(), 0) : MAP_FAILED;
}

// Maps one page of the kind; MAP_FAILED if that is not possible here.
void* map_sample(pinrail_mapping_kind_t kind) {
  switch (kind) {
    case PINRAIL_MAPPING_SYSV: return attach_segment();
    case PINRAIL_MAPPING_PRIVATE_FILE: return map_file();
    case PINRAIL_MAPPING_DISK_FILE: return MAP_FAILED;  // none is written for this
    case PINRAIL_MAPPING_SHARED_FILE:                   // of a memfd or tmpfs: to the kernel the same as the next one
    case PINRAIL_MAPPING_SHARED_ANONYMOUS: return mmap(nullptr, kPage, kReadWrite, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    default: return mmap(nullptr, kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
}

enum class Samples : uint8_t { none, real };

// One mapped page of the kind, unmapped on destruction. If the kind cannot be mapped here, the mapping is empty, and
// no monitor can watch it.
class Sample : NonCopyable {
 public:
  Sample(pinrail_mapping_kind_t kind, Samples samples) {
    mapping_.size = sizeof(mapping_);
    mapping_.kind = kind;
    if (samples == Samples::none) return;
    void* const base = map_sample(kind);
    if (base == MAP_FAILED) return;
    mapping_.base = reinterpret_cast<uintptr_t>(base);
    mapping_.end = mapping_.base + kPage;
  }
  ~Sample() {
    if (mapping_.end == 0) return;
    void* const base = reinterpret_cast<void*>(mapping_.base);  // NOLINT(performance-no-int-to-ptr): from a pointer
    if (mapping_.kind == PINRAIL_MAPPING_SYSV) {
      shmdt(base);
    } else {
      munmap(base, kPage);
    }
  }

  const pinrail_mapping_t& mapping() const { return mapping_; }

 private:
  pinrail_mapping_t mapping_{};
};

}  // namespace

Coverage coverage(find_mapping, events_seen_in, say);

void set_policy(const Policy& chosen, const std::atomic<int64_t>* verbosity) {
  policy = chosen;
  verbosity_now = verbosity;
}

// relaxed: the level guards no other data.
void say(const std::string& line) {
  const int most = verbosity_now == nullptr ? 0 : static_cast<int>(verbosity_now->load(std::memory_order_relaxed));
  report::log("monitor", most, PINRAIL_LOG_INFO, line);
}

bool any_sees() {
  return any_seeing([](const StartedMonitor&) { return true; });
}

bool has_raw_callers() { return raw_callers.load(); }
bool note_raw_callers() { return !raw_callers.exchange(true); }

// What a monitor of any caller's events sees everywhere it reports by address, as "external" does.
void start_coverage() {
  Seen seen;
  for_each_seeing([&seen](const StartedMonitor& monitor) { seen.add(monitor, monitor.events.load()); });
  coverage.start(policy, seen.by_any_caller, watches_when_asked());
  open_proc_files();
}

void publish_findings_locked(const Kept& kept, bool any_sees, const std::string& troubles, Idle idle) {
  Findings* const found = describe_all(kept, any_sees, troubles, std::move(idle)).release();
  found->before = findings.load();
  findings.store(found);
  keeps_something.store(any_sees && kept.keeps_something());
}

void refresh_findings_locked(const char* troubles) {
  const Status refreshed = guarded([troubles]() NO_THREAD_SAFETY_ANALYSIS {  // runs inside the call, under the mutex
    start_coverage();
    const Findings* const last = findings.load();
    publish_findings_locked(kept_without(nullptr), any_sees(), troubles, last != nullptr ? last->idle : Idle());
  });
  if (!refreshed.ok()) keeps_something.store(false);  // what was found before may not hold any more
}

void keep_nothing() {
  keeps_something.store(false);
  verbosity_now = nullptr;
}

void forget_findings() {
  keeps_something.store(false);
  raw_callers.store(false);
  for (Findings* at = findings.exchange(nullptr); at != nullptr;) delete std::exchange(at, at->before);
  close_proc_files();
}

void fork_reinit_findings() NO_THREAD_SAFETY_ANALYSIS {
  new (&findings_mutex) Mutex(LockRank::monitors);
  replace_in_child(&findings, nullptr);
  raw_callers.store(false);
  keep_nothing();
  new (&coverage) Coverage(find_mapping, events_seen_in, say);
}

const char* why_idle(std::string_view name) {
  const Findings* const found = findings.load();
  if (found == nullptr) return "";
  for (const auto& [idle, why] : found->idle) {
    if (idle == name) return why.c_str();
  }
  return "";
}

bool works(const char** why_out) {
  const Findings* const found = findings.load();
  if (why_out != nullptr) *why_out = found != nullptr ? reason_of(found->why) : kNotStarted;
  return keeps_something.load();
}

const char* names_of_started() {
  const Findings* const found = findings.load();
  return found != nullptr ? found->monitors.c_str() : "";
}

bool kept_at(size_t index, const char** kind_out, const char** why_not_out) {
  const Findings* const found = findings.load();
  if (index >= kUsualKinds.size()) return false;
  *kind_out = kind_name(kUsualKinds[index]);
  *why_not_out = found != nullptr ? reason_of(found->why_not[index]) : kNotStarted;
  return true;
}

bool is_told_afterwards() {
  if (has_raw_callers()) return false;  // what they drop uffd alone sees
  uint32_t before = 0, afterwards = 0;
  for_each_seeing(
      [&](const StartedMonitor& monitor) { (monitor.tells_again() ? afterwards : before) |= monitor.events.load(); });
  return (afterwards & PINRAIL_EVENT_DONTNEED) != 0 && (before & ~afterwards) == 0;
}

bool sees_all_memory() { return keeps_something.load() && !watches_when_asked(); }

bool covers(uintptr_t base, size_t length) {
  return keeps_something.load() && fits(base, length) && coverage.covers(Span::of(base, length));
}

Span private_around(const Span& span, const Span& most) {
  return keeps_something.load() ? coverage.private_around(span, most) : span;
}

bool Kept::keeps_something() const {
  return std::any_of(kinds.begin(), kinds.end(), [](const Judgement& each) { return each.is_kept(); });
}

bool Kept::keeps_everything() const {
  return std::all_of(kinds.begin(), kinds.end(),
                     [](const Judgement& each) { return !each.is_refused && (each.unseen & ~kSeenByNone) == 0; });
}

bool Kept::keeps_the_same(const Kept& other) const {
  return std::equal(kinds.begin(), kinds.end(), other.kinds.begin(),
                    [](const Judgement& a, const Judgement& b) { return a.is_kept() == b.is_kept(); });
}

// Judges each kind on a sample, which is unmapped before the next one is mapped. Where no monitor looks at the mapping
// itself, its kind is enough.
Kept kept_without(const StartedMonitor* without) {
  Kept kept;
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    const Sample sample(kUsualKinds[i], watches_when_asked() ? Samples::real : Samples::none);
    kept.kinds[i] = judge(policy, kUsualKinds[i], events_seen_without(sample.mapping(), without));
  }
  return kept;
}

std::string describe(const Kept& kept) {
  std::string text;
  std::array<bool, kUsualKinds.size()> is_said{};
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    const std::string why = why_not(kept.kinds[i]);
    const bool is_asked_for = (kept.kinds[i].unseen & ~kSeenByNone) == 0 && kept.keeps_something();
    if (why.empty() || is_said[i] || is_asked_for) continue;
    std::string kinds;
    for (size_t same = i; same < kUsualKinds.size(); ++same) {
      if (why_not(kept.kinds[same]) != why) continue;
      is_said[same] = true;
      kinds += (kinds.empty() ? "" : ", ") + std::string(kind_name(kUsualKinds[same]));
    }
    text += (text.empty() ? "" : "; ") + kinds + ": " + why;
  }
  return text;
}

}  // namespace pinrail::monitor
