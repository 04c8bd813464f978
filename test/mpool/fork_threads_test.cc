// SPDX-License-Identifier: BSD-3-Clause
// Forks while threads of Pinrail's own are about to call a registrar (own_threads/S1), and forks that they could
// deadlock with.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "framework/registrar/registrar.h"
#include "test/support/cases.h"
#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kPages = 16;

// Counts the calls under way on threads other than the one that made it.
class CountingRegistrar {
 public:
  CountingRegistrar() {
    table_ = host_table("counting", this);
    table_.register_mem = [](void* self, const pinrail_register_request_t*, pinrail_registration_t*) {
      return of(self)->call();
    };
    table_.deregister_mem = [](void* self, pinrail_registration_t*, pinrail_reason_t) { return of(self)->call(); };
  }
  const pinrail_registrar_t& table() const { return table_; }
  int inside() const { return inside_.load(); }
  int calls() const { return calls_.load(); }
  // What happens in each such call.
  std::function<void()> in_call = [] { usleep(100); };

 private:
  static CountingRegistrar* of(void* self) { return static_cast<CountingRegistrar*>(self); }
  pinrail_status_t call() {
    if (std::this_thread::get_id() == owner_) return PINRAIL_SUCCESS;
    ++inside_;
    ++calls_;
    in_call();
    --inside_;
    return PINRAIL_SUCCESS;
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<int> inside_{0}, calls_{0};
  pinrail_registrar_t table_{};
};

class ForkThreads : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pool_.status, PINRAIL_SUCCESS); }
  void TearDown() override { EXPECT_EQ(pool_.close(), PINRAIL_SUCCESS); }

  // Registers pages, whose registrations an event ends; the gc thread deregisters them.
  void feed_gc_thread() const { feed_gc_thread(pool_); }
  static void feed_gc_thread(const Pool& pool) {
    for (size_t i = 0; i < kPages; ++i) pool.use(kBase + i * kPage, kPage);
    report(kBase, kPages * kPage);
  }
  // What a test has put into in_call refers to its variables, so it waits for the last call.
  bool all_are_deregistered() const {
    return comes_true([&] { return pool_.stats().registered_count == 0; });
  }
  // Returns the exit status of the child, which is how many calls it finds under way; -1: it did not end so.
  int calls_in_child() const {
    return exit_status_of([this] { return device_.inside(); });
  }
  // Whether a child finds none, or the fork waited as long as it may: a thread may be kept from running inside a call.
  bool is_waited_for() const {
    const auto began = Clock::now();
    const int found = calls_in_child();
    return found == 0 || (found > 0 && Clock::now() - began >= milliseconds(900));
  }

  static Settings settings() { return {{"mpool_grdma_gc_thread", "always"}, {"mpool_grdma_gc_limit", "1"}}; }

  Library library_{settings()};
  CountingRegistrar device_;
  Pool pool_{device_.table(), {-1}};
};

TEST_F(ForkThreads, no_child_finds_the_gc_thread_inside_a_registrar) {
  for (int round = 0; round < 200; ++round) {
    feed_gc_thread();
    usleep(round % 10 * 100);
    ASSERT_TRUE(is_waited_for()) << "round " << round;
  }
  EXPECT_TRUE(comes_true([&] { return device_.calls() > 0; }));
}

TEST_F(ForkThreads, no_child_finds_helper_threads_inside_a_registrar) {
  constexpr size_t kBytes = 256 * kPage;
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.threads = 3;
  options.chunk_size = kPage;
  const pinrail_range_t range = {reinterpret_cast<void*>(kBase), kBytes};
  for (int round = 0; round < 10; ++round) {
    pinrail_prepin_t* prepin = nullptr;
    ASSERT_EQ(pinrail_mpool_prepin_start(pool_.get(), &range, 1, 1, &options, &prepin), PINRAIL_SUCCESS);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(is_waited_for()) << "round " << round;
    EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), &range, 1, 1), PINRAIL_SUCCESS);
    report(kBase, kBytes);
  }
  EXPECT_TRUE(comes_true([&] { return device_.calls() > 0; }));
}

