// SPDX-License-Identifier: BSD-3-Clause
// What a call pins, chunk by chunk, and how a job of helper threads ends (pin_job.h). API context. A plan takes no lock
// and no reference; a job takes its own lock, and the references that its pins hold.
#include <fcntl.h>
#include <sched.h>

#include <limits>
#include <thread>

#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/registration/registration.h"
#include "framework/api/api.h"
#include "framework/api/pin_job.h"

namespace pinrail::api {
namespace {

constexpr uintptr_t kPage = 4096;

// The largest number where the sum is larger: ranges may overlap, and so may have more chunks than any memory has.
template <typename Number>
Number sum_of(Number a, Number b) {
  return b > std::numeric_limits<Number>::max() - a ? std::numeric_limits<Number>::max() : a + b;
}

}  // namespace

PinPlan::PinPlan(const pinrail_range_t* ranges, size_t count, size_t limit, size_t granularity)
    : page_(std::max<uintptr_t>(kPage, granularity)),
      limit_(limit == 0 ? SIZE_MAX : std::max(limit & ~(page_ - 1), page_)) {
  ranges_.reserve(count);
  for (size_t i = 0; i < count; ++i) ranges_.push_back({Span::of(ranges[i].addr, ranges[i].length), i, 0});
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return a.span.base != b.span.base ? a.span.base < b.span.base : a.span.end > b.span.end;
  });
  for (size_t first = 0; first < ranges_.size(); first = groups_.back().end_range) add_group(first);
}

void PinPlan::add_group(size_t first_range) {
  Group group{};
  group.first_range = first_range;
  group.first_chunk = chunk_count_;
  group.end_range = end_of_group(first_range, &group.span);
  const size_t whole = page_up(group.span.end) - page_down(group.span.base);
  if (whole > limit_) group.step = limit_;
  for (size_t i = first_range; i < group.end_range; ++i) ranges_[i].group = groups_.size();
  groups_.push_back(group);
  chunk_count_ = sum_of(chunk_count_, index_in(group, group.span.end - 1) + 1);
  bytes_ = sum_of(bytes_, uint64_t{group.span.length()});
}

// A range joins if it lies inside, or if it touches and the group stays within the limit.
size_t PinPlan::end_of_group(size_t first_range, Span* span_out) const {
  Span span = ranges_[first_range].span;
  size_t next = first_range + 1;
  for (; next < ranges_.size(); ++next) {
    const Span& range = ranges_[next].span;
    if (range.end <= span.end) continue;
    const bool touches = page_down(range.base) <= page_up(span.end);
    if (!touches || page_up(range.end) - page_down(span.base) > limit_) break;
    span.end = range.end;
  }
  *span_out = span;
  return next;
}

const PinPlan::Group& PinPlan::group_of(size_t chunk_number) const {
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), chunk_number,
                                      [](size_t number, const Group& group) { return number < group.first_chunk; });
  return *(after - 1);
}

Span PinPlan::chunk(size_t number) const {
  const Group& group = group_of(number);
  if (group.step == 0) return group.span;
  const uintptr_t base = (group.span.base / group.step + (number - group.first_chunk)) * group.step;
  const uintptr_t end = UINTPTR_MAX - base < group.step ? UINTPTR_MAX : base + group.step;
  return {std::max(base, group.span.base), std::min(end, group.span.end)};
}

size_t PinPlan::chunks_of(const Range& range) const {
  const Group& group = groups_[range.group];
  return index_in(group, range.span.end - 1) - index_in(group, range.span.base) + 1;
}

bool PinPlan::find_around(const Span& span, size_t* number_out) const {
  auto at = std::upper_bound(groups_.begin(), groups_.end(), span.base,
                             [](uintptr_t base, const Group& group) { return base < group.span.base; });
  while (at != groups_.begin()) {
    const Group& group = *--at;
    const size_t index = index_in(group, span.base);
    if (group.span.contains(span) && index == index_in(group, span.end - 1)) {
      *number_out = group.first_chunk + index;
      return true;
    }
    if (group.span.end <= span.base) return false;  // earlier groups end before this one: they do not nest
  }
  return false;
}

// API context; takes no lock and no reference. Helper threads call most of it.

namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

// The kernel's PAGEMAP_SCAN, which headers before Linux 6.7 lack.
struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArgument {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr uint64_t kPresent = 1 << 3, kHuge = 1 << 6;

}  // namespace

void prefault(const Span& span, int advice) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return;
  (void)madvise(pointer(pages.base), pages.length(), advice);
}

void request_huge_pages(const Span& span) {
  Span pages = span;
  if (round_in(&pages, kHugePage)) (void)madvise(pointer(pages.base), pages.length(), MADV_HUGEPAGE);
}

uint64_t huge_bytes(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return 0;
  const Descriptor file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return 0;
  PageRegion regions[16];
  auto scan = sized<ScanArgument>();
  scan.start = pages.base;
  scan.end = pages.end;
  scan.vec = reinterpret_cast<uintptr_t>(regions);
  scan.vec_len = sizeof(regions) / sizeof(regions[0]);
  scan.category_mask = scan.return_mask = kPresent | kHuge;
  uint64_t bytes = 0;
  while (scan.start < scan.end) {
    const int found = ioctl_of(file.get(), kPagemapScan, &scan);
    if (found < 0) break;
    for (int i = 0; i < found; ++i) bytes += regions[i].end - regions[i].start;
    if (scan.walk_end <= scan.start) break;
    scan.start = scan.walk_end;
  }
  return bytes;
}

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // More than 1,024 processors do not fit into the set.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::max(1u, std::thread::hardware_concurrency());
  const int count = CPU_COUNT(&set);
  return count > 1 ? static_cast<unsigned>(count) : 1;
}

// How a job ends, and what those see who wait for it. API context, inside a deferred::Call. Functions whose names end
// in _locked run under the job's lock; the others take it where they need it.

using mpool::PinTable;

// Keeps pin_job/J2.
void PinJob::finish_if_last() {
  {
    Guard guard(mutex_);
    const bool is_last = running_ == 0 && (queued_ == 0 || phase_ == Phase::stopping);
    if (phase_ >= Phase::finishing || !is_last) return;
    phase_ = Phase::finishing;
  }
  finish();
  std::unique_ptr<OwnFile> unused;  // closed without the lock
  Guard guard(mutex_);
  unused.swap(dmabuf_);
  phase_ = Phase::finished;
  changed_.notify_all();
}

// No chunk is running, and none will be. Keeps pin_job/J3.
void PinJob::finish() {
  bool keeps = false;
  {
    Guard guard(mutex_);
    keeps = !cancelled_ && (is_partial() || error_.ok());
  }
  const auto end_all = [&](bool keeps_them) {
    bool have_memory = true;
    for (size_t i = 0; i < plan_.ranges().size(); ++i) have_memory = end_range(i, keeps_them) && have_memory;
    return have_memory;
  };
  if (!end_all(keeps) && !is_partial()) (void)end_all(false);
}

// Turns the references of a range that is registered as a whole into a pin, if `keeps`, and drops all others, and those
// of a pin that it has. False: the range lacks memory for its pin.
bool PinJob::end_range(size_t range, bool keeps) {
  const Span& span = plan_.ranges()[range].span;
  const PinTable::Key key = {span.base, span.length(), wanted_.access};
  PinTable::Handles handles;
  bool has_pin = false;
  {
    Guard guard(mutex_);
    handles.swap(ranges_[range].handles);
    has_pin = std::exchange(ranges_[range].has_pin, false);
    keeps = keeps && ranges_[range].status == PINRAIL_SUCCESS;
  }
  PinTable::Pins removed;
  if (has_pin) pool()->pins.remove(&key, 1, &removed);
  Status added = success();
  if (keeps) {
    // Requests find the registration unless an event has ended it.
    const auto is_live = [](const pinrail_handle_t& handle) { return is_indexed(handle.reg); };
    added = guarded([&] { pool()->pins.add(key, &handles, is_live); });
    Guard guard(mutex_);
    ranges_[range].has_pin = added.ok();
    if (!added.ok()) ranges_[range].status = added.code();
    error_.keep_first(added);
  }
  drop_pins(&handles);
  drop_pins(&removed);
  return added.ok();
}

