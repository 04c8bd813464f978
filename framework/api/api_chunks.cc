// SPDX-License-Identifier: BSD-3-Clause
// The chunk iterator: divides a large buffer into pieces, so that transfers pipeline and little memory is pinned; and
// the stream, which registers the pieces as well. API context; the caller holds no lock. A chunk that a stream hands
// out is a reference of the caller. pinrail/pinrail.h documents the public functions.
#include <algorithm>
#include <memory>

#include "base/core/span.h"
#include "framework/api/api.h"
#include "framework/api/api_fork.h"
#include "framework/api/chunk_stream.h"
#include "framework/api/on_work.h"
#include "framework/api/refuse.h"

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
size_t step_of(pinrail_mpool_t* pool, size_t wanted) {
  const pinrail_registrar_t& device = pool->registrar->table;
  if (wanted == 0) wanted = pool->ops->max_reg_size(pool->module);
  if (device.max_length != 0) wanted = std::min(wanted, device.max_length);
  const size_t page = std::max(kPage, device.granularity);
  return std::max(wanted & ~(page - 1), page);
}

// pinrail_chunk_stream_open() after its checks. Without a helper thread the stream registers on request.
Status open_stream(ChunkStream::Wanted wanted, size_t chunk_size, pinrail_chunk_stream_t** stream_out) {
  wanted.step = step_of(wanted.pool, chunk_size);
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
  if (fault != nullptr) return api::refuse("pinrail_chunks_begin", fault);
  api::handle_fork();
  *chunks_out = {base, base + length, api::step_of(pool, 0)};
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_chunks_next(pinrail_chunks_t* chunks, void** addr_out, size_t* length_out) {
  if (chunks == nullptr || addr_out == nullptr || length_out == nullptr) {
    return api::refuse("pinrail_chunks_next", "chunks, addr_out or length_out is NULL");
  }
  if (chunks->next >= chunks->end) return PINRAIL_ERR_NOT_FOUND;
  // Cut at multiples of the step, so that overlapping buffers share pieces.
  const size_t to_cut = chunks->step - chunks->next % chunks->step;
  const size_t length = std::min(to_cut, static_cast<size_t>(chunks->end - chunks->next));
  *addr_out = reinterpret_cast<void*>(chunks->next);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  *length_out = length;
  chunks->next += length;
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_chunk_stream_open(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                           const pinrail_chunk_options_t* options,
                                           pinrail_chunk_stream_t** stream_out) {
  constexpr const char* kCall = "pinrail_chunk_stream_open";
  pinrail_chunk_options_t given = PINRAIL_CHUNK_OPTIONS_INIT;
  const char* fault = pool == nullptr || stream_out == nullptr ? "pool or stream_out is NULL" : nullptr;
  if (fault == nullptr) fault = api::fault_of_range(addr, length);
  if (fault == nullptr) fault = api::fault_of_access(access);
  if (fault == nullptr && options != nullptr) fault = api::fault_of(*options);
  if (fault != nullptr) return api::refuse(kCall, fault);
  if (options != nullptr) given = *options;
  return api::on_pool(pool, [&] {
    const Span span = Span::of(reinterpret_cast<uintptr_t>(addr), length);
    return api::open_stream({pool, span, 0, access, given.flags, given.ahead}, given.chunk_size, stream_out);
  });
}

pinrail_status_t pinrail_chunk_stream_next(pinrail_chunk_stream_t* stream, pinrail_handle_t* handle_out,
                                           void** addr_out, size_t* length_out) {
  if (stream == nullptr || handle_out == nullptr) {
    return api::refuse("pinrail_chunk_stream_next", "stream or handle_out is NULL");
  }
  return api::on_work(stream->stream.get(), [=](api::ChunkStream* chunks) {
    pinrail_handle_t handle;
    Span span;
    const Status status = chunks->next(&handle, &span);
    if (!status.ok()) return status;
    *handle_out = handle;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): as the caller gave it
    if (addr_out != nullptr) *addr_out = reinterpret_cast<void*>(span.base);
    if (length_out != nullptr) *length_out = span.length();
    return status;
  });
}

pinrail_status_t pinrail_chunk_stream_close(pinrail_chunk_stream_t* stream) {
  if (stream == nullptr) return api::refuse("pinrail_chunk_stream_close", "stream is NULL");
  const pinrail_status_t status = api::on_work(stream->stream.get(), [=](api::ChunkStream* chunks) {
    chunks->stop();
    if (!chunks->is_detached()) chunks->pool()->works.remove(chunks);
  });
  if (status == PINRAIL_SUCCESS) delete stream;
  // In a forked child the parent's stream is kept: its helper thread may have been changing it.
  return status == PINRAIL_ERR_NOT_AVAILABLE ? PINRAIL_SUCCESS : status;
}
