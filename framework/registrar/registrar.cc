// SPDX-License-Identifier: BSD-3-Clause
// Calls of a registrar; requests are checked before, results after. API context; the callers hold no lock, because a
// registrar may block, allocate and unmap (R6). No other thread changes `reg` during a call; the callers may hold
// references of other registrations.
#include "framework/registrar/registrar.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/core/thread_record.h"
#include "base/registration/registration.h"
#include "base/registration/registration_arena.h"
#include "base/report/report.h"
#include "base/sync/call_scope.h"
#include "base/sync/hook_scope.h"
#include "base/sync/own_threads.h"
#include "framework/registrar/request.h"

namespace pinrail::registrar {
namespace {

// The thread is inside a registrar's function, which may call the API again.
class InRegistrar : NonCopyable {
 public:
  explicit InRegistrar(pinrail_thread_t* thread) : thread_(thread) {
    abort_in_hook_scope("a registrar is called");
    ++thread->in_registrar;
  }
  ~InRegistrar() { --thread_->in_registrar; }

 private:
  pinrail_thread_t* const thread_;
  const deferred::CallerScope caller_;
};

// Scope of one call of a registrar. Admits one thread at a time if the registrar demands it; a thread that is inside
// may re-enter.
class RegistrarCall {
 public:
  RegistrarCall(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread) : inside_(thread) {
    Serial* const serial = bound->serial.get();
    // relaxed: only this thread can have stored its own pointer.
    if (serial == nullptr || serial->serving.load(std::memory_order_relaxed) == thread) return;
    serial->mutex.lock();
    serial->serving.store(thread, std::memory_order_relaxed);
    held_ = serial;
  }
  ~RegistrarCall() {
    if (held_ == nullptr) return;
    held_->serving.store(nullptr, std::memory_order_relaxed);
    held_->mutex.unlock();
  }

 private:
  const InRegistrar inside_;
  Serial* held_ = nullptr;  // its pool exists until the call has returned
};

// Reports a message; drops it without memory. It must not throw, because a pool's call is under way.
void tell(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  guarded([&] { report::help("registrar", kHelp, topic, args.begin(), args.size()); });
}

// Reports an invalid result of the registrar; returns ERROR.
__attribute__((noinline)) Status bad_answer(const pinrail_bound_registrar_t* bound, const char* what) {
  tell("bad answer", {{"name", bound->name.c_str()}, {"what", what}});
  return PINRAIL_ERR_ERROR;
}

// Calls the embedder's function; an exception and a status that does not exist are reported, and become ERROR.
template <typename Function>
Status answer_of(const pinrail_bound_registrar_t* bound, Function&& function) {
  const char* fault;
  const Status answer = answer_of_foreign(function, &fault);
  return fault == nullptr ? answer : bad_answer(bound, fault);
}

Status call_deregister_mem(pinrail_bound_registrar_t* bound, pinrail_registration_t* reg, pinrail_reason_t reason) {
  return answer_of(bound, [&] { return bound->table.deregister_mem(bound->table.context, reg, reason); });
}

// init_tail() and finish_tail() call the registrar's optional functions for the tail, inside Turn.
Status init_tail(pinrail_bound_registrar_t* bound, pinrail_registration_t* reg) {
  if (bound->table.tail_init == nullptr || bound->table.tail_size == 0) return success();
  return answer_of(bound, [&] { return bound->table.tail_init(bound->table.context, arena::tail_of(reg)); });
}

void finish_tail(pinrail_bound_registrar_t* bound, pinrail_registration_t* reg) {
  if (bound->table.tail_fini == nullptr || bound->table.tail_size == 0) return;
  answer_of(bound, [&] {
    bound->table.tail_fini(bound->table.context, arena::tail_of(reg));
    return success();
  }).ignore();  // reported; the tail's memory is reused either way
}

// Pinrail's own fields of a registration (C6), noted before register_mem. restore() puts them back and returns false if
// the registrar overwrote one. No other thread changes the state meanwhile: only this call knows the registration.
struct OwnFields {
  pinrail_mpool_t* pool;
  uint64_t state;
  uint32_t flags, tail_size;

