// SPDX-License-Identifier: BSD-3-Clause
// scenario_chunks.cc - a large buffer whose registrations are handed out piece by piece: the first one comes long
// before the whole would, few are held at a time, and stopping half way leaves nothing.
#include <algorithm>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;
constexpr uint32_t kAhead = 4;
constexpr size_t kChunk = size_t{2} << 20;

struct Run {
  double first_ms = 0;  // until the first piece is there
  double total_ms = 0;
  size_t pieces = 0;
  size_t covered = 0;      // bytes
  uint64_t most_held = 0;  // registered bytes, at most
};

// Takes up to so many pieces, and deregisters each at once.
Result take(const Session& session, const FreshMemory& memory, size_t most, Run* run_out) {
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = kChunk;
  options.ahead = kAhead;
  options.flags = PINRAIL_FLAG_PERSISTENT;  // deregistered with its last reference: what is held can be counted
  const uint64_t before = session.stats().registered_bytes;
  const uint64_t began = now_ns();
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_status_t status =
      pinrail_chunk_stream_open(session.pool(), memory.at(), memory.bytes(), kAccess, &options, &stream);
  if (status != PINRAIL_SUCCESS) return failed("opening a stream", status);
  Run run;
  while (run.pieces < most) {
    pinrail_handle_t handle;
    size_t length = 0;
    status = pinrail_chunk_stream_next(stream, &handle, nullptr, &length);
    if (status != PINRAIL_SUCCESS) break;
    if (run.pieces++ == 0) run.first_ms = ms_since(began);
    run.covered += length;
    run.most_held = std::max(run.most_held, session.stats().registered_bytes - before);
    status = pinrail_mpool_deregister(handle);
    if (status != PINRAIL_SUCCESS) break;
  }
  run.total_ms = ms_since(began);
  (void)pinrail_chunk_stream_close(stream);
  if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_NOT_FOUND) {
    return failed("a piece", status);
  }
  *run_out = run;
  return Result::good();
}

Result register_whole(const Session& session, const FreshMemory& memory, double* ms_out) {
  const uint64_t began = now_ns();
  pinrail_handle_t handle;
  const pinrail_status_t status =
      pinrail_mpool_register(session.pool(), memory.at(), memory.bytes(), kAccess, PINRAIL_FLAG_PERSISTENT, &handle);
  if (status != PINRAIL_SUCCESS) return failed("the whole buffer", status);
  *ms_out = ms_since(began);
  (void)pinrail_mpool_deregister(handle);
  return Result::good();
}

}  // namespace

Result run_chunks(const Options& options, const Session& session, Figures* figures_out) {
  const size_t bytes = options.sizes_given ? std::max(options.sizes.front(), 16 * kChunk) : size_t{256} << 20;
  const FreshMemory whole_memory(bytes), memory(bytes), half(bytes);
  if (!whole_memory.is_mapped() || !memory.is_mapped() || !half.is_mapped()) return Result::bad("no memory");
  double whole_ms = 0;
  Result result = register_whole(session, whole_memory, &whole_ms);
  Run run;
  if (result.ok()) result = take(session, memory, SIZE_MAX, &run);
  if (!result.ok()) return result;
  const std::string size = size_text(bytes);
  figures_out->add("the whole buffer as one registration, " + size, whole_ms, "ms");
  figures_out->add("all pieces, " + std::to_string(kAhead) + " ahead", run.total_ms, "ms");
  figures_out->add("the first piece", run.first_ms, "ms");
  figures_out->add("the first piece / the whole buffer", run.first_ms / whole_ms, "times", Bound::at_most, 0.5);
  figures_out->add("bytes in pieces / bytes of the buffer",
                   static_cast<double>(run.covered) / static_cast<double>(bytes), "times", Bound::exactly, 1);
  figures_out->add("registered at a time, at most", static_cast<double>(run.most_held) / kChunk, "pieces",
                   Bound::at_most, kAhead + 2);
  const uint64_t before = session.stats().registered_bytes;
  result = take(session, half, 5, &run);
  figures_out->add("registered after a stop half way", session.stats().registered_bytes - before, "bytes",
                   Bound::exactly, 0);
  return result;
}

}  // namespace pinrail::perf
