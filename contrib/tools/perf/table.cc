// SPDX-License-Identifier: BSD-3-Clause
// table.cc - the rows of the table and their timing.
#include "contrib/tools/perf/table.h"

#include <algorithm>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

constexpr uint64_t kDefaultOperations = 10000;
constexpr uint64_t kCachedNs = 250000000, kUncachedNs = 200000000;
constexpr size_t kHugeSize = size_t{2} << 20;

constexpr uint64_t kMaxLimitedSteps = 2000;
constexpr size_t kRemapped = 4;
// The pool adds up all registrations for its statistics, so with many of them not each step reads these.
constexpr uint64_t kMostBudgetChecks = 500;

std::string name_of_step(const Buffers& buffers, size_t index) {
  return text("%s, buffer %zu", size_text(buffers.size()).c_str(), index);
}

// More steps where a limit keeps some of the buffers out.
uint64_t steps_of(const Options& options, const Session& session, uint64_t buffers, size_t size) {
  const pinrail_mpool_stats_t stats = session.stats();
  if (stats.size_limit / size >= buffers && stats.count_limit >= buffers) return 2 * buffers;
  const uint64_t asked = options.iterations == 0 ? kMaxLimitedSteps : options.iterations;
  return std::max(2 * buffers, std::min(asked, kMaxLimitedSteps));
}

}  // namespace

Table::Table(const Options& options, const Session& session, Errors* errors)
    : options_(options),
      session_(session),
      errors_(errors),
      bytes_(session.registrar_name(), errors),
      budget_(session, errors) {}

std::vector<Row> Table::run() {
  std::vector<Row> rows;
  for (size_t i = 0; i < options_.sizes.size(); i++) {
    const size_t size = options_.sizes[i];
    progress_.show("pinrail_perf: " + size_text(size), i, options_.sizes.size());
    rows.push_back(row(size, Pages::small));
    if (size == kHugeSize) rows.push_back(row(size, Pages::huge));
  }
  progress_.erase();
  return rows;
}

Row Table::row(size_t size, Pages pages) {
  Row row;
  row.size = size;
  row.pages = pages;
  const uint64_t errors_before = errors_->count();
  Buffers buffers;
  Result mapped = map(row, &buffers);
  if (!mapped.ok()) {
    row.reason = mapped.why();
    return row;
  }
  budget_.begin(pages == Pages::small);
  if (time_uncached(buffers, &row) && time_cached(buffers, &row)) verify(&buffers);
  row.growth = budget_.growth();
  changes_before_ += buffers.changes() + 1;
  buffers.unmap();
  (void)pinrail_mpool_progress(session_.pool());
  row.errors = errors_->count() - errors_before;
  return row;
}

Result Table::map(const Row& row, Buffers* buffers) {
  const int64_t huge_before = huge_bytes();
  Result mapped = buffers->map(options_.regions * options_.threads, row.size, row.pages);
  if (mapped.ok() && row.pages == Pages::huge && huge_bytes() <= huge_before)
    return Result::bad("this kernel gave no transparent hugepage");
  return mapped;
}

Job Table::job(const Buffers& buffers) const {
  const uint64_t operations = options_.iterations != 0 ? options_.iterations : kDefaultOperations;
  return {nullptr, 0, &buffers, options_.threads, options_.regions, operations, 0};
}

bool Table::time_uncached(const Buffers& buffers, Row* row) {
  Job uncached = job(buffers);
  uncached.pool = session_.uncached();
  uncached.flags = PINRAIL_FLAG_CACHE_BYPASS;
  uncached.time_limit_ns = kUncachedNs;
  const Measured measured = measure(uncached);
  if (measured.status != PINRAIL_SUCCESS) {
    refused(measured, row);
    return false;
  }
  row->uncached_ns = measured.ns;
  row->uncached_per_second = measured.per_second;
  return true;
}

