// SPDX-License-Identifier: BSD-3-Clause
// F1: what a forked child may do with what it inherited, and that the parent does not notice.
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <spawn.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/support/library.h"
#include "test/support/registrars.h"

extern char** environ;

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr unsigned kPatienceSeconds = 300;

void* address(uintptr_t at) { return reinterpret_cast<void*>(at); }

// The number of the first step that is not as it should be, from a child; 0: all are.
int first_wrong(const std::function<int()>& steps, void (*leave)(int) = _exit) {
  return exit_status_of([&] {
    alarm(kPatienceSeconds);
    const int wrong = steps();
    leave(wrong);
    return wrong;
  });
}

void expect_right(const std::function<int()>& steps) { EXPECT_EQ(first_wrong(steps), 0); }

class Fork : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pool_.status, PINRAIL_SUCCESS);
    held_ = pool_.must(kBase, kPage);
    pool_.use(kBase + 16 * kPage, kPage);
    for (int i = 0; i < 4; ++i) pool_.use(kBase, kPage);  // so that this thread remembers it
  }
  // The parent's registrations are what they were, and the child never called its device.
  void TearDown() override {
    EXPECT_EQ(device_.counts().by_strangers, 0u);
    EXPECT_EQ(device_.live(), 2u);
    pool_.use(kBase, kPage);
    EXPECT_EQ(device_.live(), 2u);
    drop(held_);
    EXPECT_EQ(pool_.close(), PINRAIL_SUCCESS);
    EXPECT_EQ(device_.live(), 0u);
  }

  Library library_;
  WatchedRegistrar device_;
  Pool pool_{device_.table()};
  pinrail_handle_t held_{};
};

