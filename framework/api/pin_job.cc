// SPDX-License-Identifier: BSD-3-Clause
// API context, inside a deferred::Call. Register calls are made outside of it and without a lock. Functions whose names
// end in _locked run under the job's lock; the others take it where they need it.
#include "framework/api/pin_job.h"

#include <unistd.h>

#include "base/core/machine.h"
#include "base/registration/registration.h"
#include "framework/api/api.h"
#include "framework/mpool/pool_area.h"

namespace pinrail::api {
namespace {

using mpool::PinTable;

constexpr uint32_t kWriting = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_REMOTE_ATOMIC;

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
  const uint64_t memlock = mpool::memlock_limit();
  if (is_beyond(now.registered_bytes, bytes, memlock)) return "\"ulimit -l\" (" + std::to_string(memlock) + " bytes)";
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

Status list_registered(const pinrail_mpool_t* pool, const Span& span, uint32_t access, std::vector<Span>* spans_out) {
  if (pool->ops->query == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const auto visit = [](void* spans, uintptr_t base, size_t length) {
    static_cast<std::vector<Span>*>(spans)->push_back(Span::of(base, length));
  };
  return pool->ops->query(pool->module, thread, span.base, span.length(), access, visit, spans_out);
}

bool is_registered(const pinrail_mpool_t* pool, const Span& span, uint32_t access) {
  std::vector<Span> there;
  if (!list_registered(pool, span, access, &there).ok()) return false;
  return std::any_of(there.begin(), there.end(), [&](const Span& each) { return each.contains(span); });
}

void drop_pin(pinrail_handle_t handle) {
  const deferred::CallerScope outside;
  if (handle.reg != nullptr) Status(pinrail_mpool_deregister(handle)).ignore();  // a drop of an orphan only counts
}

void drop_pins(PinTable::Handles* handles) {
  while (!handles->empty()) {
    const pinrail_handle_t handle = handles->back();
    handles->pop_back();
    drop_pin(handle);
  }
}

void drop_pins(PinTable::Pins* pins) {
  for (auto& [key, pin] : *pins) drop_pins(&pin.handles);
}

PinJob::PinJob(const Wanted& wanted, PinPlan plan, std::unique_ptr<OwnFile> dmabuf)
    : wanted_(wanted),
      plan_(std::move(plan)),
      chunks_(plan_.chunk_count(), Chunk::queued),
      queued_(plan_.chunk_count()),
      phase_(plan_.chunk_count() == 0 ? Phase::finished : Phase::working),
      dmabuf_(std::move(dmabuf)) {
  ranges_.resize(plan_.ranges().size());
  for (size_t i = 0; i < ranges_.size(); ++i) ranges_[i].missing = plan_.chunks_of(plan_.ranges()[i]);
}

// How many registrations must be made at least. Chunks of ranges that overlap may be equal, or contain one another:
// then one registration is enough.
uint64_t PinJob::least_registrations() const {
  std::vector<Span> chunks;
  for (size_t i = 0; i < plan_.chunk_count(); ++i) {
    const Span chunk = plan_.chunk(i);
    if (!is_registered(pool(), chunk, wanted_.access)) chunks.push_back(chunk);
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Span& a, const Span& b) { return a.base != b.base ? a.base < b.base : a.end > b.end; });
  uintptr_t highest = 0;
  uint64_t count = 0;
  for (const Span& chunk : chunks) {
    if (chunk.end > highest) ++count;
    highest = std::max(highest, chunk.end);
  }
  return count;
}

bool PinJob::can_never_fit() {
  if (is_partial()) return false;
  auto limits = sized<pinrail_mpool_stats_t>();
  pool()->ops->counters(pool()->module, &limits);
  limits.registered_bytes = limits.registered_count = 0;
  if (limits.size_limit == 0 || limits.evicts_idle_only != 0) limits.size_limit = UINT64_MAX;
  if (limits.count_limit == 0) limits.count_limit = UINT64_MAX;
  if (plan_.bytes() <= limits.size_limit && plan_.chunk_count() <= limits.count_limit) return false;
  // Registrations that are there count as well, so more bytes than the limit never fit, and no chunk needs a look.
  std::vector<Span> asked;
  for (const PinPlan::Range& range : plan_.ranges()) {
    const bool is_free = mpool::charge_of(range.span.length()) == 0 && plan_.chunks_of(range) == 1;
    if (!is_free) asked.push_back(range.span);
  }
  const uint64_t bytes = union_length(&asked);
  const uint64_t count = bytes > limits.size_limit ? 1 : least_registrations();
  if (bytes <= limits.size_limit && count <= limits.count_limit) return false;
  report_limit(plan_.bytes(), 0, limit_that_ends(pool(), limits, bytes, count).c_str());
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
      if (queued_ == 0) return;
      while (chunks_[next_] != Chunk::queued) next_ = (next_ + 1) % chunks_.size();
      number = next_;
      if (!take_locked(number)) return;
    }
    run_chunk(number);
  }
}