// A registrar that waits for a lock of the forking thread would wait for ever otherwise.
TEST_F(ForkThreads, a_fork_waits_at_most_a_second_for_a_registrar) {
  std::atomic<bool> may_return{false};
  device_.in_call = [&] {
    while (!may_return.load()) usleep(1000);
  };
  feed_gc_thread();
  EXPECT_TRUE(comes_true([&] { return device_.inside() == 1; }));
  const auto began = Clock::now();
  EXPECT_EQ(calls_in_child(), 1);
  const auto took = Clock::now() - began;
  may_return = true;
  EXPECT_TRUE(all_are_deregistered());
  EXPECT_GE(took, milliseconds(900));
  EXPECT_LT(took, std::chrono::seconds(60)) << "on a machine that is busy with other things";
}

// Of the program, registered before Pinrail's: it runs when threads of Pinrail's own wait for the end of the fork.
std::function<void()> before_the_fork;
const int early_handler = pthread_atfork(
    [] {
      if (before_the_fork) before_the_fork();
    },
    nullptr, nullptr);

TEST_F(ForkThreads, a_handler_that_registers_does_not_wait_for_what_the_gc_thread_gives_back_after_the_fork) {
  ASSERT_EQ(early_handler, 0);
  PoolOptions options = at_most(kPages);
  options.cache_name = "full";
  const Pool full(device_.table(), options);
  ASSERT_EQ(full.status, PINRAIL_SUCCESS);
  device_.in_call = [] { usleep(20000); };
  feed_gc_thread(full);
  EXPECT_TRUE(comes_true([&] { return device_.calls() > 0; }));
  pinrail_status_t status = PINRAIL_ERR_ERROR;
  pinrail_handle_t handle{};
  Clock::duration took{};
  before_the_fork = [&] {
    const auto began = Clock::now();
    status = full.reg(kBase + 2 * kPages * kPage, kPage, &handle);
    took = Clock::now() - began;
  };
  EXPECT_GE(calls_in_child(), 0);
  before_the_fork = nullptr;
  EXPECT_LT(took, std::chrono::seconds(4)) << "it waited for the gc thread, which goes on after five";
  if (status == PINRAIL_SUCCESS) return drop(handle);
  EXPECT_EQ(status, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

TEST_F(ForkThreads, a_registrar_may_fork_on_the_gc_thread_while_the_program_forks) {
  std::atomic<int> ended{0};
  device_.in_call = [&] {
    if (exit_status_of([] { return 0; }) == 0) ++ended;
  };
  constexpr int kRounds = 50;
  int slow = 0;
  for (int round = 0; round < kRounds; ++round) {
    feed_gc_thread();
    const auto began = Clock::now();
    ASSERT_GE(calls_in_child(), 0);
    if (Clock::now() - began >= milliseconds(900)) ++slow;
  }
  EXPECT_TRUE(comes_true([&] {  // calls of this thread may have given back most of them
    feed_gc_thread();
    return all_are_deregistered() && ended.load() > kRounds;
  }));
  EXPECT_LT(slow, kRounds / 2) << "forks waited for each other";
  EXPECT_TRUE(all_are_deregistered());
  EXPECT_EQ(ended.load(), device_.calls());
}

std::atomic<int> forks_of_handler{0};

void fork_in_handler(int) {
  const int kept = errno;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int how = -1;
  if (waitpid(child, &how, 0) == child && how == 0) ++forks_of_handler;
  errno = kept;
}

// At any time but within fork() and malloc(): glibc's fork() waits for their locks, which the interrupted call holds.
// So what is allocated once is allocated before.
TEST_F(ForkThreads, a_signal_handler_may_fork_at_any_time) {
  feed_gc_thread();
  ASSERT_TRUE(all_are_deregistered());
  struct sigaction act {};
  act.sa_handler = fork_in_handler;
  act.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &act, nullptr);
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  const itimerval never{};
  for (int round = 0; round < 300; ++round) {
    // One signal in each round, at another time: with more, a handler that takes long leaves the round no time.
    const itimerval once = {{0, 0}, {0, 50 + round % 30 * 50}};
    setitimer(ITIMER_REAL, &once, nullptr);
    feed_gc_thread();
    pthread_sigmask(SIG_BLOCK, &alarms, nullptr);
    ASSERT_GE(calls_in_child(), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  std::signal(SIGALRM, SIG_DFL);
  EXPECT_GT(forks_of_handler.load(), 0);
}

// What a program does whose memory becomes accessible when it is touched.
char* lazy_page = nullptr;
void make_accessible(int) { mprotect(lazy_page, kPage, PROT_READ | PROT_WRITE); }

TEST_F(ForkThreads, a_handler_of_the_program_serves_accesses_of_threads_of_ours) {
  lazy_page = static_cast<char*>(mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(lazy_page, MAP_FAILED);
  struct sigaction act {
  }, before{};
  act.sa_handler = make_accessible;
  sigaction(SIGSEGV, &act, &before);
  std::atomic<bool> open{true};
  device_.in_call = [&] {
    ++*const_cast<volatile char*>(lazy_page);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      if (sigismember(&mask, number) != 0) open = false;
    }
    if (sigismember(&mask, SIGTERM) != 1) open = false;
  };
  feed_gc_thread();
  EXPECT_TRUE(all_are_deregistered());
  EXPECT_EQ(*lazy_page, static_cast<char>(kPages));
  EXPECT_TRUE(open.load());
  sigaction(SIGSEGV, &before, nullptr);
  munmap(lazy_page, kPage);
}

// F1 on kernels that share pinned pages with forked children: what a device has pinned is missing there.

constexpr unsigned kMarked = 8;

// Which pages of the range a forked child has: bit i for page i.
unsigned seen_by_child(uintptr_t base, unsigned pages = kMarked, size_t page = kPage) {
  return static_cast<unsigned>(exit_status_of([=] {
    unsigned seen = 0;
    unsigned char resident;
    for (unsigned i = 0; i < pages; ++i) {
      if (mincore(reinterpret_cast<void*>(base + i * page), kPage, &resident) == 0) seen |= 1u << i;
    }
    return static_cast<int>(seen);
  }));
}

class ForkMarks : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(library_.status, PINRAIL_SUCCESS); }
  uintptr_t page(unsigned number) const { return reinterpret_cast<uintptr_t>(memory_.base()) + number * kPage; }
  unsigned seen() const { return seen_by_child(page(0)); }
  // A registration of the first two pages that is held, and dead: they are other memory by now.
  pinrail_handle_t take_dead(const Pool& pool) const {
    const pinrail_handle_t dead = pool.must(page(0), 2 * kPage);
    report(page(0), 2 * kPage);
    memory_.map_again();
    return dead;
  }

  const Library library_{Settings{{"registrar_fork_marks", "always"}}};
  const Mapping memory_{kMarked * kPage};
  fake::FakeRegistrar device_;
};

TEST_F(ForkMarks, what_a_device_has_pinned_is_missing_in_a_child) {
  const Pool pool(device_);
  const pinrail_handle_t handle = pool.must(page(1), 2 * kPage);
  EXPECT_EQ(seen(), 0b11111001u);
  drop(handle);
  EXPECT_EQ(seen(), 0b11111001u);  // it stays cached, and pinned
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(seen(), 0xffu);
}

TEST_F(ForkMarks, a_page_of_two_registrations_is_missing_until_both_are_gone) {
  const Pool pool(device_, not_kept());
  const pinrail_handle_t low = pool.must(page(0), 4 * kPage);
  const pinrail_handle_t high = pool.must(page(2), 4 * kPage);
  EXPECT_EQ(seen(), 0b11000000u);
  drop(low);
  EXPECT_EQ(seen(), 0b11000011u);
  drop(high);
  EXPECT_EQ(seen(), 0xffu);
}

// R12: the end of a registration whose memory went away must not touch what is there now.
TEST_F(ForkMarks, a_dead_registration_does_not_unmark_a_later_one) {
  const Pool pool(device_, not_kept());
  const pinrail_handle_t dead = take_dead(pool);
  EXPECT_EQ(seen(), 0xffu);
  const pinrail_handle_t alive = pool.must(page(0), 2 * kPage);
  EXPECT_EQ(seen(), 0b11111100u);
  drop(dead);
  EXPECT_EQ(seen(), 0b11111100u);
  drop(alive);
  EXPECT_EQ(seen(), 0xffu);
}

// The addresses of a dmabuf are those of its mapping, and the marks of host memory that is registered there are not
// its.
TEST_F(ForkMarks, a_dmabuf_neither_marks_nor_unmarks) {
  const fake::FakeRegistrar device(
      fake::options_with(&fake::FakeOptions::kinds, PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF));
  const Pool pool(device, not_kept());
  pinrail_register_options_t options = PINRAIL_REGISTER_OPTIONS_INIT;
  options.dmabuf_fd = 7;
  const auto reg_dmabuf = [&](pinrail_handle_t* handle_out) {
    return pinrail_mpool_register_with(pool.get(), memory_.base(), 2 * kPage, 1, 0, &options, handle_out);
  };
  pinrail_handle_t dmabuf{};
  ASSERT_EQ(reg_dmabuf(&dmabuf), PINRAIL_SUCCESS);
  EXPECT_EQ(seen(), 0xffu);
  const pinrail_handle_t host = pool.must(page(0), 2 * kPage);
  drop(dmabuf);
  EXPECT_EQ(seen(), 0b11111100u);
  drop(host);
  EXPECT_EQ(seen(), 0xffu);
}

TEST_F(ForkMarks, what_the_device_refused_is_there) {
  const Pool pool(device_);
  device_.fail_every_register(PINRAIL_ERR_PERM);
  EXPECT_EQ(pool.answer_to(page(0), kPage), PINRAIL_ERR_PERM);
  EXPECT_EQ(seen(), 0xffu);
}

// Whether /proc/self/smaps says of the mapping at the address that children do not have it.
bool is_marked(uintptr_t at) {
  std::ifstream file("/proc/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long base = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &base, &end) == 2) is_there = at >= base && at < end;
    if (is_there && line.rfind("VmFlags:", 0) == 0) return line.find(" dc") != std::string::npos;
  }
  return false;
}
// The kernel's own page of clocks, which is memory of a device to it; 0: there is none.
uintptr_t page_of_clocks() {
  std::ifstream file("/proc/self/maps");
  unsigned long base = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("[vvar") != std::string::npos && std::sscanf(line.c_str(), "%lx-", &base) == 1) return base;
  }
  return 0;
}

