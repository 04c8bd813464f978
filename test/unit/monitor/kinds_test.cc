// SPDX-License-Identifier: BSD-3-Clause
// Events of one kind of memory end registrations of that kind alone: above all "everything", by a blind monitor.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "framework/monitor/monitor.h"
#include "framework/monitor/started_hook.h"

namespace pinrail::monitor {
namespace {

pinrail_monitor_ops_t ops_for(uint32_t kinds) {
  pinrail_monitor_ops_t ops{};
  ops.kinds = kinds;
  return ops;
}
pinrail_component_t component(const char* name, const pinrail_monitor_ops_t* ops) {
  pinrail_component_t descriptor{};
  std::strcpy(descriptor.name, name);
  descriptor.ops = ops;
  return descriptor;
}
const pinrail_monitor_ops_t for_host = ops_for(0), for_gpu = ops_for(PINRAIL_KIND_GPU);
const pinrail_component_t host_monitor = component("host", &for_host), gpu_monitor = component("gpu", &for_gpu);

struct Heard {
  std::atomic<int> events{0};
  std::atomic<bool> everything{false};
  static void hook(void* arg, uintptr_t base, size_t length) {
    auto* heard = static_cast<Heard*>(arg);
    heard->events.fetch_add(1);
    if (base == 0 && length == UINTPTR_MAX) heard->everything.store(true);
  }
};

class MonitorKinds : public testing::Test {
 protected:
  MonitorKinds() {
    started.add(host_monitor, nullptr, &host_table_);
    started.add(gpu_monitor, nullptr, &gpu_table_);
    subscribe(PINRAIL_KIND_HOST, Heard::hook, &of_host_, &subscriptions_[0]).ignore();
    subscribe(PINRAIL_KIND_GPU, Heard::hook, &of_gpu_, &subscriptions_[1]).ignore();
    subscribe(0, Heard::hook, &of_all_, &subscriptions_[2]).ignore();
  }
  ~MonitorKinds() override {
    for (void* subscription : subscriptions_) unsubscribe(subscription);
    started.clear();
  }
  // By subscriber: of host memory, of GPU memory, of all.
  std::vector<int> heard() const { return {of_host_.events.load(), of_gpu_.events.load(), of_all_.events.load()}; }

  pinrail_host_t host_table_{}, gpu_table_{}, unknown_table_{};
  Heard of_host_, of_gpu_, of_all_;
  void* subscriptions_[3] = {};
};

TEST_F(MonitorKinds, what_a_monitor_reports_is_of_the_memory_that_it_watches) {
  report_of_hook(&host_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{1, 0, 1}));
  report_of_hook(&gpu_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{1, 1, 2}));
}

TEST_F(MonitorKinds, what_the_program_reports_is_of_any_kind) {
  report_hook(0, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{1, 1, 1}));
  report_of_hook(&unknown_table_, 4096, 4096);
  EXPECT_EQ(heard(), (std::vector<int>{2, 2, 2})) << "of a monitor that is still being started";
}

TEST_F(MonitorKinds, a_blind_monitor_of_host_memory_ends_no_memory_of_a_gpu) {
  blind(&host_table_, "it was closed");
  EXPECT_TRUE(of_host_.everything.load() && of_all_.everything.load());
  EXPECT_EQ(of_gpu_.events.load(), 0);
  EXPECT_FALSE(works(nullptr));
}

TEST_F(MonitorKinds, a_blind_monitor_of_a_gpu_ends_no_host_memory) {
  blind(&gpu_table_, "the driver was unloaded");
  EXPECT_TRUE(of_gpu_.everything.load() && of_all_.everything.load());
  EXPECT_EQ(of_host_.events.load(), 0);
}

TEST_F(MonitorKinds, a_monitor_is_blind_once) {
  blind(&host_table_, "it was closed");
  blind(&host_table_, "it was closed");
  EXPECT_EQ(heard(), (std::vector<int>{1, 0, 1}));
}

}  // namespace
}  // namespace pinrail::monitor
