// SPDX-License-Identifier: BSD-3-Clause
// hit_cost - what a hit of rgpusm costs beside one of grdma: 1,000 peers with 100 allocations each, in random order,
// and as many ranges of host memory. Registrars that do nothing. Without validity slots, and with 1,000 segments of
// them, where a hit loads one more word; a line each tells the ratio. Not a part of make check.
//
// Blocks lie in the order in which they are used, as in the memory into which a transport receives them; and, for
// comparison, at random in 25 MB of the caller's, which adds what it takes to fetch them.
#include <pinrail/pinrail.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "base/slots/slots.h"
#include "framework/mpool/block.h"

namespace {

constexpr size_t kPeers = 1000, kEach = 100, kBytes = 65536;
constexpr int kRounds = 7;

pinrail_status_t do_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t forget(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_mpool_t* make_pool(const char* mpool, uint32_t kinds, size_t tail) {
  static pinrail_registrar_t table{};
  table = {};
  table.size = sizeof(table);
  table.name = "nothing";
  table.kinds = kinds;
  table.granularity = kinds == PINRAIL_KIND_HOST ? 4096 : 1;
  table.tail_size = tail;
  table.register_mem = do_nothing;
  table.deregister_mem = forget;
  pinrail_registrar_choice_t choice{};
  choice.table = &table;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = 1;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create(mpool, &choice, nullptr, &options, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

// Exporters under numbers that no process has, with segments of slots that are real.
using Exporters = std::vector<std::unique_ptr<pinrail::slots::Exporter>>;

constexpr uint32_t kFirstPid = 5000000;

pinrail::slots::Process process(size_t peer) {
  pinrail::slots::Process made;
  pinrail::slots::this_process(&made).ignore();
  made.pid = static_cast<uint32_t>(kFirstPid + peer);
  return made;
}

// None if there is no room for their segments, or for the files.
Exporters make_exporters() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Exporters exporters(kPeers);
  for (size_t i = 0; i < kPeers; ++i) {
    exporters[i] = std::make_unique<pinrail::slots::Exporter>();
    if (!exporters[i]->create(process(i), kEach).ok()) return {};
  }
  return exporters;
}

// exporters: of their slots, if there are any.
std::vector<pinrail_gpu_handle_t> make_blocks(const Exporters& exporters) {
  std::vector<pinrail_gpu_handle_t> blocks(kPeers * kEach);
  for (size_t i = 0; i < blocks.size(); ++i) {
    pinrail_gpu_handle_t& block = blocks[i];
    const pinrail::slots::Process owner = process(i / kEach);
    block.kind = PINRAIL_GPU_IPC;
    block.pid = owner.pid;
    block.user = owner.user;
    block.start = owner.start;
    block.machine = owner.machine;
    block.base = 0x100000000 + (i % kEach) * kBytes;
    block.length = kBytes;
    block.buffer_id = i + 1;
    if (!exporters.empty()) {
      pinrail::slots::Exporter& exporter = *exporters[i / kEach];
      block.segment = exporter.segment();
      if (!exporter.take(&block.slot, &block.slot_word).ok()) return {};
    }
    pinrail::seal_block(&block);
  }
  return blocks;
}

// The median over the rounds, in nanoseconds of one pair. The first round fills the cache.
template <typename Pair>
double measure(const std::vector<size_t>& order, Pair&& pair) {
  std::vector<double> costs;
  for (int round = 0; round <= kRounds; ++round) {
    const auto before = std::chrono::steady_clock::now();
    for (const size_t i : order) {
      if (!pair(i)) return -1;
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - before;
    if (round != 0) costs.push_back(spent.count() / static_cast<double>(order.size()));
  }
  std::sort(costs.begin(), costs.end());
  return costs[costs.size() / 2];
}

// What pairs of rgpusm cost with those blocks, -1 if they fail. In the order of their use, and at random.
struct Cost {
  double in_order, at_random;
};
Cost cost_of(const std::vector<pinrail_gpu_handle_t>& blocks, const std::vector<size_t>& order) {
  pinrail_mpool_t* const pool = make_pool("rgpusm", PINRAIL_KIND_REMOTE, sizeof(pinrail_gpu_handle_t));
  if (pool == nullptr || blocks.empty()) return {-1, -1};
  std::vector<pinrail_gpu_handle_t> received;
  received.reserve(order.size());
  for (const size_t i : order) received.push_back(blocks[i]);
  std::vector<size_t> arrival(order.size());
  for (size_t i = 0; i < arrival.size(); ++i) arrival[i] = i;
  const auto pairs = [&](const std::vector<pinrail_gpu_handle_t>& from, const std::vector<size_t>& in_order) {
    pinrail_handle_t handle{};
    return measure(in_order, [&](size_t i) {
      return pinrail_mpool_register_remote(pool, &from[i], 0, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS &&
             pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
    });
  };
  const Cost cost = {pairs(received, arrival), pairs(blocks, order)};
  return pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS ? cost : Cost{-1, -1};
}

double cost_of_host(const std::vector<size_t>& order) {
  pinrail_mpool_t* const pool = make_pool("grdma", PINRAIL_KIND_HOST, 0);
  if (pool == nullptr) return -1;
  pinrail_handle_t handle{};
  const double cost = measure(order, [&](size_t i) {
    void* const at = reinterpret_cast<void*>(0x10000000 + i * kBytes);  // NOLINT(performance-no-int-to-ptr)
    return pinrail_mpool_register(pool, at, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS &&
           pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
  });
  return pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS ? cost : -1;
}

// False if something failed.
bool say(const char* what, double host, Cost cost) {
  std::printf(
      "hit_cost: grdma %.1f ns, rgpusm %.1f ns, ratio %.2f (%.1f ns, ratio %.2f, where blocks lie at random), %s\n",
      host, cost.in_order, cost.in_order / host, cost.at_random, cost.at_random / host, what);
  return host > 0 && cost.in_order > 0 && cost.at_random > 0;
}

}  // namespace

int main() {
  const pinrail_setting_t settings[] = {{"monitor", "external"}, {"mpool_rgpusm_gc_interval", "0"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 2;
  if (pinrail_init(&options) != PINRAIL_SUCCESS) return 1;
  std::vector<size_t> order(kPeers * kEach);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));  // NOLINT(cert-msc51-cpp): the same order each time
  const double host = cost_of_host(order);
  bool well = say("without slots", host, cost_of(make_blocks({}), order));
  const Exporters exporters = make_exporters();
  if (exporters.empty()) {
    std::printf("hit_cost: no room for %zu segments of slots (/dev/shm, open files)\n", kPeers);
    well = false;
  } else {
    well = say("with slots", host, cost_of(make_blocks(exporters), order)) && well;
  }
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}