// The kernel does not unmark memory of devices. In a process of its own, whose children lack that page.
TEST_F(ForkMarks, what_the_program_has_marked_beside_memory_of_a_device_stays_marked) {
  const uintptr_t clocks = page_of_clocks();
  if (clocks == 0) GTEST_SKIP() << "no such mapping";
  const int status = exit_status_of([=] {
    const Library own{Settings{{"registrar_fork_marks", "always"}}};
    fake::FakeRegistrar device;
    const Pool pool(device);
    device.fail_every_register(PINRAIL_ERR_PERM);
    void* beside = MAP_FAILED;
    for (size_t below = 8 * kPage; beside == MAP_FAILED && below < size_t{4} << 30; below *= 2) {
      beside = mmap(reinterpret_cast<void*>(clocks - below), kPage, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
    if (beside == MAP_FAILED || madvise(beside, kPage, MADV_DONTFORK) != 0) return 2;
    if (pool.answer_to(clocks, kPage) != PINRAIL_ERR_PERM) return 3;
    return is_marked(reinterpret_cast<uintptr_t>(beside)) ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(ForkMarks, a_hole_is_an_error_and_the_device_is_not_asked) {
  const Pool pool(device_);
  memory_.unmap(2 * kPage, kPage);
  EXPECT_EQ(pool.answer_to(page(0), 4 * kPage), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_.register_calls(), 0u);
  EXPECT_EQ(seen(), 0b11111011u);
}

// The kernel marks whole pages. What is mapped beside them does not matter.
TEST_F(ForkMarks, ranges_within_pages_mark_their_pages) {
  const fake::FakeRegistrar device(fake::options_with(&fake::FakeOptions::granularity, 1));
  const Pool pool(device, not_kept());
  memory_.unmap(3 * kPage, 5 * kPage);
  const pinrail_handle_t first = pool.must(page(2) + 100, 64);
  const pinrail_handle_t second = pool.must(page(2) + 3000, 64);
  EXPECT_EQ(seen(), 0b00000011u);
  drop(first);
  EXPECT_EQ(seen(), 0b00000011u);
  drop(second);
  EXPECT_EQ(seen(), 0b00000111u);
}

TEST_F(ForkMarks, a_registrar_that_pins_nothing_has_no_marks) {
  pinrail_registrar_t table = *device_.table();
  table.pins_nothing = 1;
  const Pool pool(table);
  const Held handle = pool.hold(page(0), kPage);
  EXPECT_EQ(seen(), 0xffu);
}

// A child has none of the parent's marks, and makes its own for its own children.
TEST_F(ForkMarks, a_child_begins_without_marks) {
  const Pool pool(device_);
  const Held handle = pool.hold(page(0), 2 * kPage);
  const ChildAnswer answer = answer_of([this] {
    const unsigned at_first = seen();
    const Library own{Settings{{"registrar_fork_marks", "always"}}};
    fake::FakeRegistrar device;
    const Pool inner(device, not_kept());
    const pinrail_handle_t taken = inner.must(page(4), kPage);
    const unsigned held = seen();
    pinrail_mpool_deregister(taken);
    return ChildAnswer{at_first, held, seen()};
  });
  // Where pages are missing the child may map something else by and by.
  constexpr int64_t kThere = 0b11111100;
  EXPECT_EQ(answer[0], kThere);
  EXPECT_EQ(answer[1] & kThere, 0b11101100);
  EXPECT_EQ(answer[2] & kThere, kThere);
}

// Splits the large mapping until the kernel grants no more. False: this kernel grants too many for a test. Allocators
// of sanitizers end the process without one, and map each size by itself: so they get some of each before.
bool use_up_mappings() {
  constexpr size_t kMost = size_t{1} << 20;
  std::vector<std::string> of_each_size;
  for (size_t bytes = 16; bytes <= 4096; bytes += 16) of_each_size.emplace_back(bytes, 'x');
  auto* const base = static_cast<char*>(mmap(nullptr, kMost * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base == MAP_FAILED) return false;
  for (size_t i = 0; i < kMost; i += 2) {
    if (mprotect(base + i * kPage, kPage, PROT_READ) != 0) return true;
  }
  return false;
}

// R7: what is idle gives its mappings back; with nothing idle the request fails and the device is not asked.
TEST_F(ForkMarks, without_a_mapping_left_what_is_idle_makes_room) {
  const ChildAnswer answer = answer_of([this] {
    const Library own{Settings{{"registrar_fork_marks", "always"}}};
    fake::FakeRegistrar device;
    const Pool pool(device);
    pool.use(page(6), kPage);
    if (!use_up_mappings()) return ChildAnswer{1};
    pinrail_handle_t handle{};
    const pinrail_status_t instead = pool.reg(page(2), kPage, &handle);
    const pinrail_status_t besides = pool.reg(page(4), kPage, &handle);
    return ChildAnswer{instead, besides, static_cast<int64_t>(device.register_calls()),
                       static_cast<int64_t>(device.deregistered(PINRAIL_REASON_EVICTED))};
  });
  if (answer[0] == 1) GTEST_SKIP() << "vm.max_map_count is larger than a test should use up";
  EXPECT_EQ(answer[0], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[1], PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(answer[2], 2);
  EXPECT_EQ(answer[3], 1);
}

// A large page can be marked as a whole only.
TEST_F(ForkMarks, large_pages_are_marked_whole_until_the_last_part_is_released) {
  constexpr size_t kLarge = size_t{2} << 20;
  void* const memory =
      mmap(nullptr, 2 * kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no large pages are set aside here (vm.nr_hugepages)";
  const auto base = reinterpret_cast<uintptr_t>(memory);
  {
    const Pool pool(device_, not_kept());
    const pinrail_handle_t first = pool.must(base + kPage, kPage);
    const pinrail_handle_t second = pool.must(base + 8 * kPage, kPage);
    EXPECT_EQ(seen_by_child(base, 2, kLarge), 0b10u);
    drop(first);
    EXPECT_EQ(seen_by_child(base, 2, kLarge), 0b10u);
    drop(second);
    EXPECT_EQ(seen_by_child(base, 2, kLarge), 0b11u);
  }
  munmap(memory, 2 * kLarge);
}

TEST(ForkMarksChoice, never_is_never) {
  const Library library{Settings{{"registrar_fork_marks", "never"}}};
  const Mapping memory(kPage);
  const fake::FakeRegistrar device;
  const Pool pool(device);
  const auto base = reinterpret_cast<uintptr_t>(memory.base());
  const Held handle = pool.hold(base, kPage);
  EXPECT_EQ(seen_by_child(base, 1), 1u);
}

TEST(ForkMarksChoice, kernels_before_5_12_share_pinned_pages) {
  for (const char* old : {"4.18.0-553.el8_10.x86_64", "5.11.22", "3.10.0-1160.el7.x86_64", "5.4.0", "unknown", ""}) {
    EXPECT_TRUE(fork_marks::kernel_shares_pins(old)) << old;
  }
  for (const char* later : {"5.12.0", "5.14.0-427.el9.x86_64", "6.1.0-18-amd64", "10.0"}) {
    EXPECT_FALSE(fork_marks::kernel_shares_pins(later)) << later;
  }
}

}  // namespace
}  // namespace pinrail::test
