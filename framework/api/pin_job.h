// SPDX-License-Identifier: BSD-3-Clause
// pin_job.h - registers many ranges ahead of their use, chunk by chunk: on the calling thread, or on helper threads.
//
// Each chunk is registered by itself, and serves register calls from then on. When the last chunk is done, the ranges
// that are registered as a whole get their pins, and the references of all others are dropped.
//
// Owns     the references of the chunks until the job has finished; then the pool's pin table owns them. Its helper
//          threads.
// Threads  all functions may run together. API context, inside a deferred::Call; the caller holds no lock.
//
// A chunk is queued, running, pinned or failed. It is registered by the thread that made it running, with no lock held.
//
// pin_job/J2  The job finishes once: when no chunk is running, and none is queued or the job was stopped.
// pin_job/J3  A job that was cancelled, or failed and pins all or nothing, holds no reference once it has finished.
#ifndef PINRAIL_FRAMEWORK_API_PIN_JOB_H
#define PINRAIL_FRAMEWORK_API_PIN_JOB_H

#include <pinrail/pin.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"
#include "base/sync/own_threads.h"
#include "framework/mpool/mpool.h"

// How ranges that are to be pinned are divided into chunks, each of which becomes one registration.
//
// Ranges whose pages touch or overlap form a group, as long as the group is not longer than a chunk may be. A group is
// one chunk. Only a range that is longer than that is cut: at multiples of the length of a chunk, as the iterator of
// pinrail.h does, so that overlapping buffers share chunks.
//
// Owns     the order of the ranges and the groups.
// Threads  immutable after construction: all functions may run together.
//
// Each byte of each range lies in a chunk of its range's group, and each chunk overlaps a range.
//
// pin_job/L2  No chunk is longer than the limit, apart from the rounding of its ends to pages.

namespace pinrail::api {

class PinPlan {
 public:
  struct Range {
    Span span;
    size_t number;  // in the caller's order
    size_t group;
  };

  // limit: the longest chunk in bytes, 0: none; rounded down to whole pages, of 4 KiB or of granularity, a power of
  // two, if that is more. May throw bad_alloc.
  PinPlan(const pinrail_range_t* ranges, size_t count, size_t limit, size_t granularity);

  size_t chunk_count() const { return chunk_count_; }
  // By address.
  const std::vector<Range>& ranges() const { return ranges_; }
  Span chunk(size_t number) const;
  // How many chunks the range overlaps.
  size_t chunks_of(const Range& range) const;
  // The sum of the lengths of the groups.
  uint64_t bytes() const { return bytes_; }

  // Calls visit(index in ranges(), the part of the range inside the chunk).
  template <typename Visit>
  void for_ranges(size_t chunk_number, Visit&& visit) const {
    const Group& group = group_of(chunk_number);
    const Span span = chunk(chunk_number);
    for (size_t i = group.first_range; i < group.end_range && ranges_[i].span.base < span.end; ++i) {
      const Span part{std::max(ranges_[i].span.base, span.base), std::min(ranges_[i].span.end, span.end)};
      if (part.base < part.end) visit(i, part);
    }
  }
  // Whether the chunk lies in a group of more than one range.
  bool is_shared(size_t chunk_number) const {
    const Group& group = group_of(chunk_number);
    return group.end_range - group.first_range > 1;
  }

  // Calls visit(number) for the chunks that overlap the span, by address in each group.
  template <typename Visit>
  void for_chunks(const Span& span, Visit&& visit) const {
    for (const Group& group : groups_) {
      if (group.span.base >= span.end) return;
      if (group.span.end <= span.base) continue;
      const size_t first = index_in(group, std::max(span.base, group.span.base));
      const size_t last = index_in(group, std::min(span.end, group.span.end) - 1);
      for (size_t i = first; i <= last; ++i) visit(group.first_chunk + i);
    }
  }

  // The chunk that contains the whole span. False: there is none.
  bool find_around(const Span& span, size_t* number_out) const;

 private:
  struct Group {
    Span span;
    size_t step;  // 0: one chunk
    size_t first_chunk;
    size_t first_range, end_range;
  };

  void add_group(size_t first_range);
  size_t end_of_group(size_t first_range, Span* span_out) const;
  const Group& group_of(size_t chunk_number) const;
  static size_t index_in(const Group& group, uintptr_t address) {
    return group.step == 0 ? 0 : address / group.step - group.span.base / group.step;
  }

  uintptr_t page_down(uintptr_t address) const { return address & ~(page_ - 1); }
  uintptr_t page_up(uintptr_t address) const { return (address + page_ - 1) & ~(page_ - 1); }

  const uintptr_t page_;  // what the pool extends a registration to, at least 4 KiB
  const size_t limit_;    // whole pages, because the pool registers whole pages
  std::vector<Range> ranges_;
  std::vector<Group> groups_;  // by address and by chunk; a group may overlap its neighbours
  size_t chunk_count_ = 0;
  uint64_t bytes_ = 0;
};

// Populates pages before they are registered, in parallel and near a NUMA node.
//
// Threads  all functions may run together. API context; they take no lock of Pinrail.

// Populates the pages of the span. advice: MADV_POPULATE_READ or MADV_POPULATE_WRITE. A hint: what the kernel refuses
// is left to the registrar.
void prefault(const Span& span, int advice);

// Requests transparent huge pages for the huge pages that lie wholly in the span. A hint.
void request_huge_pages(const Span& span);

// The bytes of the span that are mapped by huge pages now, of any kind. 0 if the kernel does not report them (before
// Linux 6.7).
uint64_t huge_bytes(const Span& span);

// How many processors this thread may use, at least 1.
unsigned usable_processors();

// The options of each registration of a job.
struct PinOptions {
  bool is_any = false;
  pinrail_register_options_t options{};  // for the address `origin`
  uintptr_t origin = 0;