  bool restore(pinrail_registration_t* reg) const {
    const bool intact =
        reg->pool == pool && state::load(reg) == state && reg->flags == flags && reg->tail_size == tail_size;
    if (intact) return true;
    reg->pool = pool;
    reg->flags = flags;
    reg->tail_size = tail_size;
    __atomic_store_n(&reg->state, state, __ATOMIC_SEQ_CST);
    return false;
  }
};

// Checks that the registrar left base, length and traits alone; restores them and returns false if not. Other threads
// read these fields during the call, so they are written only if they are wrong.
bool left_alone(const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  const bool is_mapped =
      request->kind == PINRAIL_KIND_REMOTE && reg->base != nullptr;  // the registrar chooses the address
  const bool same_base = is_mapped || reg->base == request->addr;
  if (same_base && reg->length == request->length && reg->traits == request->traits) return true;
  reg->base = request->addr;
  reg->length = request->length;
  reg->traits = request->traits;
  return false;
}

constexpr const char* kWritesTooMuch = "pool, state, flags or tail_size of the registration overwritten (rule C6)";

// Registers with the device and checks the result (registrar/D2).
Status call_and_check(pinrail_bound_registrar_t* bound, const pinrail_register_request_t* request,
                      pinrail_registration_t* reg) {
  const OwnFields own{reg->pool, state::load(reg), reg->flags, reg->tail_size};
  const Status status = answer_of(bound, [&] { return bound->table.register_mem(bound->table.context, request, reg); });
  const bool is_intact = own.restore(reg);
  arena::check_tail(reg);
  const bool same_range = left_alone(request, reg);
  if (!status.ok()) {
    reg->rights = request->rights;
    return is_intact ? status : bad_answer(bound, kWritesTooMuch);
  }
  const bool rights_kept = (reg->rights & request->rights) == request->rights;
  if (is_intact && same_range && rights_kept && (reg->rights & ~uint32_t{PINRAIL_RIGHTS_MASK}) == 0) return success();
  call_deregister_mem(bound, reg, PINRAIL_REASON_RELEASED).ignore();
  if (!is_intact) return bad_answer(bound, kWritesTooMuch);
  return bad_answer(bound, "another range, or rights that are not those asked for or more");
}

// Whether the pages of such a registration are marked against forks: those of this process that it pins.
bool needs_marks(const pinrail_bound_registrar_t* bound, const pinrail_register_request_t& request) {
  return bound->marks_for_fork && (request.traits & PINRAIL_TRAIT_ON_DEMAND) == 0 && request.kind == PINRAIL_KIND_HOST;
}

// Private bit of a registration's flags: its range was marked, and is unmarked when the device has released it. A
// dmabuf or memory of a peer is not marked: where it shares addresses with host memory, the marks are that memory's.
constexpr uint32_t kIsMarked = uint32_t{1} << 31;
static_assert((PINRAIL_FLAGS_MASK & kIsMarked) == 0, "no caller can ask for it");

// Marks host memory against forks if needed, and registers. Runs inside Turn, after init_tail() and before
// finish_tail().
Status mark_and_register(pinrail_bound_registrar_t* bound, const pinrail_register_request_t* request,
                         pinrail_registration_t* reg) {
  if (!needs_marks(bound, *request)) return call_and_check(bound, request, reg);
  const Span span = Span::of(request->addr, request->length);
  Status status = fork_marks::mark(span);
  if (!status.ok()) return status;
  status = call_and_check(bound, request, reg);
  if (status.ok()) {
    reg->flags |= kIsMarked;
  } else {
    fork_marks::unmark(span, false);
  }
  return status;
}

// In debug builds a registrar that changes the range as it deregisters ends the process: by the range the pool takes it
// from its budget afterwards, and perhaps from its index.
#ifdef PINRAIL_DEBUG
void check_range(const pinrail_registration_t* reg, const Span& before) {
  const Span now = span_of(reg);
  if (now.base == before.base && now.end == before.end) return;
  std::fprintf(stderr, "pinrail: deregister_mem changed base or length of the registration at %p (rule C6)\n",
               static_cast<const void*>(reg));
  std::abort();
}
#else
void check_range(const pinrail_registration_t* /*reg*/, const Span& /*before*/) {}
#endif

// Removes the fork marks and finishes the tail, after the device has forgotten the registration.
void forget(pinrail_bound_registrar_t* bound, pinrail_registration_t* reg, pinrail_reason_t reason) {
  if ((reg->flags & kIsMarked) != 0) {
    reg->flags &= ~kIsMarked;
    fork_marks::unmark(Span::of(reg->base, reg->length), reason == PINRAIL_REASON_INVALIDATED);
  }
  finish_tail(bound, reg);
}

}  // namespace

// Registers reg with the device, after init_tail(). On an error the tail is finished, and zeroed for the pool's next
// attempt.
__attribute__((flatten)) pinrail_status_t register_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                                                       const pinrail_register_request_t* request,
                                                       pinrail_registration_t* reg) {
  Status status = check_request(bound->table, *request);
  if (!status.ok()) return status.code();
  if (thread->in_registrar == 0) own_threads::pass();  // mrall's maker may have thousands
  RegistrarCall call(bound, thread);
  status = init_tail(bound, reg);
  if (status.ok()) {
    status = mark_and_register(bound, request, reg);
    if (!status.ok()) finish_tail(bound, reg);
  }
  if (!status.ok() && bound->table.tail_size != 0) std::memset(arena::tail_of(reg), 0, bound->table.tail_size);
  return status.code();
}

