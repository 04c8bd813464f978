// SPDX-License-Identifier: BSD-3-Clause
// Pieces of the buffers that are pinned ahead of their use, at once or by helper threads. Events may end them, or the
// memory under the helper threads; each pin is undone, whatever became of its memory.
#include <algorithm>
#include <string>

#include "test/oracle/worker.h"

namespace pinrail::oracle {
namespace {

constexpr size_t kChunk = size_t{64} << 10;
constexpr size_t kShareOfLimit = 64;  // what one pin takes of the limit, at most

}  // namespace

void Worker::use_pinned() {
  Pinned* const pinned = &pinned_[random_() % pinned_.size()];
  if (pinned->pool == nullptr) {
    pin(pinned);
  } else {
    unpin(pinned);
  }
  run_.judge.did_something();
}

void Worker::pin(Pinned* pinned) {
  Buffer* const buffer = run_.buffers.pick(&random_, thread_);
  const std::shared_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock() || buffer->memory == nullptr) return;
  pinrail_mpool_t* const pool = any_pool();
  Piece piece = any_piece(*buffer);
  if (pool == run_.pools.limited()) piece.length = std::min(piece.length, run_.options.size_limit / kShareOfLimit);
  Pinned wanted = {pool, {buffer->memory->base + piece.offset, piece.length}, nullptr};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = kChunk;
  const bool by_helpers = one_in(4);
  buffer->note(by_helpers ? "helper threads pin" : "pinned", thread_, piece);
  const pinrail_status_t status =
      by_helpers ? pinrail_mpool_prepin_start(pool, &wanted.range, 1, kBothWays, &options, &wanted.job)
                 : pinrail_mpool_prepin(pool, &wanted.range, 1, kBothWays, one_in(2) ? &options : nullptr, nullptr);
  if (is_refusal(status)) return run_.judge.refused();
  if (status != PINRAIL_SUCCESS) {
    return run_.judge.failed("prepin", std::string(pinrail_status_name(status)) + "\n" + buffer->history());
  }
  *pinned = wanted;
  if (!by_helpers) check_pinned(buffer, piece, wanted);
}

// The buffer is locked; but events of other memory may lie beside it on one page.
void Worker::check_pinned(Buffer* buffer, const Piece& piece, const Pinned& pinned) {
  pinrail_pinned_t seen = PINRAIL_PINNED_NONE;
  const pinrail_status_t status =
      pinrail_mpool_query(pinned.pool, pinned.range.addr, pinned.range.length, kBothWays, &seen, nullptr, 0, nullptr);
  if (status != PINRAIL_SUCCESS) run_.judge.failed("query", pinrail_status_name(status));
  run_.judge.pinned(seen == PINRAIL_PINNED_WHOLLY);
  pinrail_handle_t handle;
  if (transfer(buffer, piece, pinned.pool, Direction::device_reads, &handle)) leave(handle, pinned.pool);
}

// Whether the range is pinned: its memory may have gone meanwhile.
bool Worker::end_job(pinrail_prepin_t* job) {
  if (one_in(2)) pinrail_prepin_cancel(job);
  const pinrail_status_t result = pinrail_prepin_wait(job, nullptr);
  const pinrail_status_t freed = pinrail_prepin_free(job);
  if (freed != PINRAIL_SUCCESS) run_.judge.failed("prepin_free", pinrail_status_name(freed));
  return result == PINRAIL_SUCCESS;
}

void Worker::unpin(Pinned* pinned) {
  const bool is_pinned = pinned->pool != nullptr && (pinned->job == nullptr || end_job(pinned->job));
  if (is_pinned) {
    const pinrail_status_t status = pinrail_mpool_unpin(pinned->pool, &pinned->range, 1, kBothWays);
    if (status != PINRAIL_SUCCESS) run_.judge.failed("unpin", pinrail_status_name(status));
  }
  *pinned = {};
}

}  // namespace pinrail::oracle
