// SPDX-License-Identifier: BSD-3-Clause
// api.h - the state of the library between pinrail_init() and pinrail_finalize().
//
// Owns     the parameters, the components, the pools.
// Threads  pinrail_init() and pinrail_finalize() exclude all other calls. The list of pools changes under
//          Library::mutex.
// Context  start-up and API context, never a hook.
// Fork     library(), the_registry() and the_loader() call handle_fork() first.
#ifndef PINRAIL_FRAMEWORK_API_API_H
#define PINRAIL_FRAMEWORK_API_API_H

#include <pinrail/component.h>
#include <pinrail/events.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <initializer_list>
#include <memory>

#include "base/core/compiler.h"
#include "base/core/span.h"
#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"
#include "framework/mpool/mpool.h"
#include "framework/registrar/request.h"

namespace pinrail::record {

// The process's calls on its pools, and memory events, as a trace that pinrail_perf and pinrail_advise read
// (parameter mpool_base_record).
//
// Owns     an area of address space that is filled in order, and the file that is written from it when the process
//          exits or Pinrail is finalized for the last time.
// Threads  took(), dropping(), evicted() may run together. start(), stop() and fork_reinit() exclude all
//          else.
// Fork     a child records nothing until it calls pinrail_init(); it then has a file of its own.
//
// A reference is recorded after it was taken and before it is dropped, so that between two records of one id the
// registration exists. While calls are recorded, no registration is quick, and no request is remembered: the library
// answers no hit, and drops no reference, without passing here. What does not fit into the area is counted in the
// file's header.
struct Area;
extern std::atomic<Area*> recording;  // NULL: nothing is recorded

// relaxed: a thread that sees it later begins to record later.
inline bool is_on() { return recording.load(std::memory_order_relaxed) != nullptr; }

Status declare(param::Registry* params);
// After the monitors have started. A file that cannot be written is reported, and nothing is recorded.
void start(const param::Registry& params);
void stop();
void fork_reinit();

// A register ('R') or find ('F') has returned the handle; NULL: it has failed. Nothing if no recording is on.
void took(const pinrail_mpool_t* pool, char op, const void* addr, size_t length, uint64_t access_and_flags,
          const pinrail_handle_t* handle);
void dropping(pinrail_handle_t handle);
void evicted(pinrail_status_t status);

}  // namespace pinrail::record

namespace pinrail::api {

constexpr uint64_t kAccessMask = uint32_t{PINRAIL_RIGHTS_MASK} | uint32_t{PINRAIL_TRAITS_MASK};
constexpr uint64_t kAccessAndFlagsMask = kAccessMask | uint64_t{PINRAIL_FLAGS_MASK} << PINRAIL_ACCESS_FLAGS_SHIFT;

struct Library {
  param::Registry params;
  std::unique_ptr<loader::Loader> loader;
  Mutex mutex{LockRank::api};  // guards changes to the list of pools
};

// Returns the library; NULL before init and after finalize. Takes no lock.
Library* library();

// The services that each component gets a copy of.
pinrail_host_t make_services();

// The library's parameters and its loader; NULL before init and after finalize.
param::Registry* the_registry();
loader::Loader* the_loader();

// Returns the first pool of the process's list, the newest one; in a forked child the list includes the parent's
// pools. Takes no lock: each linked pool is complete and stays until it is destroyed, so a forked child may walk the
// list.
pinrail_mpool* first_pool();

// Forgets the parent's library. Runs in a forked child, after all other rooms were re-initialised. Takes no lock.
void fork_reinit_library();

// C6: in debug builds, ends the process with a message if a registration names a pool that does not exist. Takes
// Library::mutex, so it is called inside a deferred::Call.
#ifdef PINRAIL_DEBUG
void check_known(const pinrail_mpool_t* pool);
#else
inline void check_known(const pinrail_mpool_t* /*pool*/) {}
#endif

// Whether a registrar's function calls, or a handler of pthread_atfork() inside this thread's fork. They must not wait
// for other threads, nor destroy a pool: both may wait for the registrar call that it is made in, or for threads of
// Pinrail's own, which the fork has stopped.
bool must_not_wait();

// Deregisters memory of the pool that is not allocated, to make room for a request that has failed so. False if there
// is none, or room is not what the request lacks. The caller holds no lock.
bool give_back_unused(const pinrail_mpool_t* pool, const pinrail_thread_t* thread, Status status);
// Returns what ask() does, which is a request to the pool; asks again if memory was deregistered so to make room.
template <typename Ask>
pinrail_status_t ask_with_room(const pinrail_mpool_t* pool, const pinrail_thread_t* thread, Ask&& ask) {
  const pinrail_status_t status = ask();
  return status != PINRAIL_SUCCESS && give_back_unused(pool, thread, status) ? ask() : status;
}

// Destroys all pools of this process. Returns BUSY and destroys none if one of them has a referenced registration. The
// caller holds no lock.
Status close_pools(Library* library);

// Messages about calls that the API refuses for their arguments, once for each kind until the next init.
//
// Threads  all functions may run together. They take no lock of a pool.
// Context  API context; refuse() must not run in a hook or in a signal handler.
constexpr const char* kBeforeInit = "Pinrail is not initialised: pinrail_init() comes first";
constexpr const char* kHandleIsGone = "the handle names no registration that is still held";

// Prints a topic of api_help.txt. May throw bad_alloc.
void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args);

