// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/worker.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace pinrail::oracle {
namespace {

constexpr size_t kBlocks = 64;
constexpr size_t kAllocated = 16;
constexpr size_t kPinned = 4;
constexpr size_t kMaxBlock = size_t{256} << 10;

}  // namespace

Worker::Worker(Run* run, unsigned thread)
    : run_(*run),
      thread_(thread),
      random_(run->options.seed + 1000 * (thread + 1)),
      seen_(std::max(run->options.largest, tools::kLargeBlock)),
      blocks_(kBlocks, nullptr),
      allocated_(kAllocated),
      pinned_(kPinned) {}

Worker::~Worker() {
  for (const pinrail_handle_t& handle : held_) drop(handle);
  for (void* block : blocks_) std::free(block);
  for (Allocated& piece : allocated_) free_allocated(&piece);
  for (Pinned& pinned : pinned_) unpin(&pinned);
}

void Worker::work() {
  while (!run_.over.load(std::memory_order_relaxed)) step();  // relaxed: a moment later will do
}

void Worker::step() {
  const bool hunts = run_.options.mutant != nullptr;
  if (run_.options.allocates && one_in(8)) return use_allocated();
  if (run_.options.pins && one_in(8)) return use_pinned();
  const uint64_t die = random_() % 1000;
  if (die < 500 && !hunts && run_.choice.is_behind()) return event();
  if (die < (hunts ? 500 : 60)) return event();
  if (die < (hunts ? 505 : 65)) return renew();
  if (die < (hunts ? 520 : 100)) return churn();
  if (die < (hunts ? 540 : 130)) return write_with_processor();
  if (die < (hunts ? 650 : 400)) return write();
  return read();
}

pinrail_mpool_t* Worker::any_pool() { return one_in(4) ? run_.pools.limited() : run_.pools.unlimited(); }

// Most often all of it.
Piece Worker::any_piece(const Buffer& buffer) {
  const size_t all = buffer.memory->length;
  if (!one_in(4)) return {0, all};
  const size_t length = 1 + random_() % all;
  return {random_() % (all - length + 1), length};
}

void Worker::read() {
  Buffer* const buffer = run_.buffers.pick(&random_, thread_);
  if (buffer->is_due.load(std::memory_order_relaxed)) return write();  // relaxed: asked again under the lock
  const std::shared_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock() || buffer->memory == nullptr) return;
  pinrail_mpool_t* const pool = any_pool();
  pinrail_handle_t handle{};
  if (transfer(buffer, any_piece(*buffer), pool, Direction::device_reads, &handle)) leave(handle, pool);
}

void Worker::write() {
  Buffer* const buffer = run_.buffers.pick(&random_, thread_);
  const std::unique_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock() || buffer->memory == nullptr) return;
  finish_due(buffer);
  pinrail_mpool_t* const pool = any_pool();
  pinrail_handle_t handle{};
  if (transfer(buffer, any_piece(*buffer), pool, Direction::device_writes, &handle)) leave(handle, pool);
}

void Worker::write_with_processor() {
  Buffer* const buffer = run_.buffers.pick(&random_, thread_);
  const std::unique_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  run_.buffers.refill(buffer);
  run_.judge.did_something();
}

// Another buffer, of another kind and length, may come where this one was.
void Worker::renew() {
  Buffer* const buffer = run_.buffers.pick(&random_, thread_);
  const std::unique_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  run_.buffers.renew(buffer, &random_);
  buffer->note("given back, and taken anew", thread_, {});
  run_.judge.did_something();
}

void Worker::churn() {
  void*& block = blocks_[random_() % blocks_.size()];
  const size_t length = 1 + random_() % (random_() % kMaxBlock + 1);
  if (one_in(3)) {
    std::free(block);
    block = std::malloc(length);
  } else if (void* const moved = std::realloc(block, length)) {
    block = moved;
  }
  if (block != nullptr) std::memset(block, static_cast<int>(length), length);
  run_.judge.did_something();
}

}  // namespace pinrail::oracle
