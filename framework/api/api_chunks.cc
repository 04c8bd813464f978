// SPDX-License-Identifier: BSD-3-Clause
// The chunk iterator: divides a large buffer into pieces, so that transfers pipeline and little memory is pinned; and
// the stream, which registers the pieces as well. API context; the caller holds no lock. A chunk that a stream hands
// out is a reference of the caller. pinrail/pinrail.h documents the public functions.
#include <algorithm>
#include <list>

#include "base/registration/registration.h"
#include "framework/api/api.h"
#include "framework/api/pin_job.h"

namespace pinrail::api {

// Whether the pool still caches the registration, so that no event has ended it.
static bool is_cached(pinrail_handle_t handle) { return handle.reg != nullptr && is_indexed(handle.reg); }

// Registers a large range chunk by chunk and hands out the registrations in order, on request or some
// chunks ahead of the caller by a helper thread.
//
// Owns     the references of the chunks that are registered and not handed out; its helper thread.
// Threads  next() and stop() may run together with the helper thread; a stream has one caller at a time. API context,
//          inside a deferred::Call; the caller holds no lock. Register calls are made outside of it and without a lock.
//
// At most one thread registers new chunks at a time, with no lock held: they come in the order of addresses. At most
// `ahead` chunks are registered and not handed out.
//
// api_chunks/C3  After an error the helper thread pauses until the caller has registered the next new chunk by itself.
// api_chunks/C4  A chunk is not handed out if an event has ended its registration since it was made: it is registered
//     anew. If it finds no room then, what is ready behind it is given back, which the caller cannot release, and is
//     registered anew in its turn. What the pool does not cache, no event ends: it is not kept ahead.
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
  Status next(pinrail_handle_t* handle_out, Span* span_out) {
    Piece piece = {{}, {nullptr, 0}};
    bool was_ready = false;
    {
      Guard guard(mutex_);
      while (ready_.empty() && registering_) changed_.wait(mutex_);
      was_ready = !ready_.empty();
      if (stopped_ || (!was_ready && next_ >= wanted_.span.end)) return PINRAIL_ERR_NOT_FOUND;
      piece = was_ready ? ready_.front() : Piece{begin_locked(), {nullptr, 0}};
      if (was_ready) ready_.front().handle = {nullptr, 0};  // it stays in its place until it is handed out
    }
    Status status = success();
    if (!is_cached(piece.handle)) {
      drop_pin(piece.handle);
      status = register_piece(piece.span, &piece.handle);
      if (was_ready && status.is_lack() && give_back_ready()) status = register_piece(piece.span, &piece.handle);
    }
    if (!was_ready) end(piece.span, status);
    if (!status.ok()) return status;
    if (was_ready) {
      Guard guard(mutex_);
      if (!stopped_) ready_.pop_front();
      changed_.notify_all();
    }
    *span_out = piece.span;
    *handle_out = piece.handle;
    return status;
  }

