// SPDX-License-Identifier: BSD-3-Clause
// table.cc - the rows of the table and their timing.
#include "contrib/tools/perf/report.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

// Times register + deregister on one or many threads.

namespace {

constexpr uint64_t kBatchNs = 20000;  // far more than the cost of reading the clock
constexpr uint64_t kLargestBatch = 1000;
constexpr size_t kFewestBatches = 5;
constexpr size_t kShortestOrder = 4096;

// Binds the thread to the index-th processor (modulo their number) that this process may use.
void stay_on_core(unsigned index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const auto count = static_cast<unsigned>(CPU_COUNT(&allowed));
  unsigned skip = count == 0 ? 0 : index % count;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    return;
  }
}

// A barrier: threads wait until all have arrived, or until one could not be created.
class Gate {
 public:
  explicit Gate(unsigned expected) : expected_(expected) {}

  // False: a thread could not be created, so return.
  bool pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--expected_ == 0) changed_.notify_all();
    changed_.wait(lock, [this] { return expected_ == 0 || cancelled_; });
    return !cancelled_;
  }

  void cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned expected_;
  bool cancelled_ = false;
};

// One thread's share of a job.
class Worker {
 public:
  Worker(const Job& job, unsigned index, const std::vector<uint32_t>& order)
      : job_(job), first_(index * job.regions), index_(index), order_(order) {}

  void run(Gate* gate) {
    stay_on_core(index_);
    for (size_t i = 0; i < job_.regions && status == PINRAIL_SUCCESS; i++) status = pair(i);
    const bool all_there = gate->pass();
    start_ns = now_ns();
    if (all_there && status == PINRAIL_SUCCESS) time_batches();
    end_ns = now_ns();
  }

  pinrail_status_t status = PINRAIL_SUCCESS;
  std::vector<double> batches;  // nanoseconds of a pair
  uint64_t start_ns = 0, end_ns = 0, done = 0;

 private:
  pinrail_status_t pair(size_t region) {
    pinrail_handle_t handle;
    const pinrail_status_t got = pinrail_mpool_register(job_.pool, job_.buffers->at(first_ + region),
                                                        job_.buffers->size(), kAccess, job_.flags, &handle);
    return got == PINRAIL_SUCCESS ? pinrail_mpool_deregister(handle) : got;
  }

  uint64_t batch(uint64_t pairs) {
    const uint64_t begin = now_ns();
    for (uint64_t i = 0; i < pairs; i++) {
      status = pair(order_[next_]);
      if (status != PINRAIL_SUCCESS) break;
      if (++next_ == order_.size()) next_ = 0;
    }
    return now_ns() - begin;
  }

  void time_batches() {
    uint64_t pairs = 1;
    while (done < job_.operations && status == PINRAIL_SUCCESS) {
      pairs = std::min(pairs, job_.operations - done);
      const uint64_t spent = batch(pairs);
      batches.push_back(static_cast<double>(spent) / static_cast<double>(pairs));
      done += pairs;
      pairs = std::clamp<uint64_t>(kBatchNs * pairs / std::max<uint64_t>(spent, 1), 1, kLargestBatch);
      const bool late = job_.time_limit_ns != 0 && now_ns() - start_ns > job_.time_limit_ns;
      if (late && batches.size() >= kFewestBatches) break;
    }
  }

  const Job& job_;
  const size_t first_;
  const unsigned index_;
  const std::vector<uint32_t>& order_;
  size_t next_ = 0;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Measured summary(const std::vector<Worker>& workers) {
  Measured sum;
  std::vector<double> batches;
  uint64_t start = UINT64_MAX, end = 0, done = 0;
  for (const Worker& worker : workers) {
    if (sum.status == PINRAIL_SUCCESS) sum.status = worker.status;
    batches.insert(batches.end(), worker.batches.begin(), worker.batches.end());
    start = std::min(start, worker.start_ns);
    end = std::max(end, worker.end_ns);
    done += worker.done;
  }
  sum.ns = median(std::move(batches));
  if (end > start) sum.per_second = static_cast<double>(done) * 1e9 / static_cast<double>(end - start);
  return sum;
}

}  // namespace

std::vector<uint32_t> shuffled_order(size_t count) {
  std::vector<uint32_t> order;
  std::vector<uint32_t> once(count);
  std::iota(once.begin(), once.end(), 0);
  uint64_t random = 0x2545f4914f6cdd1du;
  while (order.size() < std::max(count, kShortestOrder)) {
    for (size_t i = count; i > 1; i--) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::swap(once[i - 1], once[(random >> 33) % i]);
    }
    order.insert(order.end(), once.begin(), once.end());
  }
  return order;
}

Measured measure(const Job& job) {
  const std::vector<uint32_t> order = shuffled_order(job.regions);
  std::vector<Worker> workers;
  for (unsigned i = 0; i < job.threads; i++) workers.emplace_back(job, i, order);
  Gate gate(job.threads);
  std::vector<std::thread> threads;
  Measured measured;
  try {
    for (Worker& worker : workers) threads.emplace_back([&worker, &gate] { worker.run(&gate); });
  } catch (const std::system_error&) {
    gate.cancel();
    measured.status = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    measured.no_threads = true;
  }
  for (std::thread& thread : threads) thread.join();
  return measured.no_threads ? measured : summary(workers);
}

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
