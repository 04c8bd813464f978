// SPDX-License-Identifier: BSD-3-Clause
// Memory of pinrail_mpool_alloc(): allocated, resized and freed, while events happen to other memory. The device must
// see its bytes, and a request for it must be a hit.
#include <pinrail/alloc.h>

#include <algorithm>
#include <cstring>

#include "test/oracle/worker.h"

namespace pinrail::oracle {
namespace {

constexpr size_t kSmall = size_t{32} << 10;

void fill(unsigned char* at, size_t length, unsigned char first) {
  for (size_t i = 0; i < length; ++i) at[i] = static_cast<unsigned char>(first + i * 7);
}

bool is_filled(const unsigned char* at, size_t length, unsigned char first) {
  for (size_t i = 0; i < length; ++i) {
    if (at[i] != static_cast<unsigned char>(first + i * 7)) return false;
  }
  return true;
}

}  // namespace

void Worker::use_allocated() {
  Allocated* const piece = &allocated_[random_() % allocated_.size()];
  if (piece->at == nullptr) {
    allocate(piece);
  } else if (one_in(4)) {
    resize(piece);
  } else if (one_in(3)) {
    free_allocated(piece);
  }
  if (piece->at != nullptr) compare_allocated(*piece);
  run_.judge.did_something();
}

void Worker::allocate(Allocated* piece) {
  const size_t length = 1 + random_() % kSmall;
  pinrail_mpool_t* const pool = run_.pools.unlimited();
  void* at = nullptr;
  const pinrail_status_t status = pinrail_mpool_alloc(pool, length, 0, PINRAIL_NODE_ANY, &at);
  if (is_refusal(status)) return run_.judge.refused();
  if (status != PINRAIL_SUCCESS) return run_.judge.failed("alloc", pinrail_status_name(status));
  *piece = {pool, static_cast<unsigned char*>(at), length, static_cast<unsigned char>(random_())};
  fill(piece->at, length, piece->first);
}

void Worker::resize(Allocated* piece) {
  const size_t length = 1 + random_() % kSmall;
  void* at = nullptr;
  const pinrail_status_t status = pinrail_mpool_realloc(piece->pool, piece->at, length, &at);
  if (is_refusal(status)) return run_.judge.refused();
  if (status != PINRAIL_SUCCESS) return run_.judge.failed("realloc", pinrail_status_name(status));
  piece->at = static_cast<unsigned char*>(at);
  if (!is_filled(piece->at, std::min(length, piece->length), piece->first)) {
    run_.judge.differed("realloc", "other bytes than before");
  }
  piece->length = length;
  fill(piece->at, length, piece->first);
}

// The device reads what the processor wrote, and writes what it then sees.
void Worker::compare_allocated(const Allocated& piece) {
  pinrail_handle_t handle;
  const pinrail_status_t status = pinrail_mpool_find(piece.pool, piece.at, piece.length, kBothWays, &handle);
  if (status != PINRAIL_SUCCESS) return run_.judge.failed("find of allocated memory", pinrail_status_name(status));
  const auto offset = static_cast<size_t>(piece.at - static_cast<unsigned char*>(handle.reg->base));
  pinrail_status_t moved = pinrail_mpool_device_read(handle, offset, seen_.data(), piece.length);
  const bool is_read = is_filled(seen_.data(), piece.length, piece.first);
  std::memset(piece.at, 0, piece.length);
  if (moved == PINRAIL_SUCCESS) moved = pinrail_mpool_device_write(handle, offset, seen_.data(), piece.length);
  const bool is_written = is_filled(piece.at, piece.length, piece.first);
  drop(handle);
  if (moved != PINRAIL_SUCCESS) return run_.judge.failed("device transfer", pinrail_status_name(moved));
  run_.judge.compared(2 * piece.length);
  if (!is_read) run_.judge.differed("allocated memory", "the device read other bytes");
  if (!is_written) run_.judge.differed("allocated memory", "the device wrote other bytes");
}

void Worker::free_allocated(Allocated* piece) {
  if (piece->at == nullptr) return;
  const pinrail_status_t status = pinrail_mpool_free(piece->pool, piece->at);
  if (status != PINRAIL_SUCCESS) run_.judge.failed("free", pinrail_status_name(status));
  *piece = {};
}

}  // namespace pinrail::oracle
