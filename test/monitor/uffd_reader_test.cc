// SPDX-License-Identifier: BSD-3-Clause
// monitor/uffd on its own, with a host table that shows what its reader's thread does while it waits for a lock.
#include <gtest/gtest.h>
#include <pinrail/component_mpool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "base/core/own_component.h"
#include "test/fake/fake_host.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kPage = 4096;

__thread pinrail_hook_depth_t depth_of_thread;
std::atomic<void (*)(void*, uintptr_t, size_t)> event_hook{nullptr};
std::atomic<void*> event_arg{nullptr};
std::atomic<uintptr_t> reported{0};  // the base of the last report
// What asks the monitor whether no event is under way.
std::atomic<int (*)(void*)> is_quiet{nullptr};
std::atomic<void*> quiet_arg{nullptr};
// What else a report and the end of a batch of events do.
std::atomic<void (*)(uintptr_t base, size_t length)> while_reported{nullptr};
std::atomic<void (*)()> before_release{nullptr};
// Reports that the monitor is blind, and how many of them came from a thread that would read events while it waits.
std::atomic<int> blind_count{0}, still_reading{0};

void keep_question(int (*ask)(void*), void* arg) {
  quiet_arg.store(arg);
  is_quiet.store(ask);
}

pinrail_host_t services() {
  pinrail_host_t host{};
  host.monitor_subscribe = [](const pinrail_host_t*, uint32_t, void (*hook)(void*, uintptr_t, size_t), void* arg,
                              void** subscription_out) {
    *subscription_out = arg;
    event_arg.store(arg);
    event_hook.store(hook);
    return PINRAIL_SUCCESS;
  };
  host.monitor_unsubscribe = [](const pinrail_host_t*, void*) { event_hook.store(nullptr); };
  host.monitor_report_hook = [](const pinrail_host_t*, uintptr_t base, size_t length) {
    reported.store(base);
    if (const auto act = while_reported.load()) act(base, length);
    if (const auto hook = event_hook.load()) hook(event_arg.load(), base, length);
  };
  host.monitor_hold_hook = [](const pinrail_host_t*) {};
  host.monitor_release_hook = [](const pinrail_host_t*) {
    if (const auto act = before_release.load()) act();
  };
  host.monitor_blind = [](const pinrail_host_t*, const char*) {
    if (depth_of_thread.while_waiting_hook != nullptr) still_reading.fetch_add(1);
    blind_count.fetch_add(1);
  };
  host.depth_hook = [] { return &depth_of_thread; };
  host.deliver_deferred_hook = [] {};
  host.extension = [](const pinrail_host_t*, const char* name, uint32_t) -> const void* {
    static constexpr pinrail_monitor_services_t kOurs = {sizeof(kOurs), nullptr, nullptr, keep_question, [] {}, [] {}};
    return std::strcmp(name, monitor_services::kName) == 0 ? &kOurs : nullptr;
  };
  return host;
}

int descriptor_of_monitor() { return descriptor_of("userfaultfd", 0); }

// An opened monitor. Several may be open at once, as in a process with several copies of the library.
class Monitor {
 public:
  explicit Monitor(const pinrail_component_t& component)
      : component_(component),
        ops_(*static_cast<const pinrail_monitor_ops_t*>(component.ops)),
        host_(component, services()) {
    opened_ = component.open(host_.table(), &context_) == PINRAIL_SUCCESS;
    started_ = opened_ && ops_.start(context_) == PINRAIL_SUCCESS;
  }
  ~Monitor() {
    if (started_) ops_.stop(context_);
    if (opened_) component_.close(context_);
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  bool is_started() const { return started_; }
  bool watches(void* at, size_t length = kPage) const {
    const auto base = reinterpret_cast<uintptr_t>(at);
    const pinrail_mapping_t mapping{sizeof(mapping), base, base + length, 0, 0, 0, PINRAIL_MAPPING_ANONYMOUS, 1};
    return ops_.cover(context_, &mapping) != 0;
  }

 private:
  const pinrail_component_t& component_;
  const pinrail_monitor_ops_t& ops_;
  const fake::FakeHost host_;
  void* context_ = nullptr;
  bool opened_ = false, started_ = false;
};

void* map_page() { return mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

// Pages that another thread unmaps one by one, while reports wait for a lock: one; more than the reader's queue holds
// while that is reported; and as many again while all memory is, because the queue was full.
constexpr size_t kEarly = 301, kPages = 2 * kEarly - 1;
uintptr_t first_page;
std::atomic<size_t> unmapped{0};    // the pages that are gone, and whose events were read
std::atomic<bool> is_told[kPages];  // of each page: it was reported when it was gone
std::atomic<size_t> untold{0};      // pages that were gone and not reported when the gate opened

// As a lock's holder makes the reader wait.
void wait_until_unmapped(size_t count) {
  while (unmapped.load() < count) depth_of_thread.while_waiting_hook(depth_of_thread.waiting_arg);
}

void note_report(uintptr_t base, size_t length) {
  const bool is_all = base == 0 && length == UINTPTR_MAX;
  const size_t gone = unmapped.load(), page = (base - first_page) / kPage;
  if (is_all || base == first_page) wait_until_unmapped(is_all ? kPages : kEarly);
  for (size_t i = is_all ? 0 : page; i < (is_all ? gone : std::min(page + 1, kPages)); ++i) is_told[i].store(true);
}

void count_untold() {
  for (size_t i = 0; i < unmapped.load(); ++i) untold += is_told[i].load() ? 0 : 1;
}

// A started monitor, where there is userfaultfd.
class UffdReader : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    component_ = component_under_test("monitor", "uffd", &why);
    ASSERT_NE(component_, nullptr) << why;
    monitor_ = std::make_unique<Monitor>(*component_);
    if (!monitor_->is_started()) GTEST_SKIP() << "no userfaultfd here";
  }

