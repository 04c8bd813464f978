// SPDX-License-Identifier: BSD-3-Clause
// hit_cost - what a hit of rgpusm costs beside one of grdma: 1,000 peers with 100 allocations each, in random order,
// and as many ranges of host memory. Registrars that do nothing. The last line tells the ratio. Not a part of make
// check.
//
// Blocks lie in the order in which they are used, as in the memory into which a transport receives them; and, for
// comparison, at random in 25 MB of the caller's, which adds what it takes to fetch them.
#include <pinrail/pinrail.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "base/slots/process.h"
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

std::vector<pinrail_gpu_handle_t> make_blocks() {
  pinrail::slots::Process self;
  pinrail::slots::this_process(&self).ignore();
  std::vector<pinrail_gpu_handle_t> blocks(kPeers * kEach);
  for (size_t i = 0; i < blocks.size(); ++i) {
    pinrail_gpu_handle_t& block = blocks[i];
    block.kind = PINRAIL_GPU_IPC;
    block.pid = static_cast<uint32_t>(5000000 + i / kEach);  // numbers that no process has
    block.user = geteuid();
    block.start = self.start;
    block.machine = self.machine;
    block.base = 0x100000000 + (i % kEach) * kBytes;
    block.length = kBytes;
    block.buffer_id = i + 1;
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
  pinrail_mpool_t* const host = make_pool("grdma", PINRAIL_KIND_HOST, 0);
  pinrail_mpool_t* const peer = make_pool("rgpusm", PINRAIL_KIND_REMOTE, sizeof(pinrail_gpu_handle_t));
  if (host == nullptr || peer == nullptr) return 1;
  const std::vector<pinrail_gpu_handle_t> blocks = make_blocks();
  std::vector<pinrail_gpu_handle_t> received;
  received.reserve(order.size());
  for (const size_t i : order) received.push_back(blocks[i]);
  std::vector<size_t> arrival(order.size());
  for (size_t i = 0; i < arrival.size(); ++i) arrival[i] = i;
  pinrail_handle_t handle{};
  const double grdma = measure(order, [&](size_t i) {
    void* const at = reinterpret_cast<void*>(0x10000000 + i * kBytes);  // NOLINT(performance-no-int-to-ptr)
    return pinrail_mpool_register(host, at, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS &&
           pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
  });
  const auto cost_of = [&](const std::vector<pinrail_gpu_handle_t>& from, const std::vector<size_t>& in_order) {
    return measure(in_order, [&](size_t i) {
      return pinrail_mpool_register_remote(peer, &from[i], 0, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS &&
             pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
    });
  };
  const double rgpusm = cost_of(received, arrival);
  const double scattered = cost_of(blocks, order);
  std::printf("hit_cost: grdma %.1f ns, rgpusm %.1f ns, ratio %.2f (%.1f ns, ratio %.2f, where blocks lie at random)\n",
              grdma, rgpusm, rgpusm / grdma, scattered, scattered / grdma);
  const bool well = pinrail_mpool_destroy(host, 0) == PINRAIL_SUCCESS &&
                    pinrail_mpool_destroy(peer, 0) == PINRAIL_SUCCESS && pinrail_finalize() == PINRAIL_SUCCESS;
  return well && grdma > 0 && rgpusm > 0 ? 0 : 1;
}