  bool is_unfinished() override {
    Guard guard(mutex_);
    return !stopped_;
  }
  // Drops what was not handed out. Further calls of next() return NOT_FOUND.
  void stop() override {
    {
      Guard guard(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    {
      const own_threads::Work ending;
      helper_.join();
    }
    std::list<Piece> ready;
    {
      Guard guard(mutex_);
      ready.swap(ready_);
    }
    for (const Piece& piece : ready) drop_pin(piece.handle);
  }

 private:
  struct Piece {
    Span span;
    pinrail_handle_t handle;
  };

  static void run_helper(void* stream) {
    const deferred::Call call;
    static_cast<ChunkStream*>(stream)->run_ahead();
  }
  // The helper thread: keeps `ahead` chunks ready, until two in a row cannot be kept. For one an event may have been
  // faster; what the pool does not cache would be registered twice for each chunk.
  void run_ahead() {
    for (int in_a_row = 0; in_a_row < 2 && wait_for_turn();) {
      const own_threads::Work work;
      const own_threads::Whole whole;
      Span span;
      if (!begin_ahead(&span)) continue;  // the wait for a fork was long
      pinrail_handle_t handle;
      Status status = register_piece(span, &handle);
      const bool is_registered = status.ok();
      if (is_registered) status = keep(span, handle);
      end(span, status);
      in_a_row = is_registered && status.is(PINRAIL_ERR_NOT_SUPPORTED) ? in_a_row + 1 : 0;
    }
  }
  bool is_at_end_locked() const REQUIRES(mutex_) { return stopped_ || next_ >= wanted_.span.end; }
  bool may_begin_locked() const REQUIRES(mutex_) {
    return !is_at_end_locked() && !registering_ && !paused_ && ready_.size() < wanted_.ahead;
  }
  // Waits until the helper thread may register. False: it ends.
  bool wait_for_turn() {
    Guard guard(mutex_);
    while (!is_at_end_locked() && !may_begin_locked()) changed_.wait(mutex_);
    return !is_at_end_locked();
  }
  bool begin_ahead(Span* span_out) {
    Guard guard(mutex_);
    if (!may_begin_locked()) return false;
    *span_out = begin_locked();
    return true;
  }
  // The caller becomes the one that registers.
  Span begin_locked() REQUIRES(mutex_) {
    registering_ = true;
    const size_t to_cut = wanted_.step - next_ % wanted_.step;
    return Span::of(next_, std::min(to_cut, static_cast<size_t>(wanted_.span.end - next_)));
  }
  // Gives back the registrations of what is ready, which keeps its place, and pauses the helper thread (api_chunks/C3).
  // False: there was none. May throw bad_alloc; then nothing has changed.
  bool give_back_ready() {
    std::list<Piece> ready;
    {
      Guard guard(mutex_);
      while (registering_) changed_.wait(mutex_);
      ready = ready_;
      for (Piece& piece : ready_) piece.handle = {nullptr, 0};
      paused_ = true;
    }
    bool is_any = false;
    for (const Piece& piece : ready) {
      is_any = is_any || piece.handle.reg != nullptr;
      drop_pin(piece.handle);
    }
    return is_any;
  }
  void end(const Span& span, Status status) {
    Guard guard(mutex_);
    registering_ = false;
    paused_ = !status.ok();
    if (status.ok()) next_ = span.end;
    changed_.notify_all();
  }
  Status register_piece(const Span& span, pinrail_handle_t* handle_out) {
    const deferred::CallerScope outside;
    return pinrail_mpool_register(wanted_.pool, pointer(span.base), span.length(), wanted_.access, wanted_.flags,
                                  handle_out);
  }
  // NOT_SUPPORTED: the pool does not cache it, or an event was faster. OUT_OF_RESOURCE: there is no memory for it.
  // Either way its reference was dropped.
  Status keep(const Span& span, pinrail_handle_t handle) {
    const Status kept = guarded([&]() -> Status {
      if (!is_cached(handle)) return PINRAIL_ERR_NOT_SUPPORTED;
      Guard guard(mutex_);
      ready_.push_back({span, handle});
      return success();
    });
    if (kept.ok()) return kept;
    drop_pin(handle);
    return kept;
  }

  const Wanted wanted_;
  OwnThread helper_;
  Mutex mutex_{LockRank::work};
  Condition changed_;
  std::list<Piece> ready_ GUARDED_BY(mutex_);
  uintptr_t next_ GUARDED_BY(mutex_);  // start of the next chunk to register
  bool registering_ GUARDED_BY(mutex_) = false;
  bool paused_ GUARDED_BY(mutex_) = false;  // api_chunks/C3
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace pinrail::api

struct pinrail_chunk_stream {
  std::shared_ptr<pinrail::api::ChunkStream> stream;
};

namespace pinrail::api {
namespace {

const char* fault_of(const pinrail_chunk_options_t& options) {
  if (options.size != sizeof(options)) return "options->size is not sizeof(pinrail_chunk_options_t)";
  if ((options.flags & ~uint32_t{PINRAIL_FLAGS_MASK}) != 0) {
    return "options->flags has bits that pinrail/types.h does not name";
  }
  return nullptr;
}

constexpr size_t kPage = 4096;

// The longest chunk: whole pages, because the pool registers whole pages, within the device's maximum.
size_t step_of(pinrail_mpool_t* pool, size_t wanted, uint32_t access) {
  const size_t most = longest_of(pool, access);
  if (wanted == 0) wanted = pool->ops->max_reg_size(pool->module);
  if (most != 0) wanted = std::min(wanted, most);
  const size_t page = std::max(kPage, pool->registrar->table.granularity);
  return std::max(wanted & ~(page - 1), page);
}

// pinrail_chunk_stream_open() after its checks. Without a helper thread the stream registers on request.
Status open_stream(ChunkStream::Wanted wanted, size_t chunk_size, pinrail_chunk_stream_t** stream_out) {
  wanted.step = step_of(wanted.pool, chunk_size, wanted.access);
  const bool is_alone = (wanted.flags & PINRAIL_FLAG_CACHE_BYPASS) != 0;  // no event would end it
  if (is_alone || wanted.pool->registrar->table.thread_mode == PINRAIL_THREAD_CALLER) wanted.ahead = 0;
  auto handle = std::make_unique<pinrail_chunk_stream>();
  handle->stream = std::make_shared<ChunkStream>(wanted);
  wanted.pool->works.add(handle->stream);
  if (wanted.ahead != 0) (void)handle->stream->start_helper();
  *stream_out = handle.release();
  return success();
}

}  // namespace
}  // namespace pinrail::api

using namespace pinrail;

pinrail_status_t pinrail_chunks_begin(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_chunks_t* chunks_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  const char* const fault =
      pool == nullptr || chunks_out == nullptr ? "pool or chunks_out is NULL" : api::fault_of_range(addr, length);
  if (fault != nullptr) return api::refuse(__func__, fault);
  api::handle_fork();
  *chunks_out = {base, base + length, api::step_of(pool, 0, 0)};
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_chunks_next(pinrail_chunks_t* chunks, void** addr_out, size_t* length_out) {
  if (chunks == nullptr || addr_out == nullptr || length_out == nullptr) {
    return api::refuse(__func__, "chunks, addr_out or length_out is NULL");
  }
  if (chunks->next >= chunks->end) return PINRAIL_ERR_NOT_FOUND;
  // Cut at multiples of the step, so that overlapping buffers share pieces.
  const size_t to_cut = chunks->step - chunks->next % chunks->step;
  const size_t length = std::min(to_cut, static_cast<size_t>(chunks->end - chunks->next));
  *addr_out = pointer(chunks->next);
  *length_out = length;
  chunks->next += length;
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_chunk_stream_open(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                           const pinrail_chunk_options_t* options,
                                           pinrail_chunk_stream_t** stream_out) {
  pinrail_chunk_options_t given = PINRAIL_CHUNK_OPTIONS_INIT;
  const char* fault = pool == nullptr || stream_out == nullptr ? "pool or stream_out is NULL" : nullptr;
  if (fault == nullptr) fault = api::fault_of_range(addr, length);
  if (fault == nullptr) fault = api::fault_of_access(access);
  if (fault == nullptr && options != nullptr) fault = api::fault_of(*options);
  if (fault != nullptr) return api::refuse(__func__, fault);
  if (options != nullptr) given = *options;
  return api::on_pool(pool, [&] {
    const Span span = Span::of(reinterpret_cast<uintptr_t>(addr), length);
    return api::open_stream({pool, span, 0, access, given.flags, given.ahead}, given.chunk_size, stream_out);
  });
}

pinrail_status_t pinrail_chunk_stream_next(pinrail_chunk_stream_t* stream, pinrail_handle_t* handle_out,
                                           void** addr_out, size_t* length_out) {
  if (stream == nullptr || handle_out == nullptr) {
    return api::refuse(__func__, "stream or handle_out is NULL");
  }
  return api::on_work(stream->stream.get(), [=](api::ChunkStream* chunks) {
    pinrail_handle_t handle;
    Span span;
    const Status status = chunks->next(&handle, &span);
    if (!status.ok()) return status;
    *handle_out = handle;
    if (addr_out != nullptr) *addr_out = pointer(span.base);
    if (length_out != nullptr) *length_out = span.length();
    return status;
  });
}

pinrail_status_t pinrail_chunk_stream_close(pinrail_chunk_stream_t* stream) {
  if (stream == nullptr) return api::refuse(__func__, "stream is NULL");
  return api::end_work(stream, stream->stream.get());
}