// Reports that the call was refused, and returns BAD_PARAM. why is a clause.
__attribute__((noinline, cold)) pinrail_status_t refuse(const char* call, const char* why);

// Reports that a call that pins so many bytes met a limit when `done` bytes were pinned. May throw bad_alloc.
void report_limit(uint64_t bytes, uint64_t done, const char* limit);

// Check a range, or access and flags, as calls on pools take them. Return a clause that names the fault; NULL: no
// fault.
inline const char* fault_of_range(const void* addr, size_t length) {
  if (addr == nullptr) return "addr is NULL";
  if (length == 0) return "length is 0";
  return fits(reinterpret_cast<uintptr_t>(addr), length) ? nullptr : "addr + length is beyond the address space";
}
inline const char* fault_of_access(uint64_t access_and_flags) {
  if ((access_and_flags & (UINT32_MAX & ~kAccessMask)) != 0)
    return "access has bits that pinrail/types.h does not name";
  return (access_and_flags & ~kAccessAndFlagsMask) != 0 ? "flags has bits that pinrail/types.h does not name" : nullptr;
}
const char* fault_of_options(const pinrail_register_options_t& options);

// The request's trait, or that of all of the pool's registrations.
inline bool is_on_demand(const pinrail_mpool_t* pool, uint64_t access_and_flags) {
  return ((access_and_flags | pool->ops->traits) & PINRAIL_TRAIT_ON_DEMAND) != 0;
}

// The same of a whole request.
inline const char* fault_of_request(const pinrail_mpool_t* pool, const void* addr, size_t length,
                                    uint64_t access_and_flags, const pinrail_handle_t* handle_out) {
  if (pool == nullptr) return "pool is NULL";
  if (handle_out == nullptr) return "handle_out is NULL";
  const char* const fault = fault_of_range(addr, length);
  if (fault != nullptr) return fault;
  // A limit takes it for all memory, which is free (mpool::charge_of()).
  if (length > SIZE_MAX / 4 && !is_on_demand(pool, access_and_flags))
    return "length is over a quarter of the address space, which only PINRAIL_TRAIT_ON_DEMAND and pools odp allow";
  return fault_of_access(access_and_flags);
}

// The longest piece that a pool can register at once for this access; 0: no maximum.
inline size_t longest_of(const pinrail_mpool_t* pool, uint32_t access) {
  return pinrail::longest_of(pool->registrar->table, is_on_demand(pool, access));
}

// Returns the status, and reports it if it is BAD_PARAM.
inline pinrail_status_t report_if_bad(pinrail_status_t status, const char* call, const char* why) {
  return status == PINRAIL_ERR_BAD_PARAM ? refuse(call, why) : status;
}

// What pools record (framework/mpool/recorder.h), and what is said of it.
//
// Threads  all functions may run together. The caller holds no lock, but for record_hook().
// Hook     record_hook().

// mpool_<name>_verbose from which on misses, and everything, is said; refusals from PINRAIL_LOG_INFO on.
constexpr int kLogMisses = 30, kLogAll = 50;

// Host service: see component_mpool.h.
void record_hook(pinrail_mpool_t* pool, const pinrail_mpool_event_t* event);

// What the pool counts now; zeros if it cannot tell.
inline pinrail_mpool_stats_t stats_of(const pinrail_mpool_t* pool) {
  auto stats = sized<pinrail_mpool_stats_t>();
  Status(pool->ops->stats(pool->module, &stats)).ignore();
  return stats;
}

// Logs what was recorded since the last call, as far as the pool's verbosity asks for it.
void say_events(pinrail_mpool_t* pool);

// A register or find call has returned the handle. If the pool checks its hits and the device sees other memory than
// the process, says so with the life of the registration, treats its range as memory that went away, drops the
// reference and returns true. The thread is the calling one.
bool drop_stale(pinrail_mpool_t* pool, pinrail_thread_t* thread, const void* addr, size_t length,
                pinrail_handle_t handle);

