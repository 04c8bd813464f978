// SPDX-License-Identifier: BSD-3-Clause
// verbs.h - registrar/verbs: registrations as memory regions of an RDMA device.
//
// Owns     the device's context and protection domain, unless a domain was lent; the loopback queue pair.
// Threads  register_mem, deregister_mem and transfers may run together; open_device() and close_device() exclude all
//          others.
// Context  API.
//
// A registration's Tail holds its memory region from a successful register_mem to its deregister_mem.
//
// verbs/V2  A lent protection domain and its context are used, never closed.
//
// A registration has the rights and traits that were requested. Rights that the device needs in addition are known to
// the device only.
//
// verbs/V4  Memory is registered on demand only after a trial in which the device moved bytes rightly through such a
//     registration, at this port's path MTU, and after the memory was mapped anew.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_VERBS_VERBS_H
#define PINRAIL_COMPONENTS_REGISTRAR_VERBS_VERBS_H

#include <infiniband/verbs.h>
#include <pinrail/component.h>

#include <atomic>

#include "base/core/own_component.h"
#include "base/core/status.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"
#include "framework/registrar/request.h"

// Libibverbs, loaded at run time, and only if there is a device or a protection domain was lent.
//
// Threads  open() excludes all others. The functions are libibverbs' own and are as thread-safe as it is.

// The header defines these as macros over inline functions that need the library at link time.
#undef ibv_reg_mr
#undef ibv_query_port

// Functions that every supported libibverbs has.
#define PINRAIL_VERBS_FUNCTIONS(X) \
  X(get_device_list)               \
  X(free_device_list)              \
  X(get_device_name)               \
  X(open_device)                   \
  X(close_device)                  \
  X(query_device)                  \
  X(query_port)                    \
  X(query_gid)                     \
  X(alloc_pd)                      \
  X(dealloc_pd)                    \
  X(reg_mr)                        \
  X(dereg_mr)                      \
  X(create_cq)                     \
  X(destroy_cq)                    \
  X(create_qp)                     \
  X(modify_qp)                     \
  X(destroy_qp)

namespace pinrail::verbs {

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none
#define PINRAIL_VERBS_FIELD(name) decltype(&::ibv_##name) name = nullptr;
  PINRAIL_VERBS_FUNCTIONS(PINRAIL_VERBS_FIELD)
#undef PINRAIL_VERBS_FIELD
  // Newer functions; NULL in an old library.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  // What the library offers to its drivers: the system call itself, for drivers that lack the operation.
  int (*cmd_advise_mr)(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* pieces,
                       uint32_t count) = nullptr;

  // NOT_AVAILABLE, and a reason as that of load_library().
  Status open(const char** why_out);
};

// The parameter odp: which registrations on demand the device shall make.
enum class Odp : uint8_t { off, one_by_one, implicit, automatic };

struct Settings {
  const char* device;  // "": the first device with an active port
  uint8_t port;
  int gid_index;  // -1: RoCE v2 over IPv4, if the port has such a GID
  Odp odp;
  bool odp_page_aligned;  // programs transfer on-demand memory from the start of pages only
};

// The data that a registration carries for this registrar.
struct Tail {
  ibv_mr* region;
  uint64_t iova;  // the address by which the device addresses the start of the range
};

// The address by which the device addresses this byte of the registration.
inline uint64_t device_address(const pinrail_registration_t& reg, size_t offset) {
  return static_cast<const Tail*>(registrar_tail(&reg))->iova + offset;
}

// A reliable queue pair that is connected to itself, and 1 MiB through which bytes are copied. The first transfer makes
// it.
struct Loopback {
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  char* bounce = nullptr;
  uint64_t operations = 0;  // numbers the work requests
};

struct Registrar {
  Registrar(const pinrail_host_t* where, const Settings& chosen) : host(where), settings(chosen) {}
  const pinrail_host_t* const host;
  const Settings settings;
  pinrail_registrar_t limits{};  // the table that the pool calls; check_request() reads its limits
  Library library;
  ibv_context* context = nullptr;
  OwnFile commands, events;          // the context's descriptors, of which the first keeps the pages pinned; none: lent
  std::atomic<bool> is_lost{false};  // the program has closed the first
  ibv_pd* pd = nullptr;
  bool lent = false;
  bool aligned_only = false;  // on-demand memory is right only from the start of pages

  Mutex transfer{LockRank::leaf};  // held for a whole transfer, so that transfers run one at a time
  Loopback loopback GUARDED_BY(transfer);
};

// verbs_device.cc: finds the device and its protection domain. lent: the creator's domain, or NULL.
Status open_device(Registrar* registrar, ibv_pd* lent, size_t* max_length_out);
void close_device(Registrar* registrar);
// False: the program has closed the device's descriptor. Then libibverbs, too, uses that number no more; the first time
// it is reported.
inline bool is_device_open(Registrar* registrar) {
  if (!registrar->commands.is_taken() || registrar->commands.is_open()) return true;
  if (registrar->is_lost.exchange(true)) return false;
  registrar->context->cmd_fd = -1;
  show(registrar->host, "device closed");
  return false;
}

// verbs_device.cc. query_port() returns 0 or an errno; the attributes have those fields only that an older library
// knows.
int query_port(const Registrar& registrar, ibv_context* context, ibv_port_attr* port_out);
pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason);

// verbs_odp.cc: tries the device with on-demand memory and sets on_demand of the table. NOT_AVAILABLE, and reported:
// the parameter odp demands what the device lacks or does wrong.
Status choose_odp(Registrar* registrar);
pinrail_status_t advise(void* context, const pinrail_registration_t* reg, size_t offset, size_t length,
                        pinrail_advice_t advice);

// verbs_loopback.cc: the queue pair. open_loopback_locked() makes it unless it exists.
Status open_loopback_locked(Registrar* registrar) REQUIRES(registrar->transfer);
void close_loopback_locked(Registrar* registrar) REQUIRES(registrar->transfer);

// The result of an operation: an errno, or the status of its completion; both 0 on success.
struct Outcome {
  int error;
  ibv_wc_status completion;
  bool ok() const { return error == 0 && completion == IBV_WC_SUCCESS; }
};

// One RDMA READ or WRITE between local memory and memory that this port addresses as a peer's.
struct Operation {
  ibv_wr_opcode opcode;
  const void* local;
  uint32_t lkey;
  uint64_t remote;
  uint32_t rkey;
  size_t length;
};

// verbs_loopback.cc: runs it on an open loopback, and waits for at most 10 s. After a failure the loopback must be
// closed.
Outcome operate_locked(Registrar* registrar, const Operation& operation) REQUIRES(registrar->transfer);

// verbs_loopback.cc: move bytes through the device. BAD_PARAM: out of range. NOT_SUPPORTED: the registration lacks the
// right, or is on demand and the device is right from the start of pages only.
constexpr size_t kBounceBytes = size_t{1} << 20;
constexpr size_t kOnDemandBytes = size_t{64} << 10;  // of one operation on on-demand memory
pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length);
pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length);

}  // namespace pinrail::verbs

#endif
