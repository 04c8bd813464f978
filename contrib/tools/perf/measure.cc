// SPDX-License-Identifier: BSD-3-Clause
// measure.cc - times register + deregister on one or many threads.
#include "contrib/tools/perf/measure.h"

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

}  // namespace pinrail::perf
