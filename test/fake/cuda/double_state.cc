// SPDX-License-Identifier: BSD-3-Clause
#include "test/fake/cuda/double_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace pinrail::cuda_double {

State& state() {
  static auto* only = new State;  // never destroyed: atexit functions of tests still call
  return *only;
}

// A forked child has its parent's life and another pid.
uint64_t this_owner() {
  static const uint32_t life = [] {
    uint32_t drawn = 0;
    return getrandom(&drawn, sizeof(drawn), 0) == ssize_t{sizeof(drawn)} ? drawn : 0;
  }();
  return owner_of(static_cast<uint32_t>(getpid()), life);
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

uintptr_t State::take(size_t bytes, size_t alignment) {
  if (!make_arena(this)) return 0;
  const auto aligned = [&](uintptr_t address) { return (address + alignment - 1) & ~(alignment - 1); };
  bytes = round_up(bytes);
  uintptr_t at = aligned(arena);
  for (const auto& [base, length] : taken) {
    if (base >= at && base - at >= bytes) break;
    at = aligned(base + length);
  }
  if (at + bytes > arena + kArenaBytes) return 0;
  taken[at] = bytes;
  return at;
}

void State::give_back(uintptr_t at) {
  const auto found = taken.find(at);
  if (found == taken.end()) return;
  unmap_at(at, found->second);
  taken.erase(found);
}

uintptr_t State::map(size_t bytes, int descriptor) {
  const uintptr_t at = take(bytes);
  if (at == 0 || map_at(at, bytes, descriptor)) return at;
  give_back(at);
  return 0;
}

std::map<uintptr_t, Allocation>::iterator State::holding(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return allocations.end();
  --after;
  return address < after->first + after->second.bytes ? after : allocations.end();
}

bool State::find_range(uintptr_t address, Range* out) {
  const auto holds = [address](auto& ranges, auto* found) {
    *found = ranges.upper_bound(address);
    if (*found == ranges.begin()) return false;
    --*found;
    return address < (*found)->first + (*found)->second.bytes;
  };
  *out = {};
  std::map<uintptr_t, Allocation>::iterator own, of_pool;
  std::map<uintptr_t, Import>::iterator import;
  std::map<uintptr_t, Mapping>::iterator mapping;
  std::map<uintptr_t, Reservation>::iterator reservation;
  const auto foreign_id = [](uint64_t id) { return (uint64_t{1} << 40) + id; };
  if (holds(allocations, &own)) {
    *out = {own->first, own->second.bytes, own->second.id, own->second.device, &own->second};
  } else if (holds(imports, &import)) {
    *out = {import->first, import->second.bytes, import->second.local, import->second.device};
  } else if (holds(pool_imports, &of_pool)) {
    *out = {of_pool->first, of_pool->second.bytes, foreign_id(of_pool->second.id)};
  } else if (holds(mappings, &mapping)) {
    if (!holds(reservations, &reservation)) return false;
    const Physical& behind = physical.at(mapping->second.physical);
    *out = {reservation->first,
            reservation->second.bytes,
            reservation->second.id,
            behind.properties.location.id,
            nullptr,
            &mapping->second,
            mapping->first,
            &behind};
  } else {
    return false;
  }
  return true;
}

CUresult State::allocate(CUdeviceptr* address_out, size_t bytes, int device, CUmemoryPool pool) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > limit - used) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t id = next_id++;
  const int descriptor = make_memory(id, bytes);
  const uintptr_t at = descriptor < 0 ? 0 : map(bytes, descriptor);
  if (at == 0) {
    if (descriptor >= 0) close(descriptor);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation made;
  made.bytes = bytes;
  made.descriptor = descriptor;
  made.id = id;
  made.device = device;
  made.pool = pool;
  allocations[at] = made;
  used += bytes;
  hold_memory(this_owner(), id, bytes);
  *address_out = at;
  return CUDA_SUCCESS;
}

void State::end(std::map<uintptr_t, Allocation>::iterator allocation) {
  used -= allocation->second.bytes;
  let_memory_go(this_owner(), allocation->second.id);
  close(allocation->second.descriptor);
  give_back(allocation->first);
  allocations.erase(allocation);
}

void State::end(std::map<uintptr_t, Import>::iterator import) {
  let_memory_go(import->second.owner, import->second.id);
  give_back(import->first);
  imports.erase(import);
}

// Physical memory and its mappings are the process's, and stay.
void State::end_context(int device) {
  primary[device].is_active = false;
  const auto end_all = [&](auto* of_device) {
    for (auto at = of_device->begin(); at != of_device->end();) {
      const auto next = std::next(at);
      if (at->second.device == device) end(at);
      at = next;
    }
  };
  end_all(&allocations);
  end_all(&imports);
  for (auto at = events.begin(); at != events.end();) at = (*at)->device == device ? end(at) : std::next(at);
}

