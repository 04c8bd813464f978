// SPDX-License-Identifier: BSD-3-Clause
// cuda_ipc.h - a registrar of GPU memory: exports local allocations and maps allocations of peers.
//
// Owns     a reference to each primary context that it has used, the mappings behind its registrations, and the file
//          descriptors and events behind its blocks.
// Threads  All functions may run together; create and destroy exclude all others.
// Context  API. Pools hold no lock when they call these functions (R6). No lock is held across a call of the driver,
//          but for one (cuda_ipc/U1).
//
// Each call of the driver that needs a context runs with the device's primary context current. Afterwards the context
// that was current before is current again.
//
// cuda_ipc/I2  In a forked child the driver is not called.
//
// A call that fails gives back what it got from the driver; a message reports what could not be given back. A local
// event lives as long as the registrar, because a peer may have it open after the registration has ended. It serves one
// registration at a time and is idle in between.
//
// cuda_ipc/I5  A mapping is closed only if it is still the one that was opened. After a device reset it is gone, and
//     another one may be at its address.
//
// cuda_ipc/I6  An event is used and destroyed only in the context in which it was made or opened, as the context's id
//     says, which a reset changes. It ended with that context, and another event may be at its address. Drivers before
//     12.0 tell no id.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H

#include <pinrail/component.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "base/core/calling_thread.h"
#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/cuda/cuda_driver.h"
#include "base/descriptors/descriptors.h"
#include "base/slots/process.h"
#include "base/sync/lock.h"

// The CUDA driver library, loaded at run time; nothing is linked against it.
//
// Threads  open() excludes all others. The functions are the driver's own and are as thread-safe as it is.

// The functions, each with the flag that says that all of its kind were found: needed ones, which every supported
// driver has; those since 11.7, without which only memory of cuMemAlloc is supported; those for events
// (registrar_cuda_ipc_events); and one since 12.0. cuda_driver.h maps some of these names to those of a later version,
// here and where they are called.
#define PINRAIL_CUDA_FUNCTIONS(X)                     \
  X(has_needed, cuInit)                               \
  X(has_needed, cuDeviceGetCount)                     \
  X(has_needed, cuDeviceGet)                          \
  X(has_needed, cuDeviceGetUuid)                      \
  X(has_needed, cuDevicePrimaryCtxRetain)             \
  X(has_needed, cuDevicePrimaryCtxRelease)            \
  X(has_needed, cuCtxPushCurrent)                     \
  X(has_needed, cuCtxPopCurrent)                      \
  X(has_needed, cuCtxSynchronize)                     \
  X(has_needed, cuThreadExchangeStreamCaptureMode)    \
  X(has_needed, cuPointerGetAttributes)               \
  X(has_needed, cuPointerSetAttribute)                \
  X(has_needed, cuIpcGetMemHandle)                    \
  X(has_needed, cuIpcOpenMemHandle)                   \
  X(has_needed, cuIpcCloseMemHandle)                  \
  X(has_needed, cuMemcpyDtoH)                         \
  X(has_needed, cuMemcpyHtoD)                         \
  X(has_optional, cuPointerGetAttribute)              \
  X(has_optional, cuMemGetAddressRange)               \
  X(has_optional, cuMemGetHandleForAddressRange)      \
  X(has_optional, cuMemFree)                          \
  X(has_optional, cuMemAddressReserve)                \
  X(has_optional, cuMemAddressFree)                   \
  X(has_optional, cuMemMap)                           \
  X(has_optional, cuMemUnmap)                         \
  X(has_optional, cuMemSetAccess)                     \
  X(has_optional, cuMemRelease)                       \
  X(has_optional, cuMemRetainAllocationHandle)        \
  X(has_optional, cuMemExportToShareableHandle)       \
  X(has_optional, cuMemImportFromShareableHandle)     \
  X(has_optional, cuMemPoolDestroy)                   \
  X(has_optional, cuMemPoolSetAccess)                 \
  X(has_optional, cuMemPoolExportToShareableHandle)   \
  X(has_optional, cuMemPoolImportFromShareableHandle) \
  X(has_optional, cuMemPoolExportPointer)             \
  X(has_optional, cuMemPoolImportPointer)             \
  X(has_events, cuEventCreate)                        \
  X(has_events, cuEventDestroy)                       \
  X(has_events, cuEventQuery)                         \
  X(has_events, cuEventRecord)                        \
  X(has_events, cuStreamWaitEvent)                    \
  X(has_events, cuIpcGetEventHandle)                  \
  X(has_events, cuIpcOpenEventHandle)                 \
  X(has_context_id, cuCtxGetId)

namespace pinrail::cuda_ipc {

struct Registrar;

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none
#define PINRAIL_CUDA_FIELD(flag, name) decltype(&::name) name = nullptr;
  PINRAIL_CUDA_FUNCTIONS(PINRAIL_CUDA_FIELD)
#undef PINRAIL_CUDA_FIELD
  bool has_needed = true, has_optional = true, has_events = true, has_context_id = true;

