// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/worker.h"

#include <pinrail/alloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "test/support/process.h"

namespace pinrail::oracle {
namespace {

using Number = unsigned long long;

pinrail_status_t init(const Options& options) {
  std::vector<pinrail_setting_t> settings = tools::settings_of(options.mca);
  // Nothing is reported: the program could, as "external" says, and does not.
  if (!options.monitor.empty()) {
    settings.push_back({"monitor", options.monitor == "none" ? "external" : options.monitor.c_str()});
  }
  const pinrail_setting_t folder = {"mca_base_component_path", component_folder()};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.defaults = &folder;
  init.default_count = folder.value == nullptr ? 0 : 1;
  init.settings = settings.data();
  init.setting_count = settings.size();
  return pinrail_init(&init);
}

pinrail_status_t create(const Options& options, const char* mpool, const char* cache, size_t limit,
                        pinrail_mpool_t** pool_out) {
  pinrail_registrar_choice_t registrar{};
  registrar.name = options.registrar.c_str();
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  wanted.leave_pinned = 1;
  if (limit != 0) wanted.size_limit = static_cast<int64_t>(limit);
  return pinrail_mpool_create(mpool, &registrar, cache, &wanted, pool_out);
}

std::string figures_of(const char* name, pinrail_mpool_t* pool) {
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pool == nullptr || pinrail_mpool_read_stats(pool, &stats) != PINRAIL_SUCCESS) return "";
  char line[256];
  std::snprintf(
      line, sizeof(line), "pool %-9s  %llu hits, %llu misses, %llu evictions, %llu invalidations, %llu races\n", name,
      static_cast<Number>(stats.hits), static_cast<Number>(stats.misses), static_cast<Number>(stats.evictions),
      static_cast<Number>(stats.invalidations), static_cast<Number>(stats.races));
  return line;
}

}  // namespace

Pools::~Pools() {
  if (unlimited_ != nullptr) pinrail_mpool_destroy(unlimited_, PINRAIL_DESTROY_FORCE);
  if (limited_ != nullptr) pinrail_mpool_destroy(limited_, PINRAIL_DESTROY_FORCE);
  if (initialised_) pinrail_finalize();
}

pinrail_status_t Pools::open(const Options& options, std::string* what_out) {
  *what_out = "pinrail_init";
  pinrail_status_t status = init(options);
  if (status != PINRAIL_SUCCESS) return status;
  initialised_ = true;
  *what_out = "a pool on registrar " + options.registrar;
  status = create(options, options.maps_all ? "mrall" : "grdma", "oracle", 0, &unlimited_);
  if (status == PINRAIL_SUCCESS) status = create(options, "grdma", "oracle-limited", options.size_limit, &limited_);
  return status;
}

pinrail_status_t Pools::close() {
  for (pinrail_mpool_t** pool : {&unlimited_, &limited_}) {
    const pinrail_status_t status = *pool == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(*pool, 0);
    if (status != PINRAIL_SUCCESS) return status;
    *pool = nullptr;
  }
  initialised_ = false;
  return pinrail_finalize();
}

std::string Pools::figures() const { return figures_of("unlimited", unlimited_) + figures_of("limited", limited_); }

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

namespace {

// Registering, moving bytes, comparing.

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

namespace {

// An event, and what must be true after it.

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

namespace {

// Memory of pinrail_mpool_alloc(): allocated, resized and freed, while events happen to other memory. The device must
// see its bytes, and a request for it must be a hit.

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

namespace {

// Pieces of the buffers that are pinned ahead of their use, at once or by helper threads. Events may end them, or the
// memory under the helper threads; each pin is undone, whatever became of its memory.

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