// Of a job that has finished: NOT_FOUND if it was cancelled, or the error of the first range, in the caller's order,
// that has one of its own.
Status PinJob::result_locked() const {
  if (cancelled_) return PINRAIL_ERR_NOT_FOUND;
  if (error_.ok()) return success();
  size_t first = SIZE_MAX;
  Status status = error_;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const pinrail_status_t own = ranges_[i].status;
    if (own == PINRAIL_SUCCESS || own == PINRAIL_ERR_ERROR || plan_.ranges()[i].number >= first) continue;
    first = plan_.ranges()[i].number;
    status = own;
  }
  return status;
}

Status PinJob::wait(pinrail_status_t* statuses_out) {
  Guard guard(mutex_);
  while (phase_ != Phase::finished) changed_.wait(mutex_);
  for (size_t i = 0; i < ranges_.size() && statuses_out != nullptr; ++i) {
    statuses_out[plan_.ranges()[i].number] = ranges_[i].status;
  }
  return result_locked();
}

// Helper threads go on with the first of these chunks that is queued.
Status PinJob::wait_range(const Span& span) {
  bool is_any = false;
  size_t first = SIZE_MAX;
  {
    Guard guard(mutex_);
    plan_.for_chunks(span, [&](size_t number) {
      assert_held(mutex_, LockRank::work);
      is_any = true;
      if (chunks_[number] == Chunk::queued) first = std::min(first, number);
    });
    if (first != SIZE_MAX) next_ = first;
  }
  if (!is_any) return PINRAIL_ERR_NOT_FOUND;
  pin_now(span);
  Guard guard(mutex_);
  bool is_pinned = is_partial() || error_.ok();  // otherwise what was registered is given back, or was
  plan_.for_chunks(span, [&](size_t number) {
    assert_held(mutex_, LockRank::work);
    is_pinned = is_pinned && chunks_[number] == Chunk::pinned;
  });
  return is_pinned && !cancelled_ ? success() : result_locked();
}

void PinJob::pin_now(const Span& span) {
  plan_.for_chunks(span, [&](size_t number) {
    bool is_own = false;
    {
      Guard guard(mutex_);
      is_own = take_locked(number);
      while (!is_own && chunks_[number] == Chunk::running) changed_.wait(mutex_);
    }
    if (is_own) run_chunk(number);
  });
}

bool PinJob::has_queued(const Span& span, uint32_t access) {
  const bool serves = (access & PINRAIL_TRAITS_MASK) == (wanted_.access & PINRAIL_TRAITS_MASK) &&
                      (access & PINRAIL_RIGHTS_MASK & ~wanted_.access) == 0;
  size_t number = 0;
  if (!serves || !plan_.find_around(span, &number)) return false;
  Guard guard(mutex_);
  return chunks_[number] == Chunk::running || (chunks_[number] == Chunk::queued && phase_ == Phase::working);
}

bool PinJob::is_unfinished() {
  Guard guard(mutex_);
  return phase_ != Phase::finished;
}

void PinJob::stop() {
  {
    Guard guard(mutex_);
    if (phase_ == Phase::working) {
      cancelled_ = true;
      phase_ = Phase::stopping;
    }
  }
  finish_if_last();
  std::vector<OwnThread> helpers;
  {
    Guard guard(mutex_);
    while (phase_ != Phase::finished) changed_.wait(mutex_);
    helpers.swap(helpers_);
  }
  const own_threads::Work ending;
  for (OwnThread& helper_thread : helpers) helper_thread.join();
}

void PinJob::read_progress(pinrail_prepin_progress_t* progress_out) {
  Guard guard(mutex_);
  progress_out->total_bytes = plan_.bytes();
  progress_out->pinned_bytes = pinned_bytes_;
  progress_out->huge_bytes = huge_bytes_;
  progress_out->total_chunks = chunks_.size();
  progress_out->pinned_chunks = pinned_;
  progress_out->limit = limit_.empty() ? nullptr : limit_.c_str();
  progress_out->is_finished = phase_ == Phase::finished ? 1 : 0;
  progress_out->status = phase_ == Phase::finished ? result_locked().code() : PINRAIL_SUCCESS;
}

}  // namespace pinrail::api
