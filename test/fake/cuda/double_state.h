// SPDX-License-Identifier: BSD-3-Clause
// double_state.h - what one process's driver double knows.
//
// Owns     the arena of device addresses, allocations, pools, physical memory, imported mappings, counts and orders to
//          fail.
// Threads  everything under `mutex`, but the stack of contexts, which is each thread's own.
#ifndef PINRAIL_TEST_FAKE_CUDA_DOUBLE_STATE_H
#define PINRAIL_TEST_FAKE_CUDA_DOUBLE_STATE_H

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/fake/cuda/cuda_double.h"

struct CUctx_st {
  int device = 0;
  unsigned references = 0;
  bool is_active = false;  // from a retain to a reset, or to the last release
  uint64_t id = 0;         // another one each time that it becomes active
};

struct CUstream_st {
  int device = 0;
};

struct CUmemPoolHandle_st {
  CUmemPoolProps properties{};
  uint64_t id = 0;
  int descriptor = -1;  // what is exported of it
  bool imported = false;
  bool is_spoilt = false;    // was asked for a handle that it was not made with
  bool is_exported = false;  // a handle of it was given out
};

namespace pinrail::cuda_double {
// What the processes that have an event share.
struct SharedEvent {
  std::atomic<uint64_t> recorded, done;  // how often
  std::atomic<bool> is_destroyed;        // by its owner
};
}  // namespace pinrail::cuda_double

struct CUevent_st {
  std::shared_ptr<pinrail::cuda_double::SharedEvent> shared;
  int device = 0;
  unsigned flags = 0;
  uint64_t id = 0;
  int descriptor = -1;  // -1: another process's
};

namespace pinrail::cuda_double {

constexpr size_t kGrain = 4096;
constexpr size_t kGranularity = size_t{2} << 20;  // of physical memory, unless the environment says otherwise
constexpr uintptr_t kArena = 0x7ea000000000;      // where sanitizers, too, let programs have memory
constexpr size_t kArenaBytes = size_t{64} << 30;
constexpr int kMaxDevices = 8;

// The device's memory, of all processes that were forked from one: what is freed stays as long as a peer has it open.
// Counted by who allocated it and its id there. Any process, at any time; what a crash leaves stays counted.
void hold_memory(uint64_t owner, uint64_t id, size_t bytes);
void let_memory_go(uint64_t owner, uint64_t id);
size_t memory_in_use();

// A process: its pid in the low half, and in the high half what tells it from others that had that pid before.
constexpr uint64_t owner_of(uint32_t pid, uint32_t life) { return uint64_t{life} << 32 | pid; }
constexpr uint32_t pid_of(uint64_t owner) { return static_cast<uint32_t>(owner); }
uint64_t this_owner();

// What travels in a CUipcMemHandle, a CUmemFabricHandle and a CUmemPoolPtrExportData.
struct Wire {
  uint32_t magic;
  uint32_t holder;  // the pid of the process whose descriptor it is
  uint64_t owner;   // the exporter, or what a foreign allocation pretends
  int32_t descriptor;
  uint64_t id;
  uint64_t base;
  uint64_t bytes;
};
inline Wire wire_of(uint32_t magic, int descriptor, uint64_t id, uint64_t base, uint64_t bytes,
                    uint64_t owner = this_owner()) {
  return {magic, static_cast<uint32_t>(getpid()), owner, descriptor, id, base, bytes};
}
template <typename Handle>
void send_by(Handle* handle, const Wire& wire) {
  static_assert(sizeof(wire) <= sizeof(*handle), "it fits");
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &wire, sizeof(wire));
}
template <typename Handle>
Wire received_by(const Handle& handle) {
  Wire wire;
  std::memcpy(&wire, &handle, sizeof(wire));
  return wire;
}
constexpr uint32_t kMagic = 0x43444842, kFabricMagic = 0x43444846, kPoolMagic = 0x43444850, kEventMagic = 0x43444845;

struct Allocation {
  size_t bytes = 0;
  int descriptor = -1;
  uint64_t id = 0;
  int device = 0;
  bool sync_memops = false;
  bool managed = false;
  CUmemoryPool pool = nullptr;  // stream-ordered: where it came from
};

// Physical memory, of this process or another's: what a generic allocation handle names.
struct Physical {
  size_t bytes = 0;
  int descriptor = -1;
  uint64_t id = 0;
  CUmemAllocationProp properties{};
  unsigned references = 0;  // handles that were not released
  unsigned mappings = 0;
  bool imported = false;
};

struct Mapping {
  size_t bytes = 0;
  CUmemGenericAllocationHandle physical = 0;
  bool accessible = false;
};

// Addresses that cuMemAddressReserve gave out.
struct Reservation {
  size_t bytes = 0;
  uint64_t id = 0;
};

// One range that the double knows, whatever it is of.
struct Range {
  uintptr_t base = 0;
  size_t bytes = 0;
  uint64_t id = 0;
  int device = 0;
  const Allocation* own = nullptr;     // cuMemAlloc's, or from a pool
  const Mapping* mapping = nullptr;    // of physical memory
  uintptr_t mapped_at = 0;             // of that
  const Physical* physical = nullptr;  // of that
};

