// SPDX-License-Identifier: BSD-3-Clause
#include "test/fake/cuda/double_state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace pinrail::cuda_double {

State& state() {
  static auto* only = new State;  // never destroyed: atexit functions of tests still call
  return *only;
}

std::vector<CUcontext>& contexts() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

namespace {
void* pointer(uintptr_t at) { return reinterpret_cast<void*>(at); }  // NOLINT(performance-no-int-to-ptr)

// At the same address in every process, where nothing of the program's own is in the way.
bool make_arena(State* in) {
  if (in->arena != 0) return true;
  void* at = mmap(pointer(kArena), kArenaBytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) at = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  in->arena = reinterpret_cast<uintptr_t>(at);
  return true;
}
}  // namespace

uintptr_t State::take(size_t bytes) {
  if (!make_arena(this)) return 0;
  bytes = round_up(bytes);
  uintptr_t at = arena;
  for (const auto& [base, length] : taken) {
    if (base - at >= bytes) break;
    at = base + length;
  }
  if (at + bytes > arena + kArenaBytes) return 0;
  taken[at] = bytes;
  return at;
}

void State::give_back(uintptr_t at) {
  const auto found = taken.find(at);
  if (found == taken.end()) return;
  mmap(pointer(at), found->second, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  taken.erase(found);
}

std::map<uintptr_t, Allocation>::iterator State::holding(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return allocations.end();
  --after;
  return address < after->first + after->second.bytes ? after : allocations.end();
}

int make_memory(uint64_t id, size_t bytes) {
  char name[64];
  std::snprintf(name, sizeof(name), "cuda-double-%llu", static_cast<unsigned long long>(id));
  const int descriptor = memfd_create(name, MFD_CLOEXEC);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, static_cast<off_t>(round_up(bytes))) == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool map_at(uintptr_t at, size_t bytes, int descriptor) {
  return mmap(pointer(at), round_up(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) !=
         MAP_FAILED;
}

namespace {
// The n-th call from the order on, and later ones if it says so.
CUresult obey(State* in, const char* name) {
  const auto found = in->orders.find(name);
  if (found == in->orders.end() || found->second.nth == 0) return CUDA_SUCCESS;
  Order& order = found->second;
  if (order.nth > 1) {
    --order.nth;
    return CUDA_SUCCESS;
  }
  if (!order.every) order.nth = 0;
  return order.error;
}
}  // namespace

CUresult enter(const char* function) {
  State& in = state();
  ++in.calls[function];
  ++in.calls["*"];
  if (!in.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult any = obey(&in, "*");
  const CUresult own = obey(&in, function);
  return own != CUDA_SUCCESS ? own : any;
}

}  // namespace pinrail::cuda_double