  // Those for another address. False: there are none, because it lies too far from `origin`.
  bool at(uintptr_t address, pinrail_register_options_t* options_out) const;
};

class PinJob : public mpool::PoolWork {
 public:
  struct Wanted {
    pinrail_mpool_t* pool;
    uint32_t access;
    uint32_t flags;     // PINRAIL_PREPIN_*
    bool prefaults;     // populates each chunk before it is registered
    int32_t numa_node;  // of the helper threads; -1: any
    PinOptions registration;
  };
  // May throw bad_alloc. dmabuf: a copy of its descriptor, which forked children do not inherit (F1), if the job
  // outlives the call.
  PinJob(const Wanted& wanted, PinPlan plan, std::unique_ptr<OwnFile> dmabuf);

  pinrail_mpool_t* pool() const { return wanted_.pool; }
  // Whether the job exceeds a limit of the pool in any case. Reports the limit.
  bool can_never_fit();

  // Starts helper threads, at most `count` and one for each chunk. False: none could be started.
  bool start_helpers(unsigned count);
  // Works on this thread until no chunk is queued.
  void work();
  // Waits until the job has finished, and returns its status. statuses_out: one status for each range, in the caller's
  // order; or NULL.
  Status wait(pinrail_status_t* statuses_out);
  // Registers the chunks that overlap the span ahead of all others, and waits for them. NOT_FOUND: no range of the job
  // overlaps the span, or the job was cancelled. Otherwise the first error.
  Status wait_range(const Span& span);
  void read_progress(pinrail_prepin_progress_t* progress_out);

  bool is_unfinished() override;
  void stop() override;
  bool serves_requests() const override { return true; }
  bool has_queued(const Span& span, uint32_t access) override;
  void pin_now(const Span& span) override;

 private:
  enum class Chunk : uint8_t { queued, running, pinned, failed };
  struct Range {
    std::vector<pinrail_handle_t> handles;
    size_t missing;                               // chunks that are not registered
    pinrail_status_t status = PINRAIL_ERR_ERROR;  // until each chunk is registered or one failed
    bool has_pin = false;                         // in the pool's table
  };

  // stopping: no further chunk is begun. finishing: and none is running.
  enum class Phase : uint8_t { working, stopping, finishing, finished };

  static void helper(void* job);
  bool is_partial() const { return (wanted_.flags & PINRAIL_PREPIN_PARTIAL) != 0; }
  bool take_locked(size_t number) REQUIRES(mutex_);
  void run_chunk(size_t number);
  Status register_chunk(size_t number);
  Status acquire(const Span& span, pinrail_handle_t* handle_out) const;
  Status keep(size_t range, pinrail_handle_t handle);
  void end_chunk(size_t number, Status status);
  void finish_if_last();
  void finish();
  bool end_range(size_t range, bool keeps);
  Status result_locked() const REQUIRES(mutex_);
  void name_limit(size_t bytes);
  uint64_t least_registrations() const;

  const Wanted wanted_;
  const PinPlan plan_;
  Mutex mutex_{LockRank::work};
  Condition changed_;  // a chunk or the job has ended
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  std::vector<Range> ranges_ GUARDED_BY(mutex_);  // in the plan's order
  size_t next_ GUARDED_BY(mutex_) = 0;            // from which chunk on the next queued one is sought
  size_t queued_ GUARDED_BY(mutex_);
  size_t running_ GUARDED_BY(mutex_) = 0;
  size_t pinned_ GUARDED_BY(mutex_) = 0;
  uint64_t pinned_bytes_ GUARDED_BY(mutex_) = 0, huge_bytes_ GUARDED_BY(mutex_) = 0;
  Phase phase_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
  Status error_ GUARDED_BY(mutex_) = success();         // the first one, of a chunk or of a range's pin
  std::unique_ptr<OwnFile> dmabuf_ GUARDED_BY(mutex_);  // until the job has finished
  std::string limit_ GUARDED_BY(mutex_);                // written once
  std::vector<OwnThread> helpers_ GUARDED_BY(mutex_);
};

// Appends the ranges of the registrations that the pool's index has in the span, with at least that access.
// NOT_SUPPORTED: the pool has no such operation.
Status list_registered(const pinrail_mpool_t* pool, const Span& span, uint32_t access, std::vector<Span>* spans_out);
// Whether one of them contains the span, so that pinning it takes no room. False also without memory.
bool is_registered(const pinrail_mpool_t* pool, const Span& span, uint32_t access);

// Drop references of pins and chunks, inside a deferred::Call or outside. Those of `handles` that are left when a
// registrar's function ends this thread are still there.
void drop_pin(pinrail_handle_t handle);
void drop_pins(mpool::PinTable::Handles* handles);
void drop_pins(mpool::PinTable::Pins* pins);

}  // namespace pinrail::api

#endif