  // NOT_AVAILABLE, and a reason as that of load_library().
  Status open(const char* file, const char** why_out);
};

// Counts what this process has open of peers' stream-ordered memory. The driver has one object for all
// imports of a pool, and one mapping for all imports of a pointer, and counts neither (seen with 580.159.04): the first
// cuMemFree() ends the mapping for all, and a pool that was destroyed may not be used again.
//
// Owns     the imported pools and pointers, until their last user has closed them. A user is a registrar.
// Threads  all functions may run together.
// Context  API; a context is current. No lock is held by the caller.
//
// cuda_ipc/U1  A pool is imported and destroyed, and a pointer imported and freed, under one lock. Otherwise what
//     one thread has just imported could be the object that another one ends. It is the only lock that is held across
//     calls of the driver; hits, and memory of other kinds, do not take it.
class PoolImports {
 public:
  // A mapping: its address, and the driver's id of it (0: the driver has none). After a device reset another one may be
  // at the address.
  using Pointer = std::pair<CUdeviceptr, uint64_t>;

  // Errors: the driver's; OUT_OF_MEMORY also without host memory. Nothing was opened then.
  CUresult import_pool(const Registrar& user, int descriptor, CUmemoryPool* pool_out);
  CUresult import_pointer(const Registrar& user, CUmemoryPool pool, CUmemPoolPtrExportData* data, Pointer* pointer_out);
  // Ends it if this was its last use. Errors: the driver's; it is still in use then.
  CUresult free_pointer(const Registrar& user, const Pointer& pointer);
  CUresult destroy_pool(const Registrar& user, CUmemoryPool pool);
  // The context has ended, and everything in it; or the user could not end them and leaves them to the next one.
  void forget(const Registrar& user, CUmemoryPool pool, const Pointer& pointer);
  // After a restart: the pool abandons all that this user has open (F2). Needs no context.
  void forget_all_of(const Registrar& user);

 private:
  template <typename Key>
  using Uses = std::multimap<Key, const Registrar*>;
  template <typename Key, typename End>
  static CUresult drop(Uses<Key>* uses, const Registrar& user, const Key& key, End&& end);
  uint64_t common_id_locked(CUdeviceptr address, uint64_t id) const REQUIRES(mutex_);

  Mutex mutex_{LockRank::device};
  Uses<CUmemoryPool> pools_ GUARDED_BY(mutex_);
  Uses<Pointer> pointers_ GUARDED_BY(mutex_);
};

constexpr int kMaxDevices = 64;

struct Component {
  const pinrail_host_t* host;
  Library library;
  PoolImports pool_imports;
};

// A local event, and its handle for other processes.
struct Event {
  CUevent event = nullptr;
  unsigned long long context = 0;  // cuda_ipc/I6
  CUipcEventHandle handle{};
  std::list<Event>::iterator self;  // in one of the two lists
};

// The events of one device. Idle ones serve no registration; they stand in the order in which they became idle.
struct Events {
  std::list<Event> idle, used;
};

struct Registrar {
  explicit Registrar(Component* of) : component(of), cuda(of->library) {}
  Component* const component;
  const Library& cuda;
  pid_t process = 0;  // the process that the registrar belongs to
  int device_count = 0;
  int device = -1;  // where peers' memory is mapped; -1: where it lies, if this process sees that GPU, else on GPU 0
  unsigned char uuids[kMaxDevices][16] = {};
  Mutex mutex{LockRank::leaf};
  std::atomic<bool> has_context[kMaxDevices] = {};  // a reference to the device's primary context is held
  Events events[kMaxDevices] GUARDED_BY(mutex);
  bool has_events = false;                              // blocks carry an event
  std::atomic_flag events_reported = ATOMIC_FLAG_INIT;  // that there are no events was reported
  pinrail_registrar_t limits{};
  slots::Process self;  // pid 0: the system does not identify the process, and no descriptor can be passed
  std::unique_ptr<descriptors::Server> server;   // of local memory
  descriptors::Way way = descriptors::Way::any;  // how peers' descriptors are fetched
  uint32_t fd_timeout_ms = 0;
};

// The data that a registration carries for this registrar.
struct Tail {
  pinrail_gpu_block_t block;  // first, because the pools read it
  int32_t device;
  // For a peer's memory; 0: none, or no longer.
  CUdeviceptr mapped;
  uint64_t mapping_id;                    // the driver's id of the mapped memory; 0: the driver has none
  CUdeviceptr reserved;                   // reserved addresses for physical memory
  CUmemGenericAllocationHandle imported;  // physical memory, until it is mapped
  CUmemoryPool pool;
  Event* event;  // of local memory; NULL: none
  // Opened at the first wait, under the registrar's mutex; NULL: not yet. cuda_ipc/I6.
  CUevent peers_event;
  unsigned long long peers_context;
};

