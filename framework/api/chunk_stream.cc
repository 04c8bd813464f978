// SPDX-License-Identifier: BSD-3-Clause
// API context, inside a deferred::Call. Register calls are made outside of it and without a lock. Functions whose names
// end in _locked run under the stream's lock; the others take it where they need it.
#include "framework/api/chunk_stream.h"

#include "base/core/guarded.h"
#include "base/registration/registration.h"
#include "base/sync/call_scope.h"
#include "base/sync/own_threads.h"
#include "framework/api/pin_job.h"

namespace pinrail::api {
namespace {

// Whether the pool still caches the registration, so that no event has ended it.
bool is_cached(pinrail_handle_t handle) { return is_indexed(handle.reg); }

}  // namespace

// The caller becomes the one that registers.
Span ChunkStream::begin_locked() {
  registering_ = true;
  const size_t to_cut = wanted_.step - next_ % wanted_.step;
  return Span::of(next_, std::min(to_cut, static_cast<size_t>(wanted_.span.end - next_)));
}

void ChunkStream::end(const Span& span, Status status) {
  Guard guard(mutex_);
  registering_ = false;
  paused_ = !status.ok();
  if (status.ok()) next_ = span.end;
  changed_.notify_all();
}

Status ChunkStream::register_piece(const Span& span, pinrail_handle_t* handle_out) {
  const deferred::CallerScope outside;
  void* const addr = reinterpret_cast<void*>(span.base);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  return pinrail_mpool_register(wanted_.pool, addr, span.length(), wanted_.access, wanted_.flags, handle_out);
}

// Whether the first chunk that is ready was not ended by an event.
bool ChunkStream::has_valid_locked() const { return !ready_.empty() && is_cached(ready_.front().handle); }

// Gives back what is ready, the last chunk first, so that next_ remains the end of what is ready.
void ChunkStream::drop_ready() {
  for (;;) {
    pinrail_handle_t handle;
    {
      Guard guard(mutex_);
      if (ready_.empty()) return;
      handle = ready_.back().handle;
      next_ = ready_.back().span.base;
      ready_.pop_back();
    }
    const deferred::CallerScope outside;
    drop_pin(handle);
  }
}

// Gives back what is ready, if anything is, and begins the first chunk of it again, or the next one (chunk_stream/C4).
// The caller is the one that registers.
Span ChunkStream::begin_again() {
  drop_ready();
  Guard guard(mutex_);
  return begin_locked();
}

Status ChunkStream::next(pinrail_handle_t* handle_out, Span* span_out) {
  {
    Guard guard(mutex_);
    bool is_valid = has_valid_locked();
    for (; !is_valid && registering_; is_valid = has_valid_locked()) changed_.wait(mutex_);
    if (is_valid) {
      *span_out = ready_.front().span;
      *handle_out = ready_.front().handle;
      ready_.pop_front();
      changed_.notify_all();
      return success();
    }
    if (stopped_ || (ready_.empty() && next_ >= wanted_.span.end)) return PINRAIL_ERR_NOT_FOUND;
    registering_ = true;
  }
  const Span span = begin_again();
  const Status status = register_piece(span, handle_out);
  end(span, status);
  if (status.ok()) *span_out = span;
  return status;
}

void ChunkStream::run_helper(void* stream) {
  const deferred::Call call;
  static_cast<ChunkStream*>(stream)->run_ahead();
}

// Waits until the helper thread may register, and begins the next chunk. False: it ends. After the last chunk it waits,
// too, because chunks may have to be registered again.
bool ChunkStream::begin_ahead(Span* span_out) {
  Guard guard(mutex_);
  for (;;) {
    if (stopped_) return false;
    const bool is_its_turn = !registering_ && !paused_ && next_ < wanted_.span.end;
    if (is_its_turn && ready_.size() < wanted_.ahead) break;
    changed_.wait(mutex_);
  }
  *span_out = begin_locked();
  return true;
}

// The helper thread: keeps `ahead` chunks ready, until two in a row cannot be kept. For one an event may have been
// faster; what the pool does not cache would be registered twice for each chunk.
void ChunkStream::run_ahead() {
  Span span;
  for (int in_a_row = 0; in_a_row < 2 && begin_ahead(&span);) {
    const own_threads::Work work;
    pinrail_handle_t handle;
    Status status = register_piece(span, &handle);
    const bool is_registered = status.ok();
    if (is_registered) status = keep(span, handle);
    end(span, status);
    in_a_row = is_registered && status.is(PINRAIL_ERR_NOT_SUPPORTED) ? in_a_row + 1 : 0;
  }
}

// NOT_SUPPORTED: the pool does not cache it, or an event was faster. OUT_OF_RESOURCE: there is no memory for it. Either
// way its reference was dropped.
Status ChunkStream::keep(const Span& span, pinrail_handle_t handle) {
  const Status kept = guarded([&]() -> Status {
    if (!is_cached(handle)) return PINRAIL_ERR_NOT_SUPPORTED;
    Guard guard(mutex_);
    ready_.push_back({span, handle});
    return success();
  });
  if (kept.ok()) return kept;
  const deferred::CallerScope outside;
  drop_pin(handle);
  return kept;
}

bool ChunkStream::is_unfinished() {
  Guard guard(mutex_);
  return !stopped_;
}

void ChunkStream::stop() {
  {
    Guard guard(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  {
    const own_threads::Work ending;
    helper_.join();
  }
  drop_ready();
}

}  // namespace pinrail::api