struct Import {
  uint64_t owner = 0;
  uint64_t base = 0;
  uint64_t id = 0;  // its owner's
  size_t bytes = 0;
  unsigned references = 0;
  int device = 0;      // in whose context it was opened
  uint64_t local = 0;  // its id here
};

struct Order {
  uint64_t nth = 0;
  CUresult error = CUDA_SUCCESS;
  bool every = false;
};

// An event, and which of its records.
struct Mark {
  std::shared_ptr<SharedEvent> event;
  uint64_t number;
};

struct Stream {
  bool works = false;
  std::vector<Mark> recorded;   // behind that work
  std::vector<Mark> waits_for;  // before anything else
};

// Where a call waits; empty: nowhere.
struct Gate {
  std::string function;
  bool is_waiting = false, is_open = true;
  std::condition_variable_any changed;
};

struct State {
  std::mutex mutex;
  Gate gate;
  bool initialised = false;
  int devices = 1;
  bool has_ipc = true;
  size_t limit = SIZE_MAX;
  size_t used = 0;
  uintptr_t arena = 0;
  uint64_t next_id = 1;
  std::map<uintptr_t, size_t> taken;  // of the arena: own memory and imports
  std::map<uintptr_t, Allocation> allocations;
  std::map<uintptr_t, Import> imports;
  std::map<std::pair<uint32_t, uint64_t>, Allocation> foreign;
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  std::map<uintptr_t, Reservation> reservations;
  std::map<uintptr_t, Mapping> mappings;
  std::map<uintptr_t, Allocation> pool_imports;  // by cuMemPoolImportPointer
  std::set<CUmemoryPool> pools;                  // created or imported
  CUmemoryPool default_pools[kMaxDevices] = {};
  std::set<CUevent> events;               // created or opened
  std::vector<CUevent> ended_events;      // whose addresses are given out again
  std::map<const void*, Stream> streams;  // by stream_name()
  std::set<CUstream> made_streams;        // by cuStreamCreate()
  std::map<uintptr_t, size_t> host;       // registered memory of the process
  size_t granularity = kGranularity;
  bool has_fabric = false;
  bool has_dmabuf = true;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Order> orders;
  CUctx_st primary[kMaxDevices];
  bool is_captured = false, is_spoilt = false;  // a stream, by another thread

  uintptr_t take(size_t bytes, size_t alignment = kGrain);  // a place in the arena, or 0
  void give_back(uintptr_t at);
  uintptr_t map(size_t bytes, int descriptor);  // of such memory; 0: there is no place
  // The allocation that holds the address, or end.
  std::map<uintptr_t, Allocation>::iterator holding(uintptr_t address);
  bool find_range(uintptr_t address, Range* out);
  // From a device's memory: a new allocation, of the pool if there is one.
  CUresult allocate(CUdeviceptr* address_out, size_t bytes, int device, CUmemoryPool pool);
  void end(std::map<uintptr_t, Allocation>::iterator allocation);
  void end(std::map<uintptr_t, Import>::iterator import);
  std::set<CUevent>::iterator end(std::set<CUevent>::iterator event);  // the next one
  CUevent add(CUevent_st event);
  // All that is in the device's primary context.
  void end_context(int device);
};

State& state();
std::vector<CUcontext>& contexts();  // the thread's stack
inline size_t round_up(size_t bytes) { return (bytes + kGrain - 1) & ~(kGrain - 1); }

// A memfd of that size, named so that who opens it by /proc can tell which one it is; -1.
int make_memory(uint64_t id, size_t bytes);
bool map_at(uintptr_t at, size_t bytes, int descriptor);
void unmap_at(uintptr_t at, size_t bytes);  // no access, and still taken
// The descriptor of the process that the wire names, if it is still that memory's: a number may have been used again;
// -1.
int fetch(const Wire& wire);
// A copy of the descriptor for the program, which takes an int there.
CUresult hand_out(int descriptor, void* into);
// Whether the descriptor is of what make_memory() made; with its id and length.
bool is_memory(int descriptor, uint64_t* id_out, size_t* bytes_out);

// Counts the call; what it shall answer: an order, NOT_INITIALIZED, or CONTEXT_IS_DESTROYED. mutex is held.
CUresult enter(const char* function);

// What most functions of the driver are: under the lock, counted, failing where the script says; then body(state).
template <typename Body>
CUresult call(const char* function, Body&& body) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const CUresult entered = enter(function);
  return entered != CUDA_SUCCESS ? entered : body(state());
}

// The default stream is the context's, of which there is one.
const void* stream_name(CUstream stream);
// Until the stream is done. mutex is held, and free meanwhile.
void await(State* in, CUstream stream);

inline bool no_context() { return contexts().empty(); }

}  // namespace pinrail::cuda_double

// Functions of the driver double that monitors patch: they begin with an instruction that a jump can take
// the place of, on every compiler.

// What such a function leads to.
#define HIDDEN __attribute__((visibility("hidden")))

// body: a hidden function of the same file.
#if defined(__x86_64__)
#define PATCHABLE(name, body)                                                          \
  __asm__(".text\n\t.globl " name "\n\t.type " name ", @function\n\t.p2align 4\n" name \
          ":\n\tmovl $0x46726565, %eax\n\tjmp " body "\n\t.size " name ", .-" name "\n")
#else
#define PATCHABLE(name, body) __asm__(".globl " name "\n\t.set " name ", " body "\n")
#endif

#endif
