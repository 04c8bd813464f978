// SPDX-License-Identifier: BSD-3-Clause
// chunk_stream.h - registers a large range chunk by chunk and hands out the registrations in order, on request or some
// chunks ahead of the caller by a helper thread.
//
// Owns     the references of the chunks that are registered and not handed out; its helper thread.
// Threads  next() and stop() may run together with the helper thread; a stream has one caller at a time. API context,
//          inside a deferred::Call; the caller holds no lock.
//
// At most one thread registers at a time, with no lock held: chunks come in the order of addresses. At most `ahead`
// chunks are registered and not handed out.
//
// chunk_stream/C3  After an error the helper thread pauses until the caller has registered that chunk by itself.
// chunk_stream/C4  A chunk is not handed out if an event has ended its registration since it was made: it is registered
//     anew, and so is what was ready behind it. What the pool does not cache, no event ends: it is not kept ahead.
#ifndef PINRAIL_FRAMEWORK_API_CHUNK_STREAM_H
#define PINRAIL_FRAMEWORK_API_CHUNK_STREAM_H

#include <deque>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/sync/lock.h"
#include "base/sync/own_thread.h"
#include "framework/mpool/mpool.h"

namespace pinrail::api {

class ChunkStream : public mpool::PoolWork {
 public:
  struct Wanted {
    pinrail_mpool_t* pool;
    Span span;
    size_t step;  // longest chunk; cuts are at its multiples
    uint32_t access;
    uint32_t flags;  // PINRAIL_FLAG_*
    uint32_t ahead;  // 0: no helper thread
  };
  explicit ChunkStream(const Wanted& wanted) : wanted_(wanted), next_(wanted.span.base) {}

  pinrail_mpool_t* pool() const { return wanted_.pool; }
  // Starts the helper thread. False: it cannot be started; the stream works without it.
  bool start_helper() { return helper_.start("pinrail-ahead", run_helper, this); }
  // Hands out the next chunk. NOT_FOUND: there are no more. Other errors are the registrar's; the call may be repeated.
  Status next(pinrail_handle_t* handle_out, Span* span_out);

  bool is_unfinished() override;
  // Drops what was not handed out. Further calls of next() return NOT_FOUND.
  void stop() override;

 private:
  struct Piece {
    Span span;
    pinrail_handle_t handle;
  };

  static void run_helper(void* stream);
  void run_ahead();
  bool begin_ahead(Span* span_out);
  Span begin_again();
  Span begin_locked() REQUIRES(mutex_);
  bool has_valid_locked() const REQUIRES(mutex_);
  void drop_ready();
  void end(const Span& span, Status status);
  Status register_piece(const Span& span, pinrail_handle_t* handle_out);
  Status keep(const Span& span, pinrail_handle_t handle);

  const Wanted wanted_;
  OwnThread helper_;
  Mutex mutex_{LockRank::work};
  Condition changed_;
  std::deque<Piece> ready_ GUARDED_BY(mutex_);
  uintptr_t next_ GUARDED_BY(mutex_);  // start of the next chunk to register
  bool registering_ GUARDED_BY(mutex_) = false;
  bool paused_ GUARDED_BY(mutex_) = false;  // chunk_stream/C3
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace pinrail::api

#endif
