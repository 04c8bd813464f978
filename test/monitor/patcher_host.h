// SPDX-License-Identifier: BSD-3-Clause
// patcher_host.h - monitor/patcher on its own, with the real list of subscribers behind its host table.
//
// Threads  A Patcher lives on one thread; what it reports comes from all.
#ifndef PINRAIL_TEST_MONITOR_PATCHER_HOST_H
#define PINRAIL_TEST_MONITOR_PATCHER_HOST_H

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pinrail/component_mpool.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "base/sync/gate.h"
#include "framework/monitor/known_mappings_hook.h"
#include "framework/monitor/monitor.h"
#include "test/fake/fake_host.h"
#include "test/monitor/foreign_patches.h"
#include "test/support/memory.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {

constexpr uint8_t kMark = 0x5a;

// What came, in order, and whether the first byte of the range was the mark when it came: then the kernel had not
// acted. Hook context: no memory, no lock.
struct Report {
  uintptr_t base;
  size_t length;
  bool marked;
};

class Recorder {
 public:
  static constexpr size_t kRoom = 4096;

  static void note_hook(void* recorder, uintptr_t base, size_t length) {
    static_cast<Recorder*>(recorder)->add_hook(base, length);
  }
  // Since the last clear(); the last kRoom of them.
  std::vector<Report> reports() const {
    const size_t end = count_.load();
    std::vector<Report> since;
    for (size_t at = std::max(begin_, end < kRoom ? 0 : end - kRoom); at < end; ++at) {
      since.push_back(reports_[at % kRoom]);
    }
    return since;
  }
  // Places are not used again at once: an event that is under way writes into its own.
  void clear() { begin_ = count_.load(); }
  // From here on only what touches this range: other threads' events would use up the room.
  void watch(uintptr_t base, size_t length) {
    base_.store(base);
    end_.store(base + length);
    clear();
  }

  // Those that touch the range, as half-open offsets from its base.
  std::vector<Report> touching(uintptr_t base, size_t length) const {
    std::vector<Report> found;
    for (const Report& report : reports()) {
      if (report.base < base + length && base < report.base + report.length) found.push_back(report);
    }
    return found;
  }

 private:
  void add_hook(uintptr_t base, size_t length) {
    if (base >= end_.load() || base + length <= base_.load()) return;
    const size_t at = count_.fetch_add(1);
    reports_[at % kRoom] = {base, length, is_marked_hook(base)};
  }
  // The kernel looks, for there may be nothing there.
  static bool is_marked_hook(uintptr_t at) {
    const int kept = errno;
    uint8_t byte = 0;
    iovec local{&byte, 1};
    iovec remote{reinterpret_cast<void*>(at), 1};
    const bool read = syscall(SYS_process_vm_readv, getpid(), &local, 1L, &remote, 1L, 0L) == 1;
    errno = kept;
    return read && byte == kMark;
  }

  std::array<Report, kRoom> reports_{};
  std::atomic<size_t> count_{0};  // ever
  size_t begin_ = 0;              // the test's own
  std::atomic<uintptr_t> base_{0}, end_{UINTPTR_MAX};
};

// What the component said of itself; the host table has no room for a context there.
inline std::atomic<int> blind_count{0};

// The mappings of files that are kept; a pool would have noted them (Patcher::keep).
inline monitor::KeptFiles kept_files;
inline std::atomic<int> reported_files{0};  // of which the component has reported a part
inline constexpr pinrail_monitor_services_t kMonitors = {
    sizeof(pinrail_monitor_services_t),
    []() -> int { return kept_files.is_empty_hook() ? 0 : 1; },
    [](const pinrail_file_part_t* part) {
      ++reported_files;
      Span span;
      for (uintptr_t from = 0; kept_files.find_hook(*part, from, &span); from = span.end)
        monitor::report_hook(0, span.base, span.length());
    },
    nullptr,
    [] {},
    [] {}};

