// SPDX-License-Identifier: BSD-3-Clause
// API context, inside a deferred::Call. Register calls are made outside of it and without a lock. Functions whose names
// end in _locked run under the job's lock; the others take it where they need it.
#include "framework/api/pin_job.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/core/machine.h"
#include "base/core/status.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "base/sync/lock.h"
#include "base/sync/own_threads.h"
#include "framework/api/api.h"

namespace pinrail::api {
namespace {

using mpool::PinTable;

constexpr uint32_t kWriting = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_REMOTE_ATOMIC;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

pinrail_mpool_stats_t stats_of(pinrail_mpool_t* pool) {
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  Status(pool->ops->stats(pool->module, &stats)).ignore();
  return stats;
}

bool is_beyond(uint64_t used, uint64_t more, uint64_t limit) { return used > limit || more > limit - used; }

// The limit that a registration of so many bytes meets, after so many are registered.
std::string limit_that_ends(const pinrail_mpool_t* pool, const pinrail_mpool_stats_t& now, uint64_t bytes,
                            uint64_t count) {
  const std::string prefix = "mpool_" + pool->name;
  const bool is_binding = now.evicts_idle_only == 0;
  if (is_binding && is_beyond(now.registered_bytes, bytes, now.size_limit)) {
    return prefix + "_size_limit (" + std::to_string(now.size_limit) + " bytes)";
  }
  if (is_beyond(now.registered_count, count, now.count_limit)) {
    return prefix + "_count_limit (" + std::to_string(now.count_limit) + " registrations)";
  }
  rlimit memlock{};
  if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && is_beyond(now.registered_bytes, bytes, memlock.rlim_cur)) {
    return "\"ulimit -l\" (" + std::to_string(memlock.rlim_cur) + " bytes)";
  }
  return "the device's, by registrar " + pool->registrar->name;
}

}  // namespace

bool PinOptions::at(uintptr_t address, pinrail_register_options_t* options_out) const {
  *options_out = options;
  const auto shift = [&](uint64_t* value) {
    const uint64_t before = *value;
    *value += address - origin;
    return address < origin ? *value < before : *value >= before;
  };
  const bool is_dmabuf = options.dmabuf_fd >= 0;
  if (is_dmabuf && !shift(&options_out->dmabuf_offset)) return false;
  return options.iova == 0 || (shift(&options_out->iova) && options_out->iova != 0);  // 0 would ask for no iova
}

// A registration that another thread's event ended at once is made again. What is not indexed then never will be.
Status acquire_pin(pinrail_mpool_t* pool, const Span& span, uint32_t access, const PinOptions& options,
                   pinrail_handle_t* handle_out) {
  constexpr int kTries = 2;
  pinrail_register_options_t own{};
  if (options.is_any && !options.at(span.base, &own)) {
    return refuse("pinrail_mpool_prepin", "a range's iova or its offset in the dmabuf would be negative or too large");
  }
  for (int i = 0; i < kTries; ++i) {
    pinrail_handle_t handle;
    const Status status =
        pinrail_mpool_register_with(pool, pointer(span.base), span.length(), access, PINRAIL_FLAG_PERSISTENT,
                                    options.is_any ? &own : nullptr, &handle);
    if (!status.ok()) return status;
    if (is_indexed(handle.reg)) {
      *handle_out = handle;
      return status;
    }
    drop_pin(handle);
  }
  return PINRAIL_ERR_NOT_SUPPORTED;
}

void drop_pin(pinrail_handle_t handle) {
  if (handle.reg != nullptr) Status(pinrail_mpool_deregister(handle)).ignore();  // a drop of an orphan only counts
}

void drop_pins(PinTable::Handles* handles) {
  while (!handles->empty()) {
    const pinrail_handle_t handle = handles->back();
    handles->pop_back();
    drop_pin(handle);
  }
}

PinJob::PinJob(const Wanted& wanted, PinPlan plan, std::unique_ptr<OwnFile> dmabuf)
    : wanted_(wanted),
      plan_(std::move(plan)),
      chunks_(plan_.chunk_count(), Chunk::queued),
      queued_(plan_.chunk_count()),
      dmabuf_(std::move(dmabuf)) {
  ranges_.resize(plan_.ranges().size());
  for (size_t i = 0; i < ranges_.size(); ++i) ranges_[i].missing = plan_.chunks_of(plan_.ranges()[i]);
  finished_ = finishing_ = plan_.chunk_count() == 0;
}

