// SPDX-License-Identifier: BSD-3-Clause
// cuda_ipc.h - one registrar of GPU memory: handles of one's own allocations, mappings of peers' allocations.
//
// Owns     a reference on each primary context that it used, the mappings behind its registrations, and the file
//          descriptors and events behind its blocks.
// Threads  all functions may run together; create and destroy exclude the rest.
//
// cuda_ipc/I1  Around each call of the driver that needs one, the primary context of the device is current, and what
//     was current before is again afterwards.
// cuda_ipc/I2  In a forked child nothing is asked of the driver.
// cuda_ipc/I3  What a failed call had got of the driver it gave back; what could not be given back is said.
// cuda_ipc/I4  An event of one's own lives as long as the registrar, for a peer may have it open after the registration
//     is gone: it serves one registration at a time, and is idle in between.
// cuda_ipc/I5  A mapping is given back if it is still the one that was made: a device that somebody reset has taken it,
//     and another one may be at its address.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H

#include <pinrail/component.h>
#include <sys/types.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/descriptors/descriptors.h"
#include "base/slots/process.h"
#include "base/sync/lock.h"
#include "components/registrar/cuda_ipc/cuda_library.h"

namespace pinrail::cuda_ipc {

constexpr int kMaxDevices = 64;

struct Component {
  const pinrail_host_t* host;
  Library library;
};

// One's own, and its handle for others.
struct Event {
  CUevent event;
  CUipcEventHandle handle;
};

// Those of one device that serve no registration.
struct IdleEvents {
  std::vector<Event> list;  // has room for all of them, so that giving one back takes no memory
  size_t made = 0, turn = 0;
};

struct Registrar {
  explicit Registrar(Component* of) : component(of), cuda(of->library) {}
  Component* const component;
  const Library& cuda;
  pid_t process = 0;  // whose it is
  int device_count = 0;
  int device = -1;  // where peers' memory is mapped; -1: where it lies, if that GPU is here, else 0
  unsigned char uuids[kMaxDevices][16] = {};
  Mutex mutex{LockRank::registrar};
  std::atomic<bool> has_context[kMaxDevices] = {};  // a reference on the device's primary one is kept
  IdleEvents idle_events[kMaxDevices] GUARDED_BY(mutex);
  bool has_events = false;                             // blocks carry one
  std::atomic_flag told_of_events = ATOMIC_FLAG_INIT;  // that there are none
  pinrail_registrar_t limits{};
  slots::Process self;                           // pid 0: the system does not say, and no descriptor can be passed
  std::unique_ptr<descriptors::Server> server;   // of one's own memory
  descriptors::Way way = descriptors::Way::any;  // to peers' descriptors
  uint32_t fd_timeout_ms = 0;
};

// What is kept behind each registration.
struct Tail {
  pinrail_gpu_block_t block;  // first: the pools read it
  int32_t device;
  // Of a peer's memory; 0: not, or not any more.
  CUdeviceptr mapped;
  uint64_t mapping_id;                    // the driver's, of what is mapped there; 0: it tells none
  CUdeviceptr reserved;                   // the addresses of physical memory
  CUmemGenericAllocationHandle imported;  // physical memory itself, until it is mapped
  CUmemoryPool pool;
  CUevent event;  // one's own, or opened at the first wait, under the registrar's mutex; NULL: none
};

// Which allocation a pointer lies in, and how peers can have it.
struct Found {
  pinrail_gpu_range_t range;
  pinrail_gpu_kind_t kind;
  CUmemoryPool pool;                // of that kind
  unsigned long long handle_types;  // that it was made with, where the driver says so: a bit each
};

constexpr unsigned long long kDescriptorType = 1;  // a number, for what the driver says are bits

// The device's primary context, current while this lives. (Not a lock: each thread has its own stack of contexts.)
class Current {
 public:
  Current(Registrar* registrar, int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  CUresult result() const { return result_; }

 private:
  void release();
  Registrar* const registrar_;
  const int device_;
  bool is_spare_ = false;  // the reference that this has
  CUresult result_;
};

// What is left of something in a context when that has ended: nothing.
constexpr bool has_ended(CUresult error) {
  return error == CUDA_ERROR_DEINITIALIZED || error == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// What an error of the driver is here; says it, with what was asked of the driver, unless it is an everyday one.
Status status_of(const Registrar& registrar, const char* call, CUresult error);

// What must not fail is tried once more; then it is said.
template <typename Call>
void give_back_surely(const Registrar& registrar, const char* name, Call&& call) {
  CUresult error = call();
  if (error != CUDA_SUCCESS) error = call();
  if (error != CUDA_SUCCESS) status_of(registrar, name, error).ignore();
}

// Whether a peer's memory is mapped for the GPU where it lies.
inline bool is_where_it_lies(const Registrar& registrar, const Tail& tail) {
  return std::memcmp(registrar.uuids[tail.device], tail.block.device, sizeof(tail.block.device)) == 0;
}

// cuda_ipc_identify.cc. NOT_FOUND: it is no GPU memory; NOT_SUPPORTED: of this kind the driver tells too little.
Status look_up(Registrar* registrar, const void* addr, Found* found_out);
// The id of what is at an address, which no later memory of this process has. False: the driver does not say.
bool id_at(const Registrar& registrar, CUdeviceptr pointer, uint64_t* id_out);
// What is mapped there, and how many bytes there may be from there on: all, where the driver does not say.
struct Mapping {
  uint64_t id = 0;
  size_t most_bytes = SIZE_MAX;
};
Mapping mapping_at(const Registrar& registrar, CUdeviceptr pointer);
// The GPU where it lies; 0 where the driver does not say.
int device_of_pointer(const Registrar& registrar, CUdeviceptr pointer);
// Whether it moves between host and GPU.
bool is_managed(const Registrar& registrar, CUdeviceptr pointer);

// cuda_ipc_vmm.cc, cuda_ipc_pool.cc: the kinds beyond cuMemAlloc's. The context is current. export_...: the driver's
// part of the block, and the descriptor, which is the caller's, -1: none. open_...: into the tail, as far as it came.
Status export_vmm(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out);
Status open_vmm(Registrar* registrar, int descriptor, Tail* tail);
Status export_pool(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out);
Status open_pool(Registrar* registrar, int descriptor, Tail* tail);
// What the tail still has of a peer's memory, from the last to the first; on an error the rest stays in it.
Status close_peer(Registrar* registrar, Tail* tail);

// cuda_ipc_event.cc. An event for what lies on that device: into the tail and its block. None is wanted, or the driver
// has none: success.
Status take_event(Registrar* registrar, Tail* tail);
void give_event_back(Registrar* registrar, Tail* tail);  // it is idle
Status close_peers_event(Registrar* registrar, Tail* tail);
void say_no_events(Registrar* registrar, const char* why);  // once
void forget_events(Registrar* registrar);                   // those of a past life are left to it
void destroy_events(Registrar* registrar);                  // all are idle

// In the table.
pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason);
pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length);
pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length);
pinrail_status_t export_dmabuf(void* context, const void* addr, size_t length, int* fd_out, uint64_t* fd_offset_out);
pinrail_status_t record(void* context, pinrail_registration_t* reg, void* stream);
pinrail_status_t wait(void* context, pinrail_registration_t* reg, void* stream);
pinrail_status_t identify(void* context, const void* addr, pinrail_gpu_range_t* range_out);

}  // namespace pinrail::cuda_ipc

#endif