inline std::atomic<int> subscriptions_of_monitors{0};  // that they have not ended
inline std::atomic<int> holds_of_gate{0};              // that they have not released

// Messages that came while it held the gate, and what the message function does then.
inline std::atomic<int> said_behind_gate{0};
inline void (*when_said)() = nullptr;

// Whether each event stays a while inside the library, so that it is there when the monitor is stopped.
inline std::atomic<bool> slow_reports{false};

class Patcher {
 public:
  explicit Patcher(const char* check_interval = "0", const char* leave_out = "") : descriptor_(find(&why_)) {
    if (descriptor_ == nullptr) return;
    fake_ = new fake::FakeHost(*descriptor_);
    fake_->set("check_interval", check_interval);
    fake_->set("leave_out", leave_out);
    // On a page of its own, which is unmapped after close(): a later access crashes.
    host_page_ = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pinrail_host_t& table = *new (host_page_) pinrail_host_t(*fake_->table());
    table.monitor_subscribe = [](const pinrail_host_t*, uint32_t kinds, void (*hook)(void*, uintptr_t, size_t),
                                 void* arg, void** out) {
      subscriptions_of_monitors.fetch_add(1);
      return monitor::subscribe(kinds, hook, arg, out).code();
    };
    table.monitor_unsubscribe = [](const pinrail_host_t*, void* subscription) {
      monitor::unsubscribe(subscription);
      subscriptions_of_monitors.fetch_sub(1);
    };
    table.monitor_report_hook = [](const pinrail_host_t* host, uintptr_t base, size_t length) {
      if (slow_reports.load()) sched_yield();
      if (static_cast<const volatile pinrail_host_t*>(host)->size != 0) monitor::report_hook(0, base, length);
    };
    table.monitor_hold_hook = [](const pinrail_host_t*) {
      holds_of_gate.fetch_add(1);
      gate::hold_hook();
    };
    table.monitor_release_hook = [](const pinrail_host_t*) {
      gate::release_hook();
      holds_of_gate.fetch_sub(1);
    };
    static const auto note_help = table.help;
    table.help = [](const pinrail_host_t* host, const char* topic, const pinrail_help_arg_t* args, size_t count) {
      if (holds_of_gate.load() != 0) said_behind_gate.fetch_add(1);
      if (when_said != nullptr) when_said();
      note_help(host, topic, args, count);
    };
    table.extension = [](const pinrail_host_t*, const char* name, uint32_t) -> const void* {
      return std::strcmp(name, monitor_services::kName) == 0 ? &kMonitors : nullptr;
    };
    table.monitor_blind = [](const pinrail_host_t*, const char*) { blind_count.fetch_add(1); };
    monitor::subscribe(0, Recorder::note_hook, &recorder, &subscription_).ignore();
    if (descriptor_->open(&table, &context_) == PINRAIL_SUCCESS) status = ops()->start(context_);
    recorder.clear();
  }
  ~Patcher() {
    if (descriptor_ == nullptr) return;
    stop();
    descriptor_->close(context_);
    munmap(host_page_, kPageBytes);
    monitor::unsubscribe(subscription_);
    delete fake_;
  }
  Patcher(const Patcher&) = delete;
  Patcher& operator=(const Patcher&) = delete;

  void stop() {
    const int subscribed = subscriptions_of_monitors.load();
    if (status == PINRAIL_SUCCESS) {
      ops()->stop(context_);
      EXPECT_EQ(subscriptions_of_monitors.load(), subscribed - 1) << "it is still subscribed";
    }
    status = PINRAIL_ERR_NOT_AVAILABLE;
  }
  pinrail_status_t check() { return ops()->check(context_); }
  uint32_t sees() const { return ops()->sees(context_); }
  // Topics of help that were asked for, in order, with the function that they name.
  std::vector<std::string> said() const {
    std::vector<std::string> topics;
    for (const fake::FakeHelp& help : fake_->helps()) {
      const auto function = help.args.find("function");
      topics.push_back(help.topic + (function == help.args.end() ? "" : ": " + function->second));
    }
    return topics;
  }
  std::vector<std::string> missing_topics() const { return fake_->missing_topics(); }
  std::vector<std::string> lines() const { return fake_->lines(); }