// A request for this range found no room: says which limit is full, what is held and what to do, once a second. Not
// where the pool records no events.
void report_no_room(pinrail_mpool_t* pool, Span range, pinrail_status_t status);

// How calls on a pool begin, and those on a handle; rule api/F1: what the first call in a forked child does with the
// inherited state.
//
// The kernel wipes the gate in the child (base/sync/gate.h), so the child's first register or find enters here; every
// other call that could take a lock or reach a device calls handle_fork(). The first such call replaces the parent's
// locks, lists and thread records by new ones. It neither locks, walks nor frees the old ones, because another thread
// of the parent may have been changing them. Their memory stays allocated. Handles may still be dropped; this does
// nothing.
//
// Threads  handle_fork() may run at any time, in API context. A hook must not call it: hooks ask gate::is_child() and
//          return.
//
// api/F1  Calls on a parent's pool return NOT_AVAILABLE before they reach the pool. Those that may be made nevertheless
//     (deregister, invalidate_range, read_stats, chunks_begin) reach a table of operations that call no device, and so
//     does a call in which a signal handler has forked.
//
// A child of vfork or posix_spawn shares the parent's memory, and its gate was not wiped: nothing happens.

// Re-initialises all inherited state in a forked child, once; other threads of the child wait until it is done. Takes
// no lock. API context.
void fork_reinit();

// Every API function calls this first, except on its hit path. Cheap where the process is no forked child.
inline void handle_fork() {
  if (unlikely(gate::is_child())) fork_reinit();
}

// Blocks forks on other threads while it is in scope. Init and finalize load and unload components; libc's loader does
// not survive a fork in the middle of that: the child's next dlopen would crash. Takes the lock of rank "fork".
class NoFork : NonCopyable {
 public:
  NoFork();
  ~NoFork();
  // False: this thread is inside its own fork(), in a handler of pthread_atfork, or in init or finalize, whose
  // callbacks may call again. Init and finalize then return BUSY.
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

// Whether this thread is inside its own fork(). The caller has called handle_fork().
bool is_inside_fork();

// Whether this thread is inside init or finalize: a registrar's function asks, which finalize has called.
bool is_in_init_or_finalize();

// Whether the pool was the parent's. The caller has called handle_fork().
inline bool is_inherited(const pinrail_mpool* pool) { return pool->former_ops != nullptr; }

// How calls on a pool begin, and those on a handle of something that helper threads do for it.
//
// Threads  all functions may run together. API context; the caller holds no lock.

// Calls body(), which may throw, and returns its status. BUSY: this thread is inside another call, which a signal
// handler has interrupted.
template <typename Body>
pinrail_status_t guarded_call(Body&& body) {
  const deferred::Call call;
  return call ? guarded(body) : PINRAIL_ERR_BUSY;
}

// The same; and NOT_AVAILABLE: the pool was the parent's.
template <typename Body>
pinrail_status_t on_pool(const pinrail_mpool_t* pool, Body&& body) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  return is_inherited(pool) ? PINRAIL_ERR_NOT_AVAILABLE : guarded(body);
}

// The same with body(thread). OUT_OF_RESOURCE: there is no memory for the thread's record.
template <typename Body>
pinrail_status_t in_call(const pinrail_mpool_t* pool, Body&& body) {
  return on_pool(pool, [&]() -> Status {
    pinrail_thread_t* const thread = thread::current();
    return thread != nullptr ? Status(body(thread)) : PINRAIL_ERR_OUT_OF_RESOURCE;
  });
}

// Calls body(work) and returns its status. BUSY: inside a registrar or a fork, where the work could wait for its own
// thread. NOT_AVAILABLE: in a forked child, which has no helper threads. After the pool was destroyed the work is
// detached: its pool is not read.
template <typename Work, typename Body>
pinrail_status_t on_work(Work* work, Body&& body) {
  const deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  handle_fork();
  if (work->is_inherited()) return PINRAIL_ERR_NOT_AVAILABLE;
  if (thread::current() == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (must_not_wait()) return PINRAIL_ERR_BUSY;
  return guarded([&] { return body(work); });
}

// Stops the work, takes it out of its pool's list, and deletes its handle. In a forked child the parent's work is kept:
// another thread may have been changing it.
template <typename Handle, typename Work>
pinrail_status_t end_work(Handle* handle, Work* work) {
  const pinrail_status_t status = on_work(work, [](Work* ended) {
    ended->stop();
    if (!ended->is_detached()) ended->pool()->works.remove(ended);
  });
  if (status == PINRAIL_SUCCESS) delete handle;
  return status == PINRAIL_ERR_NOT_AVAILABLE ? PINRAIL_SUCCESS : status;
}

}  // namespace pinrail::api

#endif