bool PinJob::take_locked(size_t number) {
  if (phase_ != Phase::working || chunks_[number] != Chunk::queued) return false;
  chunks_[number] = Chunk::running;
  --queued_;
  ++running_;
  return true;
}

void PinJob::run_chunk(size_t number) {
  const own_threads::Whole whole;
  end_chunk(number, guarded([&] { return register_chunk(number); }));
}

// Takes a reference for the part of each range in the chunk. Returns the first error. A chunk of several ranges is
// registered as a whole before, so that they are hits. If the device refuses that, for example because the chunk spans
// different mappings, each range is registered by itself; and in a pool EXACT, where none would be a hit.
Status PinJob::register_chunk(size_t number) {
  const Span span = plan_.chunk(number);
  if ((wanted_.flags & PINRAIL_PREPIN_HUGE_PAGES) != 0) request_huge_pages(span);
  if (wanted_.prefaults) prefault(span, (wanted_.access & kWriting) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  pinrail_handle_t whole = {nullptr, 0};
  if (plan_.is_shared(number) && !pool()->is_exact) acquire(span, &whole).ignore();
  Status first_error = success();
  plan_.for_ranges(number, [&](size_t range, const Span& part) {
    if (!first_error.ok() && !is_partial()) return;
    pinrail_handle_t handle = {nullptr, 0};
    Status status = acquire(part, &handle);
    if (status.ok()) status = keep(range, handle);
    if (status.ok()) return;
    drop_pin(handle);
    first_error.keep_first(status);
    Guard guard(mutex_);
    if (ranges_[range].status == PINRAIL_ERR_ERROR) ranges_[range].status = status.code();
  });
  drop_pin(whole);
  return first_error;
}

// Takes a reference of a registration of the span that the pool's index has, and that is not evicted. NOT_SUPPORTED:
// the pool does not keep such memory. A registration that another thread's event ended at once is made again. What is
// not indexed then never will be. The descriptor stays until the job has finished, which it cannot while one of its
// chunks is being registered.
Status PinJob::acquire(const Span& span, pinrail_handle_t* handle_out) const NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kTries = 2;
  const PinOptions& options = wanted_.registration;
  const deferred::CallerScope outside;
  pinrail_register_options_t own{};
  if (dmabuf_ != nullptr && !dmabuf_->is_open()) {  // the program has closed the job's copy
    help("dmabuf closed", {});
    return PINRAIL_ERR_ERROR;
  }
  if (options.is_any && !options.at(span.base, &own)) {
    return refuse("pinrail_mpool_prepin", "a range's iova or its offset in the dmabuf would be negative or too large");
  }
  for (int i = 0; i < kTries; ++i) {
    pinrail_handle_t handle;
    const Status status =
        pinrail_mpool_register_with(pool(), pointer(span.base), span.length(), wanted_.access, PINRAIL_FLAG_PERSISTENT,
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

// Takes over the reference, unless there is no memory for it.
Status PinJob::keep(size_t range, pinrail_handle_t handle) {
  return guarded([&] {
    Guard guard(mutex_);
    Range& own = ranges_[range];
    own.handles.push_back(handle);
    if (--own.missing == 0 && own.status == PINRAIL_ERR_ERROR) own.status = PINRAIL_SUCCESS;
  });
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
      error_.keep_first(status);
      if (!is_partial()) phase_ = Phase::stopping;
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
