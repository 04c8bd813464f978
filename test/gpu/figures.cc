// SPDX-License-Identifier: BSD-3-Clause
// figures - what the cache of peers' GPU memory is worth, and when the owner's memory comes back: cuIpcOpenMemHandle
// beside a register + deregister that hits; and how long after a free the GPU has the bytes again that a peer had open
// and idle. Two processes; prints one JSON object.
//   figures [--double]
// Exit: 0; 1 something failed, the memory never came back, or (real driver) a hit is not 500 times cheaper than an
// open; 2 usage; 77 no driver or no GPU here.
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "test/gpu/driver.h"

using namespace pinrail::gpu_test;

namespace {

constexpr size_t kBytes = size_t{256} << 20;  // large enough to be seen beside what else happens on the GPU
constexpr int kOpens = 200, kHits = 1000000;
constexpr double kLeastRatio = 500;
constexpr uint32_t kLookMs = 100;  // mpool_rgpusm_gc_interval's default
constexpr uint32_t kGiveUpMs = 30000;

using Clock = std::chrono::steady_clock;
double ns_since(Clock::time_point before, double count) {
  return std::chrono::duration<double, std::nano>(Clock::now() - before).count() / count;
}

// What the exporter sees of its own free.
struct Freed {
  double released_ms;   // until the GPU had the bytes again; below 0: never
  size_t free_at_once;  // bytes that were there again when cuMemFree returned: the peer still had them open
};

bool free_bytes(const Driver& driver, size_t* bytes_out) {
  size_t total = 0;
  return driver.info(bytes_out, &total) == CUDA_SUCCESS;
}

// Nine tenths of the bytes: others may use the GPU too.
bool watch_release(const Driver& driver, CUdeviceptr at, Freed* freed) {
  size_t before = 0, now = 0;
  const timespec pause{0, 1000000};
  if (!free_bytes(driver, &before)) return false;
  pinrail_monitor_report(pointer_of(at), kBytes);
  const auto begin = Clock::now();
  if (driver.free(at) != CUDA_SUCCESS || !free_bytes(driver, &now)) return false;
  freed->free_at_once = now > before ? now - before : 0;
  freed->released_ms = -1;
  while (now < before + kBytes / 10 * 9) {
    if (ns_since(begin, 1e6) > kGiveUpMs) return true;
    nanosleep(&pause, nullptr);
    if (!free_bytes(driver, &now)) return false;
  }
  freed->released_ms = ns_since(begin, 1e6);
  return true;
}

int export_it(const Driver& driver, int socket) {
  const char* why = "";
  if (!driver.start(&why)) return 77;
  if (!initialise({{"monitor", "external"}})) return 1;
  pinrail_mpool_t* pool = make_pool("gpusm", 1, PINRAIL_UNSET);
  pinrail_gpu_block_t block{};
  CUdeviceptr at = 0;
  size_t offset = 0;
  char go = 0;
  Freed freed{};
  bool well = pool != nullptr && driver.alloc(&at, kBytes) == CUDA_SUCCESS &&
              pinrail_mpool_export(pool, pointer_of(at), kBytes, &block, &offset) == PINRAIL_SUCCESS &&
              send_all(socket, &block, sizeof(block)) && receive_all(socket, &go, 1);
  well = well && watch_release(driver, at, &freed) && send_all(socket, &freed, sizeof(freed));
  well = pool != nullptr && pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}

bool measure_opens(const Driver& driver, const pinrail_gpu_block_t& block, double* open_ns, double* close_ns) {
  CUipcMemHandle handle;
  std::memcpy(&handle, block.driver, sizeof(handle));
  *open_ns = *close_ns = 0;
  for (int i = 0; i < kOpens; ++i) {
    CUdeviceptr at = 0;
    const auto before = Clock::now();
    if (driver.open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return false;
    *open_ns += ns_since(before, kOpens);
    const auto opened = Clock::now();
    if (driver.close(at) != CUDA_SUCCESS) return false;
    *close_ns += ns_since(opened, kOpens);
  }
  return true;
}

bool use(pinrail_mpool_t* pool, const pinrail_gpu_block_t& block) {
  pinrail_handle_t handle{};
  return pinrail_mpool_register_remote(pool, &block, 0, kBytes, PINRAIL_ACCESS_REMOTE_READ, 0, &handle) ==
             PINRAIL_SUCCESS &&
         pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
}

bool measure_hits(pinrail_mpool_t* pool, const pinrail_gpu_block_t& block, double* hit_ns) {
  if (!use(pool, block)) return false;
  const auto before = Clock::now();
  for (int i = 0; i < kHits; ++i) {
    if (!use(pool, block)) return false;
  }
  *hit_ns = ns_since(before, kHits);
  return true;
}

bool import_it(const Driver& driver, int socket, bool is_double) {
  const char* why = "";
  pinrail_gpu_block_t block{};
  double open_ns = 0, close_ns = 0, hit_ns = 0;
  Freed freed{};
  if (!driver.start(&why) || !initialise({{"monitor", "external"}})) return false;
  pinrail_mpool_t* pool = make_pool("rgpusm", 1, PINRAIL_UNSET);
  bool well = pool != nullptr && receive_all(socket, &block, sizeof(block)) &&
              measure_opens(driver, block, &open_ns, &close_ns) && measure_hits(pool, block, &hit_ns);
  well = well && send_all(socket, "g", 1) && receive_all(socket, &freed, sizeof(freed));
  well = pool != nullptr && pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  well = pinrail_finalize() == PINRAIL_SUCCESS && well;
  if (!well) return false;
  std::printf(
      "{\"open_ns\": %.0f, \"close_ns\": %.0f, \"hit_and_release_ns\": %.1f, \"open_to_hit\": %.0f, \"bytes\": %zu, "
      "\"free_at_once\": %zu, \"released_ms\": %.1f, \"gc_interval_ms\": %u}\n",
      open_ns, close_ns, hit_ns, open_ns / hit_ns, kBytes, freed.free_at_once, freed.released_ms, kLookMs);
  if (freed.released_ms < 0) std::fprintf(stderr, "figures: the memory did not come back in %u ms\n", kGiveUpMs);
  return freed.released_ms >= 0 && (is_double || open_ns / hit_ns >= kLeastRatio);
}

}  // namespace

int main(int argc, char** argv) {
  Driver driver;
  bool is_double = false;
  if (!read_double(argc, argv, "figures", &is_double)) return 2;
  if (!driver.load("figures", is_double)) return 77;
  const TwoProcesses both([&](int socket) { return export_it(driver, socket); });  // before the driver is started
  return both.end(import_it(driver, both.socket(), is_double) ? 0 : 1);
}