// Whether one registration contains the span, so that pinning it takes no room.
bool PinJob::is_registered(const Span& span) const {
  struct Seen {
    const Span& span;
    bool is_inside;
  } seen{span, false};
  const auto visit = [](void* to, uintptr_t base, size_t length) {
    auto* const seen_by_now = static_cast<Seen*>(to);
    if (Span::of(base, length).contains(seen_by_now->span)) seen_by_now->is_inside = true;
  };
  pinrail_mpool_t* const of = pool();
  pinrail_thread_t* const thread = thread::current();
  if (of->ops->query == nullptr || thread == nullptr) return false;
  Status(of->ops->query(of->module, thread, span.base, span.length(), wanted_.access, visit, &seen)).ignore();
  return seen.is_inside;
}

bool PinJob::can_never_fit() {
  if ((wanted_.flags & PINRAIL_PREPIN_PARTIAL) != 0) return false;
  pinrail_mpool_stats_t limits{};
  limits.size = sizeof(limits);
  pool()->ops->counters(pool()->module, &limits);
  limits.registered_bytes = limits.registered_count = 0;
  if (limits.size_limit == 0 || limits.evicts_idle_only != 0) limits.size_limit = UINT64_MAX;
  if (limits.count_limit == 0) limits.count_limit = UINT64_MAX;
  if (plan_.bytes() <= limits.size_limit && plan_.chunk_count() <= limits.count_limit) return false;
  // Registrations that are there count as well, so more bytes than the limit never fit, and no chunk needs a look.
  std::vector<Span> asked;
  for (const PinPlan::Range& range : plan_.ranges()) asked.push_back(range.span);
  const uint64_t all_bytes = union_length(&asked);
  if (all_bytes > limits.size_limit) return reports_limit(limits, all_bytes, 1);
  // Chunks of ranges that overlap may be equal, or contain one another: then one registration is enough.
  std::vector<Span> chunks;
  for (size_t i = 0; i < plan_.chunk_count(); ++i) {
    const Span chunk = plan_.chunk(i);
    if (!is_registered(chunk)) chunks.push_back(chunk);
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Span& a, const Span& b) { return a.base != b.base ? a.base < b.base : a.end > b.end; });
  uintptr_t highest = 0;
  uint64_t count = 0;
  for (const Span& chunk : chunks) {
    if (chunk.end > highest) ++count;
    highest = std::max(highest, chunk.end);
  }
  const uint64_t bytes = union_length(&chunks);
  return (bytes > limits.size_limit || count > limits.count_limit) && reports_limit(limits, bytes, count);
}

// True. Reports the limit that so many bytes or registrations exceed.
bool PinJob::reports_limit(const pinrail_mpool_stats_t& limits, uint64_t bytes, uint64_t count) const {
  const std::string limit = limit_that_ends(pool(), limits, bytes, count);
  report_limit(plan_.bytes(), 0, limit.c_str());
  return true;
}

bool PinJob::start_helpers(unsigned count) {
  // All memory comes first: helpers that run already may have ended the job when the next one lacks memory, and the
  // caller would hear of a failure and have everything pinned.
  std::vector<OwnThread> helpers;
  const Status allocated =
      guarded([&] { helpers = std::vector<OwnThread>(std::min<size_t>(count, plan_.chunk_count())); });
  if (!allocated.ok()) return false;
  Guard guard(mutex_);
  helpers_.swap(helpers);
  bool is_any = false;
  for (OwnThread& helper_thread : helpers_) {
    if (!helper_thread.start("pinrail-pin", helper, this)) break;
    is_any = true;
  }
  return is_any;
}

// The body of a helper thread.
void PinJob::helper(void* job) {
  auto* const self = static_cast<PinJob*>(job);
  const own_threads::Work at_work;
  (void)bind_near(self->wanted_.numa_node);
  const deferred::Call call;
  self->work();
}

void PinJob::work() {
  for (;;) {
    own_threads::pass();
    size_t number = 0;
    {
      Guard guard(mutex_);
      if (!take_next_locked(&number)) return;
    }
    run_chunk(number);
  }
}

bool PinJob::take_next_locked(size_t* number_out) {
  while (!urgent_.empty()) {
    *number_out = urgent_.front();
    urgent_.pop_front();
    if (take_locked(*number_out)) return true;
  }
  for (; next_ < chunks_.size() && !stopping_; ++next_) {
    *number_out = next_;
    if (take_locked(next_)) return true;
  }
  return false;
}

bool PinJob::take_locked(size_t number) {
  if (stopping_ || chunks_[number] != Chunk::queued) return false;
  chunks_[number] = Chunk::running;
  --queued_;
  ++running_;
  return true;
}

void PinJob::run_chunk(size_t number) {
  end_chunk(number, guarded([&] { return register_chunk(number); }));
}

