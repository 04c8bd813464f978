// SPDX-License-Identifier: BSD-3-Clause
// monitor/uffd on its own, with a host table that shows what its reader's thread does while it waits for a lock.
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <pinrail/component_mpool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/patch/system_call.h"
#include "test/fake/fake_host.h"
#include "test/support/component_descriptor.h"
#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

__thread pinrail_hook_depth_t depth_of_thread;
std::atomic<void (*)(void*, uintptr_t, size_t)> event_hook{nullptr};
std::atomic<void*> event_arg{nullptr};
// Reports that the monitor is blind, and how many of them came from a thread that would read events while it waits.
std::atomic<int> blind_count{0}, still_reading{0};

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
    if (const auto hook = event_hook.load()) hook(event_arg.load(), base, length);
  };
  host.monitor_hold_hook = [](const pinrail_host_t*) {};
  host.monitor_release_hook = [](const pinrail_host_t*) {};
  host.monitor_blind = [](const pinrail_host_t*, const char*) {
    if (depth_of_thread.while_waiting_hook != nullptr) still_reading.fetch_add(1);
    blind_count.fetch_add(1);
  };
  host.depth_hook = [] { return &depth_of_thread; };
  host.deliver_deferred_hook = [] {};
  return host;
}

// The highest descriptor that is open: the monitor moves its own out of the way.
int highest_descriptor() {
  int file = 1023;
  while (file > 2 && fcntl(file, F_GETFD) < 0) --file;
  return file;
}

TEST(UffdReader, reads_no_more_events_while_it_waits_for_a_lock_once_it_has_given_up) {
  std::string why;
  const pinrail_component_t* const component = component_under_test("monitor", "uffd", &why);
  ASSERT_NE(component, nullptr) << why;
  const fake::FakeHost host(*component, services());
  const auto* const ops = static_cast<const pinrail_monitor_ops_t*>(component->ops);
  void* context = nullptr;
  ASSERT_EQ(component->open(host.table(), &context), PINRAIL_SUCCESS);
  if (ops->start(context) == PINRAIL_ERR_NOT_AVAILABLE) GTEST_SKIP() << "no userfaultfd here";
  const pinrail_mapping_kind_t kind = PINRAIL_MAPPING_ANONYMOUS;
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto base = reinterpret_cast<uintptr_t>(page);
  const pinrail_mapping_t mapping{sizeof(mapping), base, base + 4096, 0, 0, 0, kind};
  EXPECT_NE(ops->cover(context, &mapping), 0U);
  close(highest_descriptor());
  munmap(page, 4096);  // so that the reader looks
  EXPECT_TRUE(comes_true([] { return blind_count.load() != 0; }));
  EXPECT_EQ(still_reading.load(), 0) << "the queue of events that it would use is gone";
  ops->stop(context);
  component->close(context);
}

}  // namespace
}  // namespace pinrail::test