  const pinrail_component_t* component_ = nullptr;
  std::unique_ptr<Monitor> monitor_;
};

TEST_F(UffdReader, reads_no_more_events_while_it_waits_for_a_lock_once_it_has_given_up) {
  void* const page = map_page();
  EXPECT_TRUE(monitor_->watches(page));
  close(descriptor_of_monitor());
  munmap(page, kPage);  // so that the reader looks
  EXPECT_TRUE(comes_true([] { return blind_count.load() != 0; }));
  EXPECT_EQ(still_reading.load(), 0) << "the queue of events that it would use is gone";
}

// Kernels before 6.17 let a descriptor unregister what another one watches.
TEST_F(UffdReader, reports_what_it_watches_also_after_another_monitor_of_the_process_was_stopped) {
  void* const page = map_page();
  EXPECT_TRUE(monitor_->watches(page));
  { const Monitor other(*component_); }
  munmap(page, kPage);
  EXPECT_TRUE(comes_true([page] { return reported.load() == reinterpret_cast<uintptr_t>(page); }));
}

// The kernel reports the range of the call.
TEST_F(UffdReader, reads_on_after_an_unmapping_that_begins_at_address_0) {
  constexpr size_t kLowest = 0x10000, kEnd = 0x10000000;
  void* const lowest = reinterpret_cast<void*>(kLowest);  // NOLINT(performance-no-int-to-ptr): where nothing else is
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  if (mmap(lowest, kEnd - kLowest, PROT_NONE, kFlags, -1, 0) != lowest) GTEST_SKIP() << "something is mapped there";
  EXPECT_TRUE(monitor_->watches(lowest));
  syscall(SYS_munmap, 0, kEnd);
  void* const page = map_page();
  EXPECT_TRUE(monitor_->watches(page));
  std::thread other([page] { munmap(page, kPage); });
  const bool came = comes_true([page] { return reported.load() == reinterpret_cast<uintptr_t>(page); });
  EXPECT_TRUE(came);
  if (!came) close(descriptor_of_monitor());  // otherwise munmap() would not return
  other.join();
}

TEST_F(UffdReader, is_not_quiet_while_its_descriptor_is_closed_and_the_reader_does_not_know) {
  void* const page = map_page();
  EXPECT_TRUE(monitor_->watches(page));
  first_page = reinterpret_cast<uintptr_t>(page);
  static std::atomic<bool> is_known;
  while_reported.store([](uintptr_t base, size_t) {
    while (base == first_page && !is_known.load()) std::this_thread::yield();
  });
  munmap(page, kPage);
  const auto asks = [] { return is_quiet.load()(quiet_arg.load()); };
  EXPECT_EQ(asks(), 1) << "the event was read";
  close(descriptor_of_monitor());
  EXPECT_EQ(asks(), 0);
  is_known.store(true);
  EXPECT_TRUE(comes_true([&] { return asks() == 1; }));
  while_reported.store(nullptr);
}

TEST_F(UffdReader, has_reported_all_that_it_has_read_when_the_gate_opens) {
  void* const pages = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  first_page = reinterpret_cast<uintptr_t>(pages);
  EXPECT_TRUE(monitor_->watches(pages, kPages * kPage));
  while_reported.store(note_report);
  before_release.store(count_untold);
  std::thread other([pages] {
    for (size_t i = 0; i < kPages; ++i, unmapped.store(i)) munmap(static_cast<char*>(pages) + i * kPage, kPage);
  });
  other.join();
  void* const last = map_page();
  EXPECT_TRUE(monitor_->watches(last));
  munmap(last, kPage);
  EXPECT_TRUE(comes_true([last] { return reported.load() == reinterpret_cast<uintptr_t>(last); }));
  EXPECT_EQ(untold.load(), 0u);
  before_release.store(nullptr);
  while_reported.store(nullptr);
}

}  // namespace
}  // namespace pinrail::test
