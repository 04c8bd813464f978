// SPDX-License-Identifier: BSD-3-Clause
// How a job ends, and what those see who wait for it. API context, inside a deferred::Call. Functions whose names end
// in _locked run under the job's lock; the others take it where they need it.
#include "base/core/status.h"
#include "base/registration/registration.h"
#include "base/sync/call_scope.h"
#include "base/sync/lock.h"
#include "base/sync/own_threads.h"
#include "framework/api/api.h"
#include "framework/api/pin_job.h"

namespace pinrail::api {

using mpool::PinTable;

// Keeps pin_job/J2.
void PinJob::finish_if_last() {
  {
    Guard guard(mutex_);
    if (finishing_ || running_ != 0 || (queued_ != 0 && !stopping_)) return;
    finishing_ = true;
  }
  finish();
  std::unique_ptr<OwnFile> unused;  // closed without the lock
  Guard guard(mutex_);
  unused.swap(dmabuf_);
  finished_ = true;
  changed_.notify_all();
}

// No chunk is running, and none will be. Keeps pin_job/J3.
void PinJob::finish() {
  const bool all = (wanted_.flags & PINRAIL_PREPIN_PARTIAL) == 0;
  bool keeps = false;
  {
    Guard guard(mutex_);
    keeps = !cancelled_ && !(all && failed_);
    status_ = PINRAIL_ERR_ERROR;  // until all references are in place
  }
  size_t ended = 0;
  for (; ended < plan_.ranges().size(); ++ended) {
    if (!end_range(ended, keeps) && all) break;  // there was no memory for its pin
  }
  if (ended != plan_.ranges().size()) {
    for (size_t i = 0; i < ended; ++i) take_pin_back(i);
    for (size_t i = ended; i < plan_.ranges().size(); ++i) (void)end_range(i, false);
  }
  Guard guard(mutex_);
  status_ = cancelled_ ? Status(PINRAIL_ERR_NOT_FOUND) : first_error_locked();
}

PinTable::Key PinJob::key_of(size_t range) const {
  const Span& span = plan_.ranges()[range].span;
  return {span.base, span.length(), wanted_.access};
}

// Turns the references of a range that is registered as a whole into a pin, if `keeps`, and drops all others. False:
// the range lacks memory for its pin.
bool PinJob::end_range(size_t range, bool keeps) {
  PinTable::Handles handles;
  {
    Guard guard(mutex_);
    handles.swap(ranges_[range].handles);
    keeps = keeps && ranges_[range].status == PINRAIL_SUCCESS;
  }
  Status added = success();
  if (keeps) {
    // Requests find the registration unless an event has ended it.
    const auto is_live = [](const pinrail_handle_t& handle) { return is_indexed(handle.reg); };
    added = guarded([&] { pool()->pins.add(key_of(range), &handles, is_live); });
    Guard guard(mutex_);
    ranges_[range].has_pin = added.ok();
    if (!added.ok()) ranges_[range].status = added.code();
    if (!added.ok()) failed_ = true;
  }
  drop_all(&handles);
  return added.ok();
}

// If it has one.
void PinJob::take_pin_back(size_t range) {
  {
    Guard guard(mutex_);
    if (!ranges_[range].has_pin) return;
    ranges_[range].has_pin = false;
  }
  PinTable::Handles handles;
  pool()->pins.remove_one(key_of(range), &handles);
  drop_all(&handles);
}

void PinJob::drop_all(PinTable::Handles* handles) {
  const deferred::CallerScope outside;
  drop_pins(handles);
}

// The error of the first range, in the caller's order, that has one of its own.
Status PinJob::first_error_locked() const {
  if (!failed_) return success();
  size_t first = SIZE_MAX;
  Status status = chunk_error_.ok() ? Status(PINRAIL_ERR_ERROR) : chunk_error_;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const pinrail_status_t own = ranges_[i].status;
    if (own == PINRAIL_SUCCESS || own == PINRAIL_ERR_ERROR || plan_.ranges()[i].number >= first) continue;
    first = plan_.ranges()[i].number;
    status = own;
  }
  return status;
}

Status PinJob::wait(pinrail_status_t* statuses_out) {
  Guard guard(mutex_);
  while (!finished_) changed_.wait(mutex_);
  for (size_t i = 0; i < ranges_.size() && statuses_out != nullptr; ++i) {
    statuses_out[plan_.ranges()[i].number] = ranges_[i].status;
  }
  return status_;
}

Status PinJob::wait_range(const Span& span) {
  bool is_any = false;
  {
    Guard guard(mutex_);
    plan_.for_chunks(span, [&](size_t number) {
      assert_held(mutex_, LockRank::work);
      is_any = true;
      if (chunks_[number] == Chunk::queued) urgent_.push_back(number);
    });
  }
  if (!is_any) return PINRAIL_ERR_NOT_FOUND;
  pin_now(span);
  Guard guard(mutex_);
  Status status = cancelled_ ? Status(PINRAIL_ERR_NOT_FOUND) : success();
  plan_.for_chunks(span, [&](size_t number) {
    assert_held(mutex_, LockRank::work);
    if (chunks_[number] != Chunk::pinned && status.ok()) status = first_error_locked();
    if (chunks_[number] != Chunk::pinned && status.ok()) status = PINRAIL_ERR_ERROR;
  });
  // What was registered is given back, or was.
  if (status.ok() && failed_ && (wanted_.flags & PINRAIL_PREPIN_PARTIAL) == 0) status = first_error_locked();
  return status;
}

void PinJob::pin_now(const Span& span) {
  plan_.for_chunks(span, [&](size_t number) {
    bool is_own = false;
    {
      Guard guard(mutex_);
      is_own = take_locked(number);
      while (!is_own && chunks_[number] == Chunk::running) changed_.wait(mutex_);
    }
    if (is_own) run_chunk(number);
  });
}

bool PinJob::has_queued(const Span& span, uint32_t access) {
  const bool serves = (access & PINRAIL_TRAITS_MASK) == (wanted_.access & PINRAIL_TRAITS_MASK) &&
                      (access & PINRAIL_RIGHTS_MASK & ~wanted_.access) == 0;
  size_t number = 0;
  if (!serves || !plan_.find_around(span, &number)) return false;
  Guard guard(mutex_);
  return chunks_[number] == Chunk::running || (chunks_[number] == Chunk::queued && !stopping_);
}

bool PinJob::is_unfinished() {
  Guard guard(mutex_);
  return !finished_;
}

void PinJob::stop() {
  {
    Guard guard(mutex_);
    if (!finishing_ && !stopping_) cancelled_ = stopping_ = true;
  }
  finish_if_last();
  std::vector<OwnThread> helpers;
  {
    Guard guard(mutex_);
    while (!finished_) changed_.wait(mutex_);
    helpers.swap(helpers_);
  }
  const own_threads::Work ending;
  for (OwnThread& helper_thread : helpers) helper_thread.join();
}

void PinJob::read_progress(pinrail_prepin_progress_t* progress_out) {
  Guard guard(mutex_);
  progress_out->total_bytes = plan_.bytes();
  progress_out->pinned_bytes = pinned_bytes_;
  progress_out->huge_bytes = huge_bytes_;
  progress_out->total_chunks = chunks_.size();
  progress_out->pinned_chunks = pinned_;
  progress_out->limit = limit_.empty() ? nullptr : limit_.c_str();
  progress_out->is_finished = finished_ ? 1 : 0;
  progress_out->status = finished_ ? status_.code() : PINRAIL_SUCCESS;
}

}  // namespace pinrail::api
