// SPDX-License-Identifier: BSD-3-Clause
// cuda.h - monitor/cuda: sees frees of GPU memory by patching the CUDA driver library. A static CUDA runtime finds the
// driver's functions by address, so symbols that are laid over them would miss its frees.
//
// Owns     its patches, which stay until the process ends.
// Threads  start and stop: start-up and shut-down; hooks on any thread.
//
// cuda/K1  Whoever listens is told before the driver is.
// cuda/K2  It says nothing about host memory, and does not count as a monitor for that.
// cuda/K3  In a forked child nobody listens: what did is the parent's. A process that was restarted from a checkpoint
//     is
// told
//     as before, whatever its pid.
#ifndef PINRAIL_COMPONENTS_MONITOR_CUDA_CUDA_H
#define PINRAIL_COMPONENTS_MONITOR_CUDA_CUDA_H

#include <pinrail/component.h>

#include <atomic>

#include "base/patch/patch.h"

namespace pinrail::cuda_monitor {

// What a function frees: its first argument alone, or with the second as length; or whatever is in a context, so that
// nothing is known to be left.
enum class Frees : uint8_t { address, range, everything };

struct Function {
  const char* symbol;
  const char* name;  // for cuGetProcAddress, by which CUDA runtimes find it
  Frees frees;
  bool may_lack;
};

// Code of the driver that does what the function says. A function may have two: the symbol, and what cuGetProcAddress
// gives.
struct Site {
  const Function* function = nullptr;
  uintptr_t address = 0;
  patch::Patch patch;
  // The code as it was, for the hook.
  std::atomic<uintptr_t> original{0};
  bool stands = false;
};

// Each copy of Pinrail that listens.
using Listener = std::atomic<const pinrail_host_t*>;
constexpr size_t kListeners = 8;
constexpr size_t kPage = 4096;

// Of the process, as the patches are: pages of their own, which the kernel wipes in a forked child (cuda/K3).
struct alignas(kPage) Shared {
  Listener listeners[kListeners] = {};
  std::atomic<uint64_t> in_flight{0};
  std::atomic<uint64_t> probes{0};  // frees of nothing, by which start() tries whether it sees
};
extern Shared shared;

long free_hook(void* site, const long* args);

}  // namespace pinrail::cuda_monitor

#endif