// Registers the chunk as a whole, so that its ranges are hits. If the device refuses that, for example because the
// chunk spans different mappings, each range is registered by itself; and in a pool EXACT, where none would be a hit.
Status PinJob::register_chunk(size_t number) {
  const Span span = plan_.chunk(number);
  if ((wanted_.flags & PINRAIL_PREPIN_HUGE_PAGES) != 0) request_huge_pages(span);
  if (wanted_.prefaults) {
    prefault(span, (wanted_.access & kWriting) != 0 ? Populate::for_writing : Populate::for_reading);
  }
  pinrail_handle_t whole = {nullptr, 0};
  const bool is_shared = plan_.is_shared(number);
  Status status = is_shared && pool()->is_exact ? success() : acquire_outside(span, &whole);
  if (is_shared) {
    status = register_ranges(number);
  } else {
    plan_.for_ranges(number, [&](size_t range, const Span&) {
      if (status.ok()) status = keep(range, whole);
      if (status.ok()) whole = {nullptr, 0};
      if (!status.ok()) fail_range(range, status);
    });
  }
  drop_outside(whole);
  return status;
}

// A reference for the part of each range in the chunk. Returns the first error.
Status PinJob::register_ranges(size_t number) {
  Status first_error = success();
  plan_.for_ranges(number, [&](size_t range, const Span& part) {
    if (!first_error.ok() && (wanted_.flags & PINRAIL_PREPIN_PARTIAL) == 0) return;
    pinrail_handle_t handle = {nullptr, 0};
    Status status = acquire_outside(part, &handle);
    if (status.ok()) status = keep(range, handle);
    if (status.ok()) return;
    drop_outside(handle);
    fail_range(range, status);
    if (first_error.ok()) first_error = status;
  });
  return first_error;
}

// The descriptor stays until the job has finished, which it cannot while one of its chunks is being registered.
Status PinJob::acquire_outside(const Span& span, pinrail_handle_t* handle_out) const NO_THREAD_SAFETY_ANALYSIS {
  const deferred::CallerScope outside;
  if (dmabuf_ != nullptr && !dmabuf_->is_open()) {
    report_closed_dmabuf();
    return PINRAIL_ERR_ERROR;
  }
  return acquire_pin(wanted_.pool, span, wanted_.access, wanted_.registration, handle_out);
}

void PinJob::drop_outside(pinrail_handle_t handle) {
  const deferred::CallerScope outside;
  drop_pin(handle);
}

// Takes over the reference, unless there is no memory for it.
Status PinJob::keep(size_t range, pinrail_handle_t handle) {
  return guarded([&] {
    Guard guard(mutex_);
    Range& own = ranges_[range];
    own.handles.push_back(handle);
    if (--own.missing == 0 && own.status == PINRAIL_ERR_ERROR) own.status = PINRAIL_SUCCESS;
  });
}

void PinJob::fail_range(size_t range, Status status) {
  Guard guard(mutex_);
  if (ranges_[range].status == PINRAIL_ERR_ERROR) ranges_[range].status = status.code();
}

void PinJob::end_chunk(size_t number, Status status) {
  const size_t bytes = plan_.chunk(number).length();
  if (status.is_lack()) name_limit(bytes);
  const bool counts = status.ok() && (wanted_.flags & PINRAIL_PREPIN_HUGE_PAGES) != 0;
  const uint64_t huge = counts ? huge_bytes(plan_.chunk(number)) : 0;
  {
    Guard guard(mutex_);
    chunks_[number] = status.ok() ? Chunk::pinned : Chunk::failed;
    --running_;
    if (status.ok()) {
      ++pinned_;
      pinned_bytes_ += bytes;
      huge_bytes_ += std::min<uint64_t>(huge, bytes);
    } else {
      failed_ = true;
      if (chunk_error_.ok()) chunk_error_ = status;
      if ((wanted_.flags & PINRAIL_PREPIN_PARTIAL) == 0) stopping_ = true;
    }
    changed_.notify_all();
  }
  finish_if_last();
}

// Names the limit, and reports it once. Without memory for that, it stays unnamed.
void PinJob::name_limit(size_t bytes) {
  (void)guarded([&] {
    std::string limit = limit_that_ends(pool(), stats_of(pool()), bytes, 1);
    uint64_t pinned = 0;
    {
      Guard guard(mutex_);
      if (!limit_.empty()) return;
      limit_ = limit;
      pinned = pinned_bytes_;
    }
    report_limit(plan_.bytes(), pinned, limit.c_str());
  });
}

}  // namespace pinrail::api