static __attribute__((noinline)) void tell_that_device_keeps(const pinrail_bound_registrar_t* bound,
                                                             const pinrail_registration_t* reg, Status status) {
  char base[32];
  std::snprintf(base, sizeof(base), "%p", reg->base);
  tell("device keeps it", {{"name", bound->name.c_str()},
                           {"base", base},
                           {"length", NumberText(reg->length).c_str()},
                           {"status", status_name(status.code())}});
}

// Deregisters reg and forgets it, whatever the registrar returns; an error is reported.
__attribute__((flatten)) pinrail_status_t deregister_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                                                         pinrail_registration_t* reg, pinrail_reason_t reason) {
  if (thread->in_registrar == 0) own_threads::pass();  // the gc thread may have thousands
  RegistrarCall call(bound, thread);
  const Span range = span_of(reg);
  const Status status = call_deregister_mem(bound, reg, reason);
  arena::check_tail(reg);
  check_range(reg, range);
  forget(bound, reg, reason);
  if (!status.ok()) tell_that_device_keeps(bound, reg, status);
  return status.code();
}

// As deregister_mem(), without calling the device.
void abandon_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                 pinrail_reason_t reason) {
  RegistrarCall call(bound, thread);
  forget(bound, reg, reason);
}

// Calls an optional function of the table. RegistrarCall serialises it. NOT_SUPPORTED: it is missing.
template <typename Function, typename... Arguments>
static pinrail_status_t call_optional(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, Function function,
                                      Arguments... arguments) {
  if (function == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const RegistrarCall call(bound, thread);
  return answer_of(bound, [&] { return function(bound->table.context, arguments...); }).code();
}

pinrail_status_t device_read(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                             const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  return call_optional(bound, thread, bound->table.device_read, reg, offset, into, length);
}

pinrail_status_t device_write(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                              const pinrail_registration_t* reg, size_t offset, const void* from, size_t length) {
  return call_optional(bound, thread, bound->table.device_write, reg, offset, from, length);
}

pinrail_status_t advise(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, const pinrail_registration_t* reg,
                        size_t offset, size_t length, pinrail_advice_t advice) {
  return call_optional(bound, thread, bound->table.advise, reg, offset, length, advice);
}

// Tells the registrar that the process was restarted; SUCCESS if it has no such function.
pinrail_status_t restart(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread) {
  if (bound->table.restart == nullptr) return PINRAIL_SUCCESS;
  return call_optional(bound, thread, bound->table.restart);
}

// Any number of threads at a time, whatever the registrar's mode.
pinrail_status_t order(const pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                       Order order, void* stream) {
  const auto function = bound->table.*order;
  if (function == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const InRegistrar inside(thread);
  return answer_of(bound, [&] { return function(bound->table.context, reg, stream); }).code();
}

}  // namespace pinrail::registrar