std::set<CUevent>::iterator State::end(std::set<CUevent>::iterator event) {
  if ((*event)->descriptor >= 0) {
    (*event)->shared->is_destroyed = true;
    close((*event)->descriptor);
  }
  **event = {};
  ended_events.push_back(*event);
  return events.erase(event);
}

CUevent State::add(CUevent_st event) {
  if (ended_events.empty()) ended_events.push_back(new CUevent_st);
  CUevent const at = ended_events.back();
  ended_events.pop_back();
  *at = std::move(event);
  events.insert(at);
  return at;
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

void unmap_at(uintptr_t at, size_t bytes) {
  mmap(pointer(at), round_up(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

namespace {

// What the kernel calls the file; empty if there is none.
std::string name_of(int descriptor) {
  char path[64], name[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(path, name, sizeof(name));
  return length > 0 ? std::string(name, static_cast<size_t>(length)) : std::string();
}

constexpr char kNamed[] = "/memfd:cuda-double-";

}  // namespace

bool is_memory(int descriptor, uint64_t* id_out, size_t* bytes_out) {
  const std::string name = name_of(descriptor);
  struct stat status {};
  if (name.compare(0, sizeof(kNamed) - 1, kNamed) != 0 || fstat(descriptor, &status) != 0) return false;
  *id_out = std::strtoull(name.c_str() + sizeof(kNamed) - 1, nullptr, 10);
  *bytes_out = static_cast<size_t>(status.st_size);
  return true;
}

CUresult hand_out(int descriptor, void* into) {
  const int copied = fcntl(descriptor, F_DUPFD, 0);  // programs that are executed have it, too
  if (copied < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(into) = copied;
  return CUDA_SUCCESS;
}

int fetch(const Wire& wire) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%u/fd/%d", wire.holder, wire.descriptor);
  const int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return -1;
  uint64_t id = 0;
  size_t bytes = 0;
  if (is_memory(descriptor, &id, &bytes) && id == wire.id) return descriptor;
  close(descriptor);
  return -1;
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

// The caller has the lock, which is free while it waits.
void wait_at_gate(State* in) {
  Gate& gate = in->gate;
  gate.function.clear();
  gate.is_waiting = true;
  gate.changed.notify_all();
  gate.changed.wait_for(in->mutex, std::chrono::minutes(1), [&] { return gate.is_open; });
  gate.is_waiting = false;
}

// Those about devices, contexts and pointers do not look at what is current.
static bool uses_context(const char* function) {
  for (const char* free :
       {"cuInit", "cuDevice", "cuCtxPush", "cuCtxPop", "cuCtxSet", "cuCtxGet", "cuCtxDestroy", "cuPointer"}) {
    if (std::strncmp(function, free, std::strlen(free)) == 0) return false;
  }
  return true;
}

static thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool may_not_be_captured(const char* function) {
  for (const char* unsafe : {"cuMemAlloc", "cuMemFree", "cuMemcpyDtoH", "cuMemcpyHtoD", "cuMemCreate", "cuMemMap",
                             "cuMemUnmap", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuMemPoolDestroy",
                             "cuMemPoolImportPointer", "cuEventQuery", "cuCtxSynchronize"}) {
    if (std::strcmp(function, unsafe) == 0) return true;
  }
  return false;
}

CUresult enter(const char* function) {
  State& in = state();
  if (in.gate.function == function) wait_at_gate(&in);
  ++in.calls[function];
  ++in.calls["*"];
  if (!in.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (uses_context(function) && !no_context() && !contexts().back()->is_active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (in.is_captured && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED && may_not_be_captured(function)) {
    in.is_spoilt = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const CUresult any = obey(&in, "*");
  const CUresult own = obey(&in, function);
  return own != CUDA_SUCCESS ? own : any;
}

}  // namespace pinrail::cuda_double

using namespace pinrail::cuda_double;

extern "C" {

// It cannot fail here, and is not counted.
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return CUDA_SUCCESS;
}

void cuda_double_begin_capture(void) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().is_captured = true;
  state().is_spoilt = false;
}

int cuda_double_end_capture(void) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().is_captured = false;
  return state().is_spoilt ? 0 : 1;
}

void cuda_double_gate(const char* function) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().gate.function = function;
  state().gate.is_open = false;
}

int cuda_double_at_gate(void) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().gate.is_waiting ? 1 : 0;
}

int cuda_double_open_gate(void) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().gate.is_open = true;
  state().gate.changed.notify_all();
  return state().gate.is_waiting ? 1 : 0;
}

}  // extern "C"