bool Table::time_cached(const Buffers& buffers, Row* row) {
  Job cached = job(buffers);
  cached.pool = session_.pool();
  if (options_.iterations == 0) cached.time_limit_ns = kCachedNs;
  const pinrail_mpool_stats_t before = session_.stats();
  const Measured measured = measure(cached);
  const pinrail_mpool_stats_t after = session_.stats();
  row->hits = after.hits - before.hits;
  row->misses = after.misses - before.misses;
  for (uint32_t i = 0; i < row->reasons.size(); ++i)
    row->reasons[i] = pinrail_stats_misses(&after, i) - pinrail_stats_misses(&before, i);
  row->evictions = after.evictions - before.evictions;
  row->registered_bytes = after.registered_bytes;
  row->pinned_bytes = after.pinned_bytes;
  if (measured.status != PINRAIL_SUCCESS) {
    refused(measured, row);
    return false;
  }
  row->cached_ns = measured.ns;
  row->cached_per_second = measured.per_second;
  return true;
}

void Table::refused(const Measured& measured, Row* row) {
  if (measured.no_threads) {
    row->reason = text("the system does not give %u threads", options_.threads);
    return;
  }
  row->reason = pinrail_status_name(measured.status);
  if (measured.status == PINRAIL_ERR_NOT_SUPPORTED) {
    row->reason = "the registrar takes no buffer of this size";
    return;
  }
  if (!is_refusal(measured.status)) {
    errors_->add(size_text(row->size) + ": register or deregister: " + row->reason);
    return;
  }
  // Each other thread may have held one buffer when this one was refused; none is held now.
  const Refusal refusal = explain_refusal(session_, measured.status, row->size, 0);
  if (crowded(row->size)) {
    row->reason =
        text("%u threads cannot use one buffer each at once: %s", options_.threads, limit_text(session_).c_str());
    return;
  }
  row->reason = refusal.why;
  if (!refusal.legitimate) errors_->add(refusal.why);
}

bool Table::crowded(size_t size) const {
  const pinrail_mpool_stats_t stats = session_.stats();
  const uint64_t one = round_up(size, page_size()), room = std::min(stats.size_limit, memlock_limit());
  return one <= room && (room < one * options_.threads || stats.count_limit < options_.threads);
}

void Table::verify(Buffers* buffers) {
  const std::vector<uint32_t> order = shuffled_order(buffers->count());
  const uint64_t steps = steps_of(options_, session_, buffers->count(), buffers->size());
  const uint64_t stride = 1 + steps / kMostBudgetChecks;
  for (uint64_t i = 0; i < steps; i++) {
    const Depth depth = i < 2 * buffers->count() ? Depth::bytes_too : Depth::coverage_only;
    const uint32_t index = order[i % order.size()];
    if (!verify_step(*buffers, index, depth)) return;
    if (i % stride == 0 || i + 1 == steps) budget_.check(name_of_step(*buffers, index));
    progress_.show(text("pinrail_perf: checking %s", size_text(buffers->size()).c_str()), i, steps);
  }
  if (buffers->pages() == Pages::small) verify_remapped(buffers);
}

void Table::verify_remapped(Buffers* buffers) {
  for (size_t i = 0; i < std::min(kRemapped, buffers->count()); i++) {
    const Result remapped = buffers->remap(i);
    if (!remapped.ok()) {
      errors_->add(remapped.why());
      return;
    }
    (void)pinrail_mpool_progress(session_.pool());
    if (!verify_step(*buffers, i, Depth::bytes_too)) return;
    budget_.check(name_of_step(*buffers, i));
  }
}

bool Table::verify_step(const Buffers& buffers, size_t index, Depth depth) {
  const std::string when = name_of_step(buffers, index);
  void* const addr = buffers.at(index);
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(session_.pool(), addr, buffers.size(), kAccess, 0, &handle);
  if (status != PINRAIL_SUCCESS) {
    errors_->add(when + ": register, with nothing in use: " + pinrail_status_name(status));
    return false;
  }
  const uint64_t now = changes_before_ + 1;
  const Asked asked = {addr, buffers.size(), kAccess, now + buffers.changed_at(index), now + buffers.changes()};
  if (depth == Depth::bytes_too)
    bytes_.check(asked, handle);
  else
    bytes_.check_coverage(asked, handle);
  status = pinrail_mpool_deregister(handle);
  if (status != PINRAIL_SUCCESS) errors_->add(when + ": deregister: " + pinrail_status_name(status));
  return status == PINRAIL_SUCCESS;
}

}  // namespace pinrail::perf
