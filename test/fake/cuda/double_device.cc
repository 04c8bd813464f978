// SPDX-License-Identifier: BSD-3-Clause
// How much of the device's memory is in use, by all processes together.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "test/fake/cuda/double_state.h"

namespace pinrail::cuda_double {
namespace {

constexpr size_t kMost = 4096;  // what comes beyond is not counted

struct Held {
  std::atomic<uint64_t> key;  // 0: free
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> holders;
};

struct Device {
  Held held[kMost];
};

// Shared with the processes that are forked from the one that loaded the library.
Device* make_device() {
  void* at = mmap(nullptr, sizeof(Device), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Device*>(at);  // zeros: all free
}
Device* const device = make_device();

uint64_t key_of(uint64_t owner, uint64_t id) { return (owner * 0x9e3779b97f4a7c15u + id) | 1; }  // 0: free

Held* find(uint64_t key) {
  if (device == nullptr) return nullptr;
  for (Held& held : device->held) {
    if (held.key.load() == key) return &held;
  }
  return nullptr;
}

}  // namespace

void hold_memory(uint64_t owner, uint64_t id, size_t bytes) {
  const uint64_t key = key_of(owner, id);
  Held* held = find(key);
  if (held == nullptr && device != nullptr) {
    for (Held& each : device->held) {
      uint64_t free_key = 0;
      if (!each.key.compare_exchange_strong(free_key, key)) continue;
      held = &each;
      held->bytes.store(bytes);
      break;
    }
  }
  if (held != nullptr) ++held->holders;
}

void let_memory_go(uint64_t owner, uint64_t id) {
  Held* held = find(key_of(owner, id));
  if (held == nullptr || --held->holders != 0) return;
  held->bytes.store(0);
  held->key.store(0);
}

size_t memory_in_use() {
  size_t sum = 0;
  for (size_t i = 0; device != nullptr && i < kMost; ++i) sum += device->held[i].bytes.load();
  return sum;
}

}  // namespace pinrail::cuda_double

using namespace pinrail::cuda_double;

extern "C" CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call("cuMemGetInfo", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *total_bytes = kArenaBytes;
    *free_bytes = kArenaBytes - memory_in_use();
    return CUDA_SUCCESS;
  });
}
