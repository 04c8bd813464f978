// SPDX-License-Identifier: BSD-3-Clause
// The inert operations of a parent's pool, and the re-initialisation in a forked child. API context.

#include <pthread.h>
#include <sched.h>

#include <new>

#include "base/core/calling_thread.h"
#include "base/hit/start_hints.h"
#include "base/registration/registration_arena.h"
#include "base/report/report.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/own_threads.h"
#include "framework/api/api.h"
#include "framework/monitor/loaded_objects.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/gc_thread.h"
#include "framework/registrar/registrar.h"

namespace pinrail::api {
namespace {

// The operations of a parent's pool that calls still reach (api/F1). They take no lock and reach no device. The
// argument module is the pool itself.
pinrail_status_t refuse_range(void*, pinrail_thread_t*, uintptr_t, size_t, uint64_t, pinrail_handle_t*) {
  return PINRAIL_ERR_NOT_AVAILABLE;
}
pinrail_status_t deregister(void*, pinrail_thread_t*, pinrail_handle_t) { return PINRAIL_SUCCESS; }
void invalidate_range(void*, uintptr_t, size_t) {}

const pinrail_mpool& pool_of(void* module) { return *static_cast<const pinrail_mpool*>(module); }

// The counts go on as the parent counts, in memory that both have; the child has no registrations in this pool.
pinrail_status_t stats(void* module, pinrail_mpool_stats_t* stats_out) {
  pinrail_mpool_stats_t totals{};
  totals.size = stats_out->size;
  pool_of(module).former_ops->counters(pool_of(module).former_module, &totals);
  *stats_out = totals;
  return PINRAIL_SUCCESS;
}
size_t max_reg_size(void* module) { return pool_of(module).former_ops->max_reg_size(pool_of(module).former_module); }

constexpr pinrail_mpool_ops_t make_inert_table() {
  auto ops = sized<pinrail_mpool_ops_t>();
  ops.register_mem = ops.find = refuse_range;  // for a call in which a signal handler has forked
  ops.deregister = deregister;
  ops.invalidate_range_hook = invalidate_range;
  ops.stats = stats;
  ops.max_reg_size = max_reg_size;
  return ops;
}
constexpr pinrail_mpool_ops_t kInert = make_inert_table();

// Replaces the pool's operations by inert ones. A fork may interrupt this, so that the grandchild does it again:
// therefore the old values are saved first, then marked as saved, and only then replaced. release: all earlier writes
// are visible to a reader of this one. Pairs with a fork of this child: the grandchild's memory is a copy from some
// moment between these stores.
void make_inert(pinrail_mpool* pool) {
  if (!is_inherited(pool)) {
    pool->former_module = pool->module;
    __atomic_store_n(&pool->former_ops, pool->ops, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&pool->ops, &kInert, __ATOMIC_RELEASE);
  __atomic_store_n(&pool->module, pool, __ATOMIC_RELEASE);
}

// Held while components are loaded or unloaded, and during a fork. Not checked for its rank: a signal handler may fork
// whatever its thread holds.
LockWord forking;
std::atomic<pthread_t> loading_thread{};  // holds `forking`, yet may fork: a component may run a program
std::atomic<pthread_t> forking_thread{};  // holds `forking` for its fork(); its other handlers may call init
std::atomic<unsigned> waiting_forks{0};   // they go first: a thread that loads again and again would keep them waiting
// Between the handlers of a fork: a signal handler that forks on this thread would wait for the thread's own locks.
// Guarded by `forking`.
bool signals_are_blocked = false;
sigset_t signals_before;
// How many forks the thread is in: a handler of the program may fork. The outermost one has done and will end all.
// Guarded by `forking`.
unsigned fork_depth = 0;
pthread_once_t once = PTHREAD_ONCE_INIT;

bool is_loading() { return loading_thread.load() == pthread_self(); }
bool is_forking() { return forking_thread.load() == pthread_self(); }
bool holds_forking() { return is_forking() || is_loading(); }

// Handlers of pthread_atfork: they hold `forking` across a fork of any thread but the loading one, and keep all threads
// out of the loader and those of Pinrail's own out of everything.
void before_fork() {
  if (holds_forking() && fork_depth != 0) {
    ++fork_depth;
    return;
  }
  const sigset_t signals = async_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  own_threads::leave_for_fork();
  ++waiting_forks;
  if (!is_loading()) {
    forking.lock();
    forking_thread.store(pthread_self());
  }
  --waiting_forks;
  if (!signals_are_blocked) signals_before = before;  // else this is in a child's handler, inside the fork that made it
  signals_are_blocked = true;
  fork_depth = 1;
  own_threads::before_fork(deferred::may_hold_lock());
  monitor::before_fork();
}
// Whether the fork that ends is one inside of another one, which goes on.
bool ends_inside_another() {
  if (!holds_forking() || fork_depth < 2) return false;
  --fork_depth;
  return true;
}
void end_fork() {
  monitor::after_fork();
  if (holds_forking()) fork_depth = 0;
  const bool blocked = signals_are_blocked;
  const sigset_t before = signals_before;
  signals_are_blocked = false;
  if (is_forking()) {
    forking_thread.store(pthread_t{});
    forking.unlock();
  }
  if (blocked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
void after_fork() {
  if (ends_inside_another()) return;
  own_threads::after_fork();
  end_fork();
}
// An earlier handler of the program may have called init. Then fork_reinit() has released what the fork held.
void in_child() {
  own_threads::in_child();
  if (!ends_inside_another()) end_fork();
}
void prepare_for_forks() { pthread_atfork(before_fork, after_fork, in_child); }

}  // namespace

bool is_inside_fork() { return holds_forking() && fork_depth != 0; }

bool is_in_init_or_finalize() { return is_loading(); }

// Takes `forking`, and marks this thread as the loading one, whose own forks do not wait.
NoFork::NoFork() : entered_(!is_forking() && !is_loading()) {
  if (!entered_) return;
  pthread_once(&once, prepare_for_forks);
  while (waiting_forks.load() != 0) sched_yield();
  const BlockAsyncSignals no_handler;  // it could fork between the two
  forking.lock();
  loading_thread.store(pthread_self());
}

NoFork::~NoFork() {
  if (!entered_) return;
  const BlockAsyncSignals no_handler;
  loading_thread.store(pthread_t{});
  forking.unlock();
}

// The first caller in a child does the work: claim_child() returns true to it, and to all others false after it is
// done.
void fork_reinit() {
  if (!gate::claim_child()) return;
  own_threads::fork_reinit();
  // It is locked still after a bare clone(), and in a handler of pthread_atfork that runs before ours.
  new (&forking) LockWord;
  loading_thread.store(pthread_t{});
  forking_thread.store(pthread_t{});
  waiting_forks.store(0);
  fork_depth = 0;
  for (pinrail_mpool* pool = first_pool(); pool != nullptr; pool = pool->next.load()) make_inert(pool);
  thread::fork_reinit();
  deferred::fork_reinit();
  arena::fork_reinit();
  start_hints::fork_reinit();
  report::fork_reinit();
  monitor::fork_reinit();
  gc::fork_reinit();
  fork_marks::fork_reinit();
  registrar::fork_reinit();
  record::fork_reinit();
  mpool::watchers.store(0);  // the parent's recording and pools
  fork_reinit_library();
  gate::open();
}

}  // namespace pinrail::api
