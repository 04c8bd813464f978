// SPDX-License-Identifier: BSD-3-Clause
// hit_cost - what a hit of rgpusm costs beside one of grdma: 1,000 peers with 100 allocations each, in random order,
// and as many ranges of host memory. Registrars that do nothing. Without validity slots, and with 1,000 segments of
// them, where a hit loads one more word. Not a part of make check.
//
// All take turns, pass by pass, so that what else the machine does meets all alike; a line each tells the median ratio
// of a turn, its quartiles and the largest one. Blocks lie in a ring of buffers, where transports receive them, just
// written; and, for comparison, at random in 25 MB of the caller's, which adds what it takes to fetch them.
#include <pinrail/pinrail.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/slots/slots.h"
#include "framework/mpool/gpu_block.h"

namespace {

constexpr size_t kPeers = 1000, kEach = 100, kBytes = 65536;
constexpr int kTurns = 15;

pinrail_status_t do_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t forget(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_mpool_t* make_pool(const char* mpool, uint32_t kinds, size_t tail) {
  pinrail_registrar_t table{};
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

// Exporters that are this process, as if it had been started at other times, with segments of slots that are real.
using Exporters = std::vector<std::unique_ptr<pinrail::slots::Exporter>>;

pinrail::slots::Process process(size_t peer) {
  pinrail::slots::Process made;
  pinrail::slots::this_process(&made).ignore();
  made.start += 1 + peer;
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

// What differs between allocations: what a message would tell, in the order of arrival.
struct Told {
  uint32_t peer, which, slot;
  uint64_t word;
};

// Blocks of allocations, written as they are asked for.
class Blocks {
 public:
  // exporters: of their slots, if there are any.
  explicit Blocks(const Exporters* exporters) : exporters_(exporters), owner_(process(0)) {
    if (exporters_ == nullptr) return;
    slots_.resize(kPeers * kEach);
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!(*exporters_)[i / kEach]->take(&slots_[i].slot, &slots_[i].word).ok()) std::abort();  // they have room
    }
  }

  Told tell(size_t i) const {
    const Slot slot = slots_.empty() ? Slot{} : slots_[i];
    return {static_cast<uint32_t>(i / kEach), static_cast<uint32_t>(i % kEach), slot.slot, slot.word};
  }

  void write(const Told& told, pinrail_gpu_block_t* block) const {
    *block = {};
    block->kind = PINRAIL_GPU_IPC;
    block->pid = owner_.pid;
    block->user = owner_.user;
    block->start = owner_.start + told.peer;
    block->machine = owner_.machine;
    block->base = 0x100000000 + told.which * kBytes;
    block->length = kBytes;
    block->buffer_id = told.peer * kEach + told.which + 1;
    if (exporters_ != nullptr) {
      block->segment = (*exporters_)[told.peer]->segment();
      block->slot = told.slot;
      block->slot_word = told.word;
    }
    pinrail::seal_block(block);
  }

 private:
  struct Slot {
    uint32_t slot;
    uint64_t word;
  };
  const Exporters* exporters_;
  pinrail::slots::Process owner_;
  std::vector<Slot> slots_;
};

// Pools that take turns. A pass uses each thing once, in the same random order.
class Contender {
 public:
  Contender(const char* mpool, uint32_t kinds, size_t tail) : pool_(make_pool(mpool, kinds, tail)) {}
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;
  bool is_there() const { return pool_ != nullptr; }
  bool destroy() { return pinrail_mpool_destroy(pool_, 0) == PINRAIL_SUCCESS; }

  // Nanoseconds of a pair; NaN if one failed. What prepare() does is not counted.
  double pass() {
    using Clock = std::chrono::steady_clock;
    Clock::duration spent{};
    for (size_t from = 0; from < kPeers * kEach; from += kRing) {
      const size_t count = std::min(kRing, kPeers * kEach - from);
      prepare(from, count);
      const auto before = Clock::now();
      if (!use(from, count)) return std::numeric_limits<double>::quiet_NaN();
      spent += Clock::now() - before;
    }
    return std::chrono::duration<double, std::nano>(spent).count() / (kPeers * kEach);
  }

 protected:
  static constexpr size_t kRing = 64;
  virtual void prepare(size_t from, size_t count) = 0;
  virtual bool use(size_t from, size_t count) = 0;
  bool use_block(const pinrail_gpu_block_t& block) {
    pinrail_handle_t handle{};
    return pinrail_mpool_register_remote(pool_, &block, 0, kBytes, 1, 0, &handle) == PINRAIL_SUCCESS &&
           pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
  }
  pinrail_mpool_t* const pool_;
};

class Host : public Contender {
 public:
  explicit Host(const std::vector<size_t>& order) : Contender("grdma", PINRAIL_KIND_HOST, 0), order_(order) {}

 private:
  void prepare(size_t from, size_t count) override {
    for (size_t k = 0; k < count; ++k) ring_[k] = 0x10000000 + order_[from + k] * kBytes;
  }
  bool use(size_t /*from*/, size_t count) override {
    for (size_t k = 0; k < count; ++k) {
      void* const at = reinterpret_cast<void*>(ring_[k]);  // NOLINT(performance-no-int-to-ptr): an address that is used
      pinrail_handle_t handle{};
      if (pinrail_mpool_register(pool_, at, kBytes, 1, 0, &handle) != PINRAIL_SUCCESS) return false;
      if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) return false;
    }
    return true;
  }
  const std::vector<size_t>& order_;
  std::array<uintptr_t, kRing> ring_{};
};

constexpr size_t kTail = sizeof(pinrail_gpu_block_t);

// Blocks that were just received.
class Received : public Contender {
 public:
  Received(const std::vector<size_t>& order, const Blocks& blocks)
      : Contender("rgpusm", PINRAIL_KIND_REMOTE, kTail), blocks_(blocks) {
    told_.reserve(order.size());
    for (const size_t i : order) told_.push_back(blocks_.tell(i));
  }