TEST_F(Fork, a_pool_of_the_parent_is_inert_in_the_child) {
  expect_right([this] {
    pinrail_handle_t handle{};
    STEP(1, pool_.reg(kBase, kPage, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(11, pool_.reg(kBase, kPage, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(2, pinrail_mpool_find(pool_.get(), address(kBase), kPage, 1, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(3, pinrail_mpool_evict(pool_.get()) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(4, pinrail_mpool_progress(pool_.get()) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(12, pinrail_mpool_ft_event(pool_.get(), PINRAIL_FT_CHECKPOINT) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(13, pinrail_mpool_ft_event(pool_.get(), PINRAIL_FT_RESTART) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(5, pinrail_mpool_invalidate_range(pool_.get(), address(kBase), kPage) == PINRAIL_SUCCESS);
    char byte;
    STEP(6, pinrail_mpool_device_read(held_, 0, &byte, 1) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(7, pinrail_mpool_deregister(held_) == PINRAIL_SUCCESS);
    STEP(8, pinrail_mpool_destroy(pool_.get(), 0) == PINRAIL_SUCCESS);
    STEP(9, pinrail_finalize() == PINRAIL_SUCCESS);
    STEP(10, pinrail_finalize() == PINRAIL_ERR_BAD_PARAM);
    return 0;
  });
}

// Of what is cached, of what is dead, whether this thread counted it or not, and of what the pool does not keep.
TEST_F(Fork, the_last_reference_calls_no_device) {
  const Pool not_kept(device_.table(), {0, PINRAIL_UNSET, PINRAIL_UNSET, 0, "not kept"});
  const pinrail_handle_t dead = pool_.must(kBase + 32 * kPage, kPage);
  report(kBase + 32 * kPage, kPage);
  const pinrail_handle_t own = not_kept.must(kBase, kPage);
  for (const pinrail_handle_t handle : {held_, dead, own}) {
    expect_right([&] {
      report(kBase, kPage);  // goes nowhere: the hook saw that it is a child
      STEP(1, pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS);
      return 0;
    });
  }
  EXPECT_EQ(device_.live(), 4u);
  drop(dead);
  drop(own);
}

TEST_F(Fork, figures_stay_readable) {
  const pinrail_mpool_stats_t before = pool_.stats();
  expect_right([&] {
    const pinrail_mpool_stats_t figures = pool_.stats();
    STEP(1, figures.hits == before.hits && figures.misses == before.misses && before.misses == 2);
    STEP(2, figures.peak_registered_bytes == 2 * kPage);
    STEP(3, figures.registered_bytes == 0 && figures.indexed == 0);
    pinrail_chunks_t chunks;
    STEP(4, pinrail_chunks_begin(pool_.get(), address(kBase), kPage, &chunks) == PINRAIL_SUCCESS);
    STEP(5, chunks.step == size_t{2} << 20);
    STEP(6, std::string(pinrail_mpool_name(pool_.get())) == "grdma");
    STEP(7, pinrail_component_count() == 0);
    return 0;
  });
}

int works_anew(const Pool& inherited) {
  Library library;
  STEP(21, library.status == PINRAIL_SUCCESS);
  const WatchedRegistrar device;
  Pool pool(device.table());
  STEP(22, pool.status == PINRAIL_SUCCESS);
  pinrail_handle_t first{}, second{};
  STEP(23, pool.reg(kBase, kPage, &first) == PINRAIL_SUCCESS);
  STEP(24, pool.reg(kBase, kPage, &second) == PINRAIL_SUCCESS);
  STEP(25, first.reg == second.reg && device.counts().registered == 1);
  STEP(26, inherited.reg(kBase, kPage, &second) == PINRAIL_ERR_NOT_AVAILABLE);
  report(kBase, kPage);
  STEP(27, pinrail_mpool_deregister(first) == PINRAIL_SUCCESS && pinrail_mpool_deregister(first) == PINRAIL_SUCCESS);
  STEP(28, pinrail_mpool_progress(pool.get()) == PINRAIL_SUCCESS && device.live() == 0);
  STEP(29, pool.stats().invalidations == 1);
  STEP(30, pinrail_mpool_destroy(inherited.get(), 0) == PINRAIL_SUCCESS);
  STEP(31, pool.close() == PINRAIL_SUCCESS);
  return 0;
}

// Handlers of the program that were registered before Pinrail's: in a child they run before those, in its parent
// between them.
void (*in_parent_handlers)() = nullptr;
void (*in_child_handler)() = nullptr;
void run_in_parent() {
  if (in_parent_handlers != nullptr) in_parent_handlers();
}
void run_in_child() {
  if (in_child_handler != nullptr) in_child_handler();
}
const int early_handlers = pthread_atfork(run_in_parent, run_in_parent, run_in_child);
std::unique_ptr<Library> library_of_handler;
std::vector<pinrail_status_t> handler_statuses;

TEST_F(Fork, a_handler_of_pthread_atfork_may_call_init_in_the_child) {
  ASSERT_EQ(early_handlers, 0);
  in_child_handler = [] {
    alarm(kPatienceSeconds);
    library_of_handler = std::make_unique<Library>();
  };
  expect_right([this] {
    STEP(1, library_of_handler->status == PINRAIL_SUCCESS);
    const int wrong = works_anew(pool_);
    STEP(wrong, wrong == 0);
    library_of_handler.reset();
    in_child_handler = nullptr;
    return first_wrong([this] { return works_anew(pool_); });  // forks still wait for init, and end
  });
  in_child_handler = nullptr;
}

TEST_F(Fork, init_and_finalize_inside_fork_are_busy_in_the_parent) {
  alarm(kPatienceSeconds);
  handler_statuses.clear();
  in_parent_handlers = [] {
    handler_statuses.push_back(pinrail_init(nullptr));
    handler_statuses.push_back(pinrail_finalize());
  };
  expect_right([] { return 0; });
  in_parent_handlers = nullptr;
  alarm(0);
  EXPECT_EQ(handler_statuses, std::vector<pinrail_status_t>(4, PINRAIL_ERR_BUSY));
}

TEST_F(Fork, a_handler_of_pthread_atfork_may_pin_ahead) {
  static pinrail_mpool_t* pool = nullptr;
  static const pinrail_range_t kRange = {address(kBase + 32 * kPage), kPage};
  pool = pool_.get();
  handler_statuses.clear();
  in_parent_handlers = [] {
    handler_statuses.push_back(pinrail_mpool_prepin(pool, &kRange, 1, 1, nullptr, nullptr));
    handler_statuses.push_back(pinrail_mpool_unpin(pool, &kRange, 1, 1));
  };
  expect_right([] { return 0; });
  in_parent_handlers = nullptr;
  EXPECT_EQ(handler_statuses, std::vector<pinrail_status_t>(4, PINRAIL_SUCCESS));
  report(kBase + 32 * kPage, kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool), PINRAIL_SUCCESS);
}

// A fork in a handler of a fork: before it, afterwards in the parent, and in the child.
std::vector<int> inner_children;

void fork_in_handler() {
  static bool is_inner = false;
  if (is_inner) return;
  is_inner = true;
  inner_children.push_back(first_wrong([] { return 7; }));
  is_inner = false;
}

TEST_F(Fork, a_handler_of_pthread_atfork_may_fork) {
  sigset_t before, after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  inner_children.clear();
  in_parent_handlers = in_child_handler = [] {
    alarm(kPatienceSeconds);
    fork_in_handler();
  };
  const int wrong = first_wrong([this] {
    in_parent_handlers = in_child_handler = nullptr;
    STEP(1, inner_children == (std::vector<int>{7, 7}));
    return works_anew(pool_);
  });
  in_parent_handlers = in_child_handler = nullptr;
  alarm(0);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(inner_children, (std::vector<int>{7, 7}));
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  EXPECT_EQ(sigismember(&after, SIGUSR1), sigismember(&before, SIGUSR1));
  expect_right([] { return 0; });
}

volatile sig_atomic_t is_between_handlers = 0, came_between = 0, came = 0;

// Its handler could fork, and would find the locks of the fork under way.
TEST_F(Fork, a_signal_that_comes_between_the_handlers_of_a_fork_waits_for_their_end) {
  const auto former = std::signal(SIGUSR1, [](int) {
    came = came + 1;
    came_between = came_between + is_between_handlers;
  });
  in_parent_handlers = [] {
    is_between_handlers = 1;
    raise(SIGUSR1);
    is_between_handlers = 0;
  };
  expect_right([] { return 0; });
  in_parent_handlers = nullptr;
  std::signal(SIGUSR1, former);
  EXPECT_GE(came, 1);
  EXPECT_EQ(came_between, 0);
}

// Whether a descriptor of this process is that file of its own folder in /proc.
bool has_open_of_its_own(const std::string& file) {
  return descriptor_of("/proc/" + std::to_string(getpid()) + "/" + file) >= 0;
}

// Descriptors of the parent's files would tell of the parent's memory.
TEST_F(Fork, init_again_opens_the_childs_own_files_of_mappings_and_pages) {
  if (!has_open_of_its_own("maps")) GTEST_SKIP() << "no monitor works here";
  EXPECT_TRUE(has_open_of_its_own("pagemap"));
  expect_right([] {
    STEP(1, !has_open_of_its_own("maps") && !has_open_of_its_own("pagemap"));
    const Library again;
    STEP(2, again.status == PINRAIL_SUCCESS);
    STEP(3, has_open_of_its_own("maps"));
    STEP(4, has_open_of_its_own("pagemap"));
    return 0;
  });
}

TEST_F(Fork, a_child_of_a_child_too_whether_the_first_one_began_anew_or_not) {
  expect_right([this] { return first_wrong([this] { return works_anew(pool_); }); });
  expect_right([this] {
    Library library;
    const WatchedRegistrar device;
    Pool pool(device.table());
    pinrail_handle_t own{}, handle{};
    STEP(1, pool.reg(kBase, kPage, &own) == PINRAIL_SUCCESS);
    const int wrong = first_wrong([&] {
      STEP(2, pool.reg(kBase, kPage, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
      STEP(3, pinrail_mpool_deregister(own) == PINRAIL_SUCCESS);
      STEP(4, pinrail_mpool_deregister(held_) == PINRAIL_SUCCESS);
      return works_anew(pool);
    });
    STEP(wrong, wrong == 0);
    STEP(5, device.counts().by_strangers == 0 && device.live() == 1);
    STEP(6, pinrail_mpool_deregister(own) == PINRAIL_SUCCESS);
    STEP(7, pool.close() == PINRAIL_SUCCESS);
    return 0;
  });
}

// What programs do at their end: the child leaves by exit(), with destructors and functions of atexit().
pinrail_mpool_t* pool_at_exit = nullptr;
pinrail_handle_t handle_at_exit;
pid_t owner_at_exit = 0;
void finish_at_exit() {
  if (pool_at_exit == nullptr || getpid() == owner_at_exit) return;
  const bool right = pinrail_mpool_deregister(handle_at_exit) == PINRAIL_SUCCESS &&
                     pinrail_mpool_destroy(pool_at_exit, PINRAIL_DESTROY_FORCE) == PINRAIL_SUCCESS &&
                     pinrail_finalize() == PINRAIL_SUCCESS;
  if (!right) _exit(99);
}

TEST_F(Fork, a_child_that_ends_by_exit_calls_no_device) {
  static const int registered = atexit(finish_at_exit);
  ASSERT_EQ(registered, 0);
  pool_at_exit = pool_.get();
  handle_at_exit = held_;
  owner_at_exit = getpid();
  EXPECT_EQ(first_wrong([] { return 0; }, [](int code) { exit(code); }), 0);
  pool_at_exit = nullptr;
}

TEST_F(Fork, threads_of_the_child_end_without_a_trace_in_the_parent) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no threads in forked children";
#endif
  expect_right([this] {
    int wrong = 0;
    // The thread that makes the first call is not the one that forked.
    std::thread([&] {
      pinrail_handle_t handle{};
      if (pool_.reg(kBase, kPage, &handle) != PINRAIL_ERR_NOT_AVAILABLE) wrong = 1;
      if (wrong == 0) wrong = works_anew(pool_);
    }).join();
    STEP(wrong, wrong == 0);
    pinrail_handle_t handle{};
    STEP(2, pool_.reg(kBase, kPage, &handle) == PINRAIL_ERR_NOT_AVAILABLE);
    STEP(3, pinrail_mpool_deregister(held_) == PINRAIL_SUCCESS);
    return works_anew(pool_);
  });
}

TEST_F(Fork, the_first_calls_may_come_at_once) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no threads in forked children";
#endif
  for (int round = 0; round < 20; ++round) {
    expect_right([this] {
      std::atomic<int> wrong{0};
      const auto call = [&] {
        pinrail_handle_t handle{};
        for (int i = 0; i < 1000; ++i) {
          if (pool_.reg(kBase, kPage, &handle) != PINRAIL_ERR_NOT_AVAILABLE) wrong = 1;
        }
      };
      std::thread one(call), two(call);
      call();
      one.join();
      two.join();
      return wrong.load();
    });
  }
}

TEST_F(Fork, vfork_and_posix_spawn_change_nothing) {
  const pinrail_mpool_stats_t before = pool_.stats();
  pid_t child = vfork();
  if (child == 0) {
    execl("/bin/true", "true", nullptr);
    _exit(1);
  }
  expect_success_of(child);
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  ASSERT_EQ(posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ), 0);
  expect_success_of(child);
  pool_.use(kBase, kPage);
  EXPECT_EQ(pool_.stats().hits, before.hits + 1);
  EXPECT_EQ(pool_.stats().misses, before.misses);
}

}  // namespace
}  // namespace pinrail::test
