// SPDX-License-Identifier: BSD-3-Clause
// cuda_ipc.h - one registrar of GPU memory: handles of one's own allocations, mappings of peers' allocations.
//
// Owns     the primary contexts that it retained, and the mappings behind its registrations.
// Threads  all functions may run together; create and destroy exclude the rest.
//
// I1  Around each call of the driver that needs one, the primary context of the device is current, and what was current
//     before is again afterwards.
// I2  In a forked child nothing is asked of the driver.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_IPC_H

#include <pinrail/component.h>
#include <sys/types.h>

#include "base/core/lock.h"
#include "components/registrar/cuda_ipc/cuda_library.h"

namespace pinrail::cuda_ipc {

constexpr int kMostDevices = 64;

struct Component {
  const pinrail_host_t* host;
  Library library;
};

struct Registrar {
  explicit Registrar(Component* of) : component(of), cuda(of->library) {}
  Component* const component;
  const Library& cuda;
  pid_t process = 0;  // that made it
  int device_count = 0;
  int device = -1;  // where peers' memory is mapped; -1: where it lies, if that GPU is here, else 0
  unsigned char uuids[kMostDevices][16] = {};
  Mutex mutex{LockRank::registrar};
  CUcontext contexts[kMostDevices] GUARDED_BY(mutex) = {};
  pinrail_registrar_t limits{};
};

// What is kept behind each registration.
struct Tail {
  pinrail_gpu_handle_t block;  // first: the pools read it
  CUdeviceptr mapped;          // of a peer's memory; 0: none
  int32_t device;
};

// The device's primary context, current while this lives. (Not a lock: each thread has its own stack of contexts.)
class Current {
 public:
  Current(Registrar* registrar, int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  CUresult result() const { return result_; }

 private:
  Registrar* const registrar_;
  CUresult result_;
};

// What an error of the driver is here; says it, with what was asked of the driver, unless it is an everyday one.
Status status_of(const Registrar& registrar, const char* call, CUresult error);

// In the table.
pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason);
pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length);
pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length);
pinrail_status_t identify(void* context, const void* addr, pinrail_gpu_range_t* range_out);

}  // namespace pinrail::cuda_ipc

#endif
