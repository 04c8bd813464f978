// SPDX-License-Identifier: BSD-3-Clause
// Registering, moving bytes, comparing.
#include <cstdio>

#include "test/oracle/worker.h"
#include "test/support/proc_status.h"

namespace pinrail::oracle {
namespace {

constexpr size_t kHeld = 4;

std::string at_text(const Buffer& buffer, const Piece& piece) {
  char text[128];
  std::snprintf(text, sizeof(text), "%zu bytes at %p of buffer %zu (%s); what was done to it:", piece.length,
                static_cast<const void*>(buffer.memory->base + piece.offset), buffer.number,
                tools::memory_kind_name(buffer.kind));
  return text;
}

// Whether the limit is in use. Where the user's own limit bounds both pools ("ulimit -l"), what one has pinned does not
// give way to the other's requests.
bool is_for_limit(pinrail_status_t status) {
  constexpr size_t kWithoutLimit = size_t{1} << 46;
  static const bool is_bounded = !test::may_lock(kWithoutLimit);
  return status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || (status == PINRAIL_ERR_OUT_OF_RESOURCE && is_bounded);
}

}  // namespace

bool Worker::enter(Buffer* buffer, const Piece& piece, pinrail_mpool_t* pool, pinrail_handle_t* handle_out) {
  unsigned char* const at = buffer->memory->base + piece.offset;
  const pinrail_status_t status = pinrail_mpool_register(pool, at, piece.length, kBothWays, 0, handle_out);
  if (is_for_limit(status)) {
    run_.judge.refused();
    return false;
  }
  if (status != PINRAIL_SUCCESS) {
    run_.judge.failed("register", std::string(pinrail_status_name(status)) + ", " + at_text(*buffer, piece) + "\n" +
                                      buffer->history());
    return false;
  }
  const auto* const base = static_cast<unsigned char*>(handle_out->reg->base);
  if (base <= at && at + piece.length <= base + handle_out->reg->length) return true;
  run_.judge.failed("register", "the registration does not cover what was asked for");
  drop(*handle_out);
  return false;
}

// What the processor sees is what stands in memory, in both directions.
bool Worker::move(Buffer* buffer, const Piece& piece, Direction direction, pinrail_handle_t handle) {
  unsigned char* const at = buffer->memory->base + piece.offset;
  const auto offset = static_cast<size_t>(at - static_cast<unsigned char*>(handle.reg->base));
  const unsigned char* device = seen_.data();
  pinrail_status_t status = PINRAIL_SUCCESS;
  if (direction == Direction::device_reads) {
    buffer->note("device reads", thread_, piece);
    status = pinrail_mpool_device_read(handle, offset, seen_.data(), piece.length);
  } else {
    buffer->note("device writes", thread_, piece);
    ++buffer->version;
    device = run_.buffers.contents().of(*buffer) + piece.offset;
    status = pinrail_mpool_device_write(handle, offset, device, piece.length);
  }
  if (status != PINRAIL_SUCCESS) {
    run_.judge.failed("device transfer", pinrail_status_name(status));
    return false;
  }
  return run_.judge.compare(buffer, piece, device, at, direction);
}

bool Worker::transfer(Buffer* buffer, const Piece& piece, pinrail_mpool_t* pool, Direction direction,
                      pinrail_handle_t* handle_out) {
  if (!enter(buffer, piece, pool, handle_out)) return false;
  if (!move(buffer, piece, direction, *handle_out)) heal(buffer);
  return true;
}

// Now and then kept for a while, so that its memory goes under it.
void Worker::leave(pinrail_handle_t handle, const pinrail_mpool_t* pool) {
  if (pool == run_.pools.limited() || !one_in(64)) return drop(handle);
  held_.push_back(handle);
  if (held_.size() <= kHeld) return;
  drop(held_.front());
  held_.pop_front();
}

void Worker::drop(pinrail_handle_t handle) {
  const pinrail_status_t status = pinrail_mpool_deregister(handle);
  if (status != PINRAIL_SUCCESS) run_.judge.failed("deregister", pinrail_status_name(status));
}

// So that one stale registration is one difference.
void Worker::heal(Buffer* buffer) {
  pinrail_mpool_invalidate_range(run_.pools.unlimited(), buffer->memory->base, buffer->memory->length);
  pinrail_mpool_invalidate_range(run_.pools.limited(), buffer->memory->base, buffer->memory->length);
}

}  // namespace pinrail::oracle
