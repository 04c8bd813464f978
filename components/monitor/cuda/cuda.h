// SPDX-License-Identifier: BSD-3-Clause
// cuda.h - monitor/cuda: sees frees of GPU memory by patching the CUDA driver library. A statically linked CUDA runtime
// finds the driver's functions by address, so interposed symbols would miss its frees.
//
// Owns     its patches, which stay until the process ends.
// Threads  start and stop: start-up and shut-down; they take the component's lock. Hooks run on any thread.
//
// Listeners get the event before the driver frees the memory. The monitor reports nothing about host memory and does
// not count as a monitor for it.
//
// cuda/K3  A forked child has no listeners: those of the parent are the parent's. In a process that was restarted from
//     a checkpoint the listeners still get events, even if its pid has changed.
#ifndef PINRAIL_COMPONENTS_MONITOR_CUDA_CUDA_H
#define PINRAIL_COMPONENTS_MONITOR_CUDA_CUDA_H

#include <pinrail/component.h>

#include <atomic>

#include "base/patch/patch.h"

namespace pinrail::cuda_monitor {

// What a function frees: the allocation at its first argument; the range of its first two arguments; or everything in a
// context, of which no list exists.
enum class Frees : uint8_t { address, range, everything };

struct Function {
  const char* symbol;
  const char* name;  // name for cuGetProcAddress, by which CUDA runtimes find it
  Frees frees;
  bool may_lack;
};

// One entry point of a function in the driver. A function may have several: the symbol, and the results of
// cuGetProcAddress.
struct Site {
  const Function* function = nullptr;
  uintptr_t address = 0;
  patch::Patch patch;
  // Of another copy of Pinrail whose component is not this one; NULL: none. It is written before the patch.
  std::atomic<const patch::Record*> original{nullptr};
  bool stands = false;
};

// One for each copy of Pinrail that listens.
using Listener = std::atomic<const pinrail_host_t*>;
constexpr size_t kListeners = 8;
constexpr size_t kPage = 4096;

// It belongs to the process, as the patches do. It has pages of its own, which the kernel wipes in a forked child
// (cuda/K3).
struct alignas(kPage) Shared {
  Listener listeners[kListeners] = {};
  std::atomic<uint64_t> in_flight{0};
  std::atomic<uint64_t> probes{0};  // number of frees of address 0, by which start() tests whether frees are seen
};
extern Shared shared;

// Hook context.
bool free_hook(void* site, long number, const long* args, long* result_out);

}  // namespace pinrail::cuda_monitor

#endif