// The allocation that contains a pointer, and how peers can open it.
struct Found {
  CUdeviceptr base;
  size_t length;
  unsigned long long id;  // no other memory of this process has had or will have it
  pinrail_gpu_kind_t kind;
  CUmemoryPool pool;                // for kind PINRAIL_GPU_POOL
  unsigned long long handle_types;  // one bit per handle type with which it was made, if the driver tells
};

constexpr unsigned long long kDescriptorType = 1;  // a number, because the driver's constants are an enum

// While an object of this class exists, the device's primary context is current on its thread, and the thread is not
// cancelled: the driver's calls may be cancellation points (R10). A stream that any thread is capturing neither makes
// these calls fail nor is spoilt by them, but for copies (device_read and device_write). It takes no lock: each thread
// has its own stack of contexts and capture mode.
class CurrentContext : NonCopyable {
 public:
  CurrentContext(Registrar* registrar, int device);
  ~CurrentContext();
  CUresult result() const { return result_; }

 private:
  void release();
  const NoCancel no_cancel_;
  Registrar* const registrar_;
  const int device_;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the caller's, until the end
  bool is_relaxed_ = false;
  bool is_spare_ = false;  // this object has a reference of its own, which it releases
  CUresult result_;
};

// Returns whether the error means that the context has ended, and everything in it.
constexpr bool has_ended(CUresult error) {
  return error == CUDA_ERROR_DEINITIALIZED || error == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Translates an error of the driver. Prints a message with the call's name unless the error is a common one, or
// INVALID_VALUE where that has a meaning: of_invalid.
Status status_of(const Registrar& registrar, const char* call, CUresult error,
                 pinrail_status_t of_invalid = PINRAIL_ERR_ERROR);

// Runs a call that must not fail: a second time after an error, and then reports the error.
template <typename Call>
void release_with_retry(const Registrar& registrar, const char* name, Call&& call) {
  CUresult error = call();
  if (error != CUDA_SUCCESS) error = call();
  if (error != CUDA_SUCCESS) status_of(registrar, name, error).ignore();
}

// Returns whether a peer's memory is mapped on the GPU where it lies.
inline bool is_current_device(const Registrar& registrar, const Tail& tail) {
  return std::memcmp(registrar.uuids[tail.device], tail.block.device, sizeof(tail.block.device)) == 0;
}

// cuda_ipc_register.cc. NOT_FOUND: the address is no GPU memory. NOT_SUPPORTED: the driver tells too little about
// memory of this kind.
Status look_up(Registrar* registrar, const void* addr, Found* found_out);
// Reads one attribute of a pointer. False: the driver does not tell.
template <typename Value>
bool query_attribute(const Registrar& registrar, CUdeviceptr pointer, CUpointer_attribute name, Value* value_out) {
  void* value = value_out;
  return registrar.cuda.cuPointerGetAttributes(1, &name, &value, pointer) == CUDA_SUCCESS;
}
// The id of the mapped memory, and the number of bytes that may follow the address (SIZE_MAX if the driver does not
// tell).
struct Mapping {
  uint64_t id = 0;
  size_t most_bytes = SIZE_MAX;
};
Mapping mapping_at(const Registrar& registrar, CUdeviceptr pointer);
// Returns the GPU where the memory lies; 0 if the driver does not tell.
int device_of_pointer(const Registrar& registrar, CUdeviceptr pointer);

// cuda_ipc_vmm.cc: the kinds of memory other than cuMemAlloc's. The context is current. export_...()
// writes the driver's part of the block and a descriptor that the caller owns, or -1. open_...() writes what it has
// opened to the tail, also when it fails.
Status export_vmm(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out);
Status open_vmm(Registrar* registrar, int descriptor, Tail* tail);
Status export_pool(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out);
Status open_pool(Registrar* registrar, int descriptor, Tail* tail);
// Gives back what the tail still has of a peer's memory, in reverse order. After an error the rest stays in the tail.
Status close_peer(Registrar* registrar, Tail* tail);
void forget_peer(const Registrar& registrar, Tail* tail);  // leaves it to the driver

// cuda_ipc_event.cc. Takes an event of the tail's device and writes it to the tail and its block. SUCCESS also if no
// events are wanted or the driver has none.
Status take_event(Registrar* registrar, Tail* tail);
void return_event(Registrar* registrar, Tail* tail);  // the event becomes idle
Status close_peers_event(Registrar* registrar, Tail* tail);
void report_no_events(Registrar* registrar, const char* why);  // prints one message per registrar
void forget_events(Registrar* registrar);   // after a restart: leaves the events of the former process alone
void destroy_events(Registrar* registrar);  // all events are idle

// cuda_ipc_register.cc: fills the registrar's table but for restart.
void fill_table(Registrar* registrar);
// cuda_ipc_event.cc, for that table.
pinrail_status_t record(void* context, pinrail_registration_t* reg, void* stream);
pinrail_status_t wait(void* context, pinrail_registration_t* reg, void* stream);

}  // namespace pinrail::cuda_ipc

#endif