  pinrail_status_t status = PINRAIL_ERR_NOT_AVAILABLE;
  Recorder recorder;

 private:
  static const pinrail_component_t* find(std::string* why) { return component_under_test("monitor", "patcher", why); }
  const pinrail_monitor_ops_t* ops() const { return static_cast<const pinrail_monitor_ops_t*>(descriptor_->ops); }

  std::string why_;
  const pinrail_component_t* descriptor_;
  fake::FakeHost* fake_ = nullptr;
  void* host_page_ = nullptr;
  void* context_ = nullptr;
  void* subscription_ = nullptr;
};

// Memory full of marks.
inline uintptr_t marked_pages(size_t pages, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1) {
  void* at = mmap(nullptr, pages * kPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) std::abort();
  std::memset(at, kMark, pages * kPageBytes);
  return reinterpret_cast<uintptr_t>(at);
}

// What a test of monitor/patcher asks of its reports, and calls of the C library that it may lack.

constexpr size_t kPage = kPageBytes;

// The functions of libc as a program calls them, looked up so that no compiler knows better.
inline int pidfd_of_self() { return static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)); }

// The C library's process_madvise(); before glibc 2.36 it has none.
inline ssize_t advise_process(int process, const iovec* list, size_t count, int advice, unsigned flags) {
  using Function = ssize_t(int, const iovec*, size_t, int, unsigned);
  static auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "process_madvise"));
  if (function != nullptr) return function(process, list, count, advice, flags);
  return syscall(SYS_process_madvise, process, list, count, advice, flags);
}

#define NEED_PATCHER(patcher) ASSERT_EQ((patcher).status, PINRAIL_SUCCESS) << testing::PrintToString((patcher).said())

// The range came, whole and exact, first of all that touch it, and while the memory still held its marks.
inline testing::AssertionResult came_first(const Patcher& patcher, uintptr_t base, size_t length) {
  const std::vector<Report> found = patcher.recorder.touching(base, length);
  if (found.empty()) return testing::AssertionFailure() << "no report";
  const Report& first = found.front();
  if (first.base != base || first.length != length) {
    return testing::AssertionFailure() << "[" << std::hex << first.base << ", +" << first.length << ") instead of ["
                                       << base << ", +" << length << ")";
  }
  if (!first.marked) return testing::AssertionFailure() << "the kernel had acted already";
  return testing::AssertionSuccess();
}

// It came after the kernel had acted: what stands there now is new.
inline bool came_after(const Patcher& patcher, uintptr_t base, size_t length) {
  for (const Report& report : patcher.recorder.touching(base, length)) {
    if (report.base == base && report.length == length && !report.marked) return true;
  }
  return false;
}

// A patcher that works.
class PatcherEvents : public testing::Test {
 protected:
  void SetUp() override { NEED_PATCHER(patcher_); }
  testing::AssertionResult came_first(uintptr_t base, size_t length) const {
    return test::came_first(patcher_, base, length);
  }
  bool came_after(uintptr_t base, size_t length) const { return test::came_after(patcher_, base, length); }
  std::vector<Report> touching(uintptr_t base, size_t length) const { return patcher_.recorder.touching(base, length); }
  std::vector<Report> reports() const { return patcher_.recorder.reports(); }
  void clear() { patcher_.recorder.clear(); }
  // Marked pages; reports are those since then.
  uintptr_t marked(size_t pages, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
    const uintptr_t base = marked_pages(pages, flags);
    clear();
    return base;
  }
  Patcher patcher_;
};

inline std::string first_bytes(const char* name) { return {static_cast<const char*>(at(libc_function(name))), 16}; }

}  // namespace pinrail::test

#endif
