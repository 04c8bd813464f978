// SPDX-License-Identifier: BSD-3-Clause
// An event, and what must be true after it.
#include <cerrno>
#include <optional>
#include <system_error>

#include "test/oracle/deaf.h"
#include "test/oracle/worker.h"

namespace pinrail::oracle {
namespace {

bool are_same(const pinrail_handle_t& a, const pinrail_handle_t& b) {
  return a.reg == b.reg && a.generation == b.generation;
}

// Whether the cache would answer with it, which takes and gives back a reference.
bool is_cached(const Buffer& buffer, const Due& due) {
  constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;
  pinrail_handle_t found{};
  const pinrail_status_t status =
      pinrail_mpool_find(due.pool, buffer.memory->base + due.piece.offset, due.piece.length, kAccess, &found);
  if (status != PINRAIL_SUCCESS) return false;
  const bool same = are_same(found, due.before);
  return pinrail_mpool_deregister(found) == PINRAIL_SUCCESS && same;
}

using BreakLock = std::unique_lock<std::shared_mutex>;

// malloc_trim(), which blocks of an arena are given to, sinks the break by so many bytes: if an event has sunk it when
// malloc looks and has raised it again when malloc sinks it, what is below the break is gone. Empty: the event does not
// trim.
std::optional<BreakLock> hold_break(Buffers* buffers, const tools::MemoryEvent& event) {
  Buffer* const heap = buffers->heap();
  if (event.kind != tools::MemoryKind::small_block || heap == nullptr) return std::nullopt;
  return BreakLock(heap->mutex, std::try_to_lock);
}

}  // namespace

// Random, but so that the event takes some of it away.
static Piece touched_piece(const tools::MemoryEvent& event, const Buffer& buffer, const Piece& any) {
  const tools::Extent lost = tools::lost(event, *buffer.memory);
  const auto begins = static_cast<size_t>(lost.base - buffer.memory->base);
  const bool touches = any.offset + any.length > begins && any.offset < begins + lost.length;
  return touches ? any : Piece{begins, lost.length};
}

bool Worker::fire(Buffer* buffer, Kind* kind) {
  if (tools::fire_memory_event(*kind->event, buffer->memory.get())) return true;
  // The break: memory of other users lies above and must stay.
  if (errno != EBUSY) run_.judge.failed(kind->event->name, std::generic_category().message(errno));
  run_.buffers.renew(buffer, &random_);
  return false;
}

void Worker::event() {
  Kind* const kind = run_.choice.next(&random_);
  Buffer* const buffer = run_.buffers.pick(&random_, kind->event->kind);
  const std::unique_lock<std::shared_mutex> lock(buffer->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const std::optional<BreakLock> still = hold_break(&run_.buffers, *kind->event);
  if (still.has_value() && !still->owns_lock()) return;
  if (buffer->memory == nullptr) return run_.buffers.renew(buffer, &random_);
  finish_due(buffer);

  Due due{kind, any_pool(), touched_piece(*kind->event, *buffer, any_piece(*buffer)), {}, false};
  if (!transfer(buffer, due.piece, due.pool, Direction::device_reads, &due.before)) return;
  leave(due.before, due.pool);
  const bool cached = is_cached(*buffer, due);
  const unsigned char* const before = buffer->memory->base;
  const bool is_mutant = kind->event == run_.options.mutant;
  std::optional<Deaf> deaf;
  if (is_mutant) deaf.emplace(before, buffer->memory->length);
  if (!fire(buffer, kind)) return;
  ++kind->fired;
  if (cached) ++kind->on_cached;
  run_.buffers.refill(buffer);
  buffer->note(kind->event->name, thread_, {0, buffer->memory->length});
  due.counts = cached && buffer->memory->base == before;
  buffer->due = due;
  buffer->is_due = true;
  if (is_mutant || one_in(2)) finish_due(buffer);
}

void Worker::finish_due(Buffer* buffer) {
  const Due due = buffer->due;
  buffer->due = {};
  buffer->is_due = false;
  if (due.kind == nullptr) return;
  const Direction direction = one_in(2) ? Direction::device_reads : Direction::device_writes;
  pinrail_handle_t handle{};
  if (!transfer(buffer, due.piece, due.pool, direction, &handle)) return;
  if (due.counts) ++due.kind->again;
  if (due.counts && are_same(handle, due.before)) ++due.kind->hits;
  leave(handle, due.pool);
}

}  // namespace pinrail::oracle