 private:
  void prepare(size_t from, size_t count) override {
    for (size_t k = 0; k < count; ++k) blocks_.write(told_[from + k], &ring_[k]);
  }
  bool use(size_t /*from*/, size_t count) override {
    for (size_t k = 0; k < count; ++k) {
      if (!use_block(ring_[k])) return false;
    }
    return true;
  }
  const Blocks& blocks_;
  std::vector<Told> told_;
  std::array<pinrail_gpu_block_t, kRing> ring_{};
};

// Blocks that the caller keeps, and finds at random.
class Kept : public Contender {
 public:
  Kept(const std::vector<size_t>& order, const Blocks& blocks)
      : Contender("rgpusm", PINRAIL_KIND_REMOTE, kTail), order_(order), kept_(order.size()) {
    for (size_t i = 0; i < kept_.size(); ++i) blocks.write(blocks.tell(i), &kept_[i]);
  }

 private:
  void prepare(size_t /*from*/, size_t /*count*/) override {}
  bool use(size_t from, size_t count) override {
    for (size_t k = from; k < from + count; ++k) {
      if (!use_block(kept_[order_[k]])) return false;
    }
    return true;
  }
  const std::vector<size_t>& order_;
  std::vector<pinrail_gpu_block_t> kept_;
};

double quantile(std::vector<double> sorted, double q) {
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

// False if something failed.
bool compare(const char* what, const std::vector<size_t>& order, Contender* gpu) {
  Host host(order);
  if (!host.is_there() || !gpu->is_there()) return false;
  std::vector<double> hosts, gpus, ratios;
  for (int turn = 0; turn <= kTurns; ++turn) {
    const double of_host = host.pass(), of_gpu = gpu->pass();
    if (std::isnan(of_host) || std::isnan(of_gpu)) return false;
    if (turn == 0) continue;  // it fills the caches
    hosts.push_back(of_host);
    gpus.push_back(of_gpu);
    ratios.push_back(of_gpu / of_host);
  }
  std::printf("hit_cost: %-36s grdma %5.1f ns, rgpusm %5.1f ns, ratio %.2f (quartiles %.2f to %.2f, largest %.2f)\n",
              what, quantile(hosts, 0.5), quantile(gpus, 0.5), quantile(ratios, 0.5), quantile(ratios, 0.25),
              quantile(ratios, 0.75), quantile(ratios, 1));
  return host.destroy() && gpu->destroy();
}

}  // namespace

int main() {
  const pinrail_setting_t settings[] = {{"monitor", "external"}, {"mpool_rgpusm_gc_interval", "0"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 2;
  if (pinrail_init(&options) != PINRAIL_SUCCESS) return 1;
  std::vector<size_t> order(kPeers * kEach);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));  // NOLINT(cert-msc51-cpp): the same order each time
  const Exporters exporters = make_exporters();
  if (exporters.empty()) {
    std::printf("hit_cost: no room for %zu segments of slots (memory, open files)\n", kPeers);
    return 1;
  }
  const Blocks without(nullptr), with(&exporters);
  Received few(order, without), all(order, with);
  Kept kept(order, with);
  const bool well = compare("without slots", order, &few) && compare("with slots", order, &all) &&
                    compare("with slots, blocks in 25 MB", order, &kept);
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}
