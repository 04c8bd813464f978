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
#include <functional>
#include <thread>

#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/tasks.h"

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
    const pid_t child = fork();
    if (child == 0) _exit(device_.inside());
    int how = -1;
    return waitpid(child, &how, 0) == child && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
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
    ASSERT_EQ(calls_in_child(), 0) << "round " << round;
  }
  EXPECT_GT(device_.calls(), 0);
}

// The parent's thread is not in the child, and what it drains is the parent's.
TEST_F(ForkThreads, a_child_that_begins_anew_has_a_gc_thread_of_its_own) {
  feed_gc_thread();
  EXPECT_TRUE(all_are_deregistered());
  const pid_t child = fork();
  if (child == 0) {
    const Library own{settings()};
    const CountingRegistrar device;
    const Pool pool(device.table(), {-1});
    feed_gc_thread(pool);
    _exit(comes_true([&] { return pool.stats().registered_count == 0; }) ? 0 : 2);
  }
  int how = -1;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
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
    for (int i = 0; i < 20; ++i) ASSERT_EQ(calls_in_child(), 0) << "round " << round;
    EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), &range, 1, 1), PINRAIL_SUCCESS);
    report(kBase, kBytes);
  }
  EXPECT_GT(device_.calls(), 0);
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
  EXPECT_LT(took, milliseconds(5000));
}

TEST_F(ForkThreads, a_registrar_may_fork_on_the_gc_thread_while_the_program_forks) {
  std::atomic<int> ended{0};
  device_.in_call = [&] {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int how = -1;
    if (waitpid(child, &how, 0) == child && how == 0) ++ended;
  };
  const auto began = Clock::now();
  for (int round = 0; round < 50; ++round) {
    feed_gc_thread();
    ASSERT_GE(calls_in_child(), 0);
  }
  EXPECT_TRUE(comes_true([&] { return ended.load() > 50; }));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20)) << "forks waited for each other";
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

// At any time but within fork() itself: glibc waits there for a lock that the interrupted fork() holds.
TEST_F(ForkThreads, a_signal_handler_may_fork_at_any_time) {
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

}  // namespace
}  // namespace pinrail::test
