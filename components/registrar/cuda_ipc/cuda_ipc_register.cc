// SPDX-License-Identifier: BSD-3-Clause
// Registers and deregisters: exports local memory, maps a peer's memory; and transfers. API context, no lock.
#include <fcntl.h>
#include <unistd.h>

#include "base/core/files.h"
#include "base/core/own_component.h"
#include "base/sync/own_file.h"
#include "components/registrar/cuda_ipc/cuda_ipc.h"
#include "framework/registrar/request.h"

namespace pinrail::cuda_ipc {
namespace {

Tail* tail_of(pinrail_registration_t* reg) { return static_cast<Tail*>(registrar_tail(reg)); }
const Tail* tail_of(const pinrail_registration_t* reg) { return static_cast<const Tail*>(registrar_tail(reg)); }

// Returns the device on which the block's memory is to be mapped.
int device_for(const Registrar& registrar, const pinrail_gpu_block_t& block) {
  if (registrar.device >= 0) return registrar.device;
  for (int i = 0; i < registrar.device_count; ++i) {
    if (std::memcmp(registrar.uuids[i], block.device, sizeof(block.device)) == 0) return i;
  }
  return 0;
}

// Makes synchronous copies of the caller wait until the bytes have arrived. Memory that refuses the attribute needs no
// change.
void make_copies_wait(const Registrar& registrar, CUdeviceptr pointer) {
  const unsigned yes = 1;
  registrar.cuda.cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer);
}

Status export_ipc(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block) {
  CUipcMemHandle handle{};
  const CUresult error = registrar->cuda.cuIpcGetMemHandle(&handle, found.base);
  static_assert(sizeof(block->driver) == sizeof(handle), "it fits");
  std::memcpy(block->driver, &handle, sizeof(handle));
  // NOT_SUPPORTED: this kind of memory has no such handle.
  return status_of(*registrar, "cuIpcGetMemHandle", error, PINRAIL_ERR_NOT_SUPPORTED);
}

// Exports the allocation in the way of its kind. The caller owns the descriptor.
Status export_kind(Registrar* registrar, const Found& found, int device, pinrail_gpu_block_t* block,
                   int* descriptor_out) {
  const CurrentContext current(registrar, device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
  make_copies_wait(*registrar, found.base);
  switch (found.kind) {
    case PINRAIL_GPU_IPC: return export_ipc(registrar, found, block);
    case PINRAIL_GPU_POOL: return export_pool(registrar, found, block, descriptor_out);
    default: return export_vmm(registrar, found, block, descriptor_out);
  }
}

// Passes the descriptor to the server; it is closed if that fails. TEMP_OUT_OF_RESOURCE: the process has forked since.
Status pass_to_server(Registrar* registrar, int descriptor, uint64_t forks_before, pinrail_gpu_block_t* block) {
  if (descriptor < 0) return success();
  descriptors::Ticket ticket;
  const uint32_t losses = registrar->server->losses();
  const Status status =
      registrar->server->put(registrar->self, descriptor, FileKind::gpu_memory, forks_before, &ticket);
  if (registrar->server->losses() != losses) {
    show(registrar->component->host, "descriptors closed");
  }
  if (!status.ok()) return status;
  block->fd_server = ticket.server;
  block->fd_number = ticket.number;
  block->fd_place = ticket.place;
  block->fd_table = ticket.directory;
  return status;
}

// Exports the allocation, again if the process forked meanwhile: a child that was not told to close its copy of the
// descriptor would keep the memory alive (F1).
Status export_and_serve(Registrar* registrar, const Found& found, int device, pinrail_gpu_block_t* block) {
  constexpr int kTries = 100;
  Status status = success();
  for (int i = 0; i < kTries; ++i) {
    int descriptor = -1;
    const uint64_t forks = own_file::count_forks();
    status = export_kind(registrar, found, device, block, &descriptor);
    if (!status.ok()) return status;
    status = pass_to_server(registrar, descriptor, forks, block);
    if (!status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) return status;
  }
  return status;
}

descriptors::Ticket ticket_of(const pinrail_gpu_block_t& block) {
  return {block.fd_server, block.fd_number, block.fd_place, block.fd_table};
}

// The id is read before and after the export: if the memory was replaced meanwhile, its id has changed, and the handle
// may belong to either memory.
Status export_own(Registrar* registrar, const pinrail_register_request_t& request, Tail* tail) {
  Found before{}, after{};
  Status status = look_up(registrar, request.addr, &before);
  if (!status.ok()) return status;
  const auto pointer = reinterpret_cast<CUdeviceptr>(request.addr);
  if (before.base != pointer || before.length != request.length) return PINRAIL_ERR_BAD_PARAM;
  Tail made{};
  made.device = device_of_pointer(*registrar, pointer);
  status = export_and_serve(registrar, before, made.device, &made.block);
  if (!status.ok()) return status;
  status = look_up(registrar, request.addr, &after);
  if (status.ok() && after.id != before.id) status = PINRAIL_ERR_NOT_FOUND;
  made.block.kind = before.kind;
  made.block.base = pointer;
  made.block.length = request.length;
  made.block.buffer_id = before.id;
  std::memcpy(made.block.device, registrar->uuids[made.device], sizeof(made.block.device));
  if (status.ok()) status = take_event(registrar, &made);
  if (!status.ok()) {
    registrar->server->remove(ticket_of(made.block));
    return status;
  }
  *tail = made;
  return success();
}

// Drivers return INVALID_VALUE for a handle whose memory is gone, and also for a handle of a GPU that this process does
// not see.
Status open_ipc(Registrar* registrar, Tail* tail) {
  CUipcMemHandle handle;
  std::memcpy(&handle, tail->block.driver, sizeof(handle));
  const CUresult error = registrar->cuda.cuIpcOpenMemHandle(&tail->mapped, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (error != CUDA_SUCCESS) tail->mapped = 0;
  if (error == CUDA_ERROR_INVALID_VALUE && is_current_device(*registrar, *tail)) return PINRAIL_ERR_NOT_FOUND;
  return status_of(*registrar, "cuIpcOpenMemHandle", error);
}

// Fetches the block's descriptor, which the caller owns; -1 if the block needs none.
Status fetch_descriptor(const Registrar& registrar, const pinrail_gpu_block_t& block, int* descriptor_out) {
  *descriptor_out = -1;
  if (block.kind == PINRAIL_GPU_IPC || block.kind == PINRAIL_GPU_FABRIC) return success();
  slots::Process exporter;
  exporter.pid = block.pid;
  exporter.user = block.user;
  exporter.start = block.start;
  const Status status =
      descriptors::fetch(exporter, ticket_of(block), registrar.way, registrar.fd_timeout_ms, descriptor_out);
  if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) {
    show(registrar.component->host, "no descriptor",
         {{"pid", NumberText(block.pid).c_str()}, {"limit", NumberText(registrar.fd_timeout_ms).c_str()}});
    return PINRAIL_ERR_ERROR;
  }
  // TEMP_OUT_OF_RESOURCE: an eviction would free no descriptor.
  return status.is(PINRAIL_ERR_OUT_OF_RESOURCE) ? Status(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) : status;
}

// Maps a peer's memory in the way of its kind. After an error the tail has what was opened.
Status open_kind(Registrar* registrar, int descriptor, Tail* tail) {
  const CurrentContext current(registrar, tail->device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
  Status status = success();
  switch (tail->block.kind) {
    case PINRAIL_GPU_IPC: status = open_ipc(registrar, tail); break;
    case PINRAIL_GPU_POOL: status = open_pool(registrar, descriptor, tail); break;
    default: status = open_vmm(registrar, descriptor, tail); break;
  }
  if (!status.ok()) return status;
  const Mapping mapping = mapping_at(*registrar, tail->mapped);
  if (tail->pool == nullptr) tail->mapping_id = mapping.id;  // a pool's import has found it already
  // A block with a wrong length would let transfers run past the end of the mapping.
  return tail->block.length <= mapping.most_bytes ? status : Status(PINRAIL_ERR_BAD_PARAM);
}

// A second attempt, because an open mapping keeps the peer's memory for as long as this process lives. If it fails,
// too, the next user of the mapping tries again when it closes.
Status close_with_retry(Registrar* registrar, Tail* tail) {
  Status status = close_peer(registrar, tail);
  if (!status.ok()) status = close_peer(registrar, tail);
  if (!status.ok()) forget_peer(*registrar, tail);
  return status;
}

// Fetches the block's descriptor, if it needs one, and maps the peer's memory. After an error nothing stays open.
Status open_peer(Registrar* registrar, const pinrail_register_request_t& request, pinrail_registration_t* reg) {
  if (request.handle == nullptr || request.handle_length != sizeof(pinrail_gpu_block_t)) return PINRAIL_ERR_BAD_PARAM;
  Tail tail{};
  tail.block = *static_cast<const pinrail_gpu_block_t*>(request.handle);
  if (tail.block.kind < PINRAIL_GPU_IPC || tail.block.kind > PINRAIL_GPU_POOL) return PINRAIL_ERR_NOT_SUPPORTED;
  if (tail.block.kind != PINRAIL_GPU_IPC && !registrar->cuda.has_optional) return PINRAIL_ERR_NOT_SUPPORTED;
  tail.device = device_for(*registrar, tail.block);
  const NoCancel no_cancel;
  int number = -1;
  Status status = fetch_descriptor(*registrar, tail.block, &number);
  if (!status.ok()) return status;
  const Descriptor fetched(number);
  status = open_kind(registrar, number, &tail);
  if (!status.ok()) {
    close_with_retry(registrar, &tail).ignore();  // it has reported what it could not give back
    return status;
  }
  *tail_of(reg) = tail;
  reg->base = reinterpret_cast<void*>(tail.mapped);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
  return success();
}

// Copies with the device's context current. NOT_SUPPORTED in a forked child.
template <typename Copy>
pinrail_status_t transfer(void* context, const pinrail_registration_t* reg, const char* call, Copy&& copy) {
  auto* registrar = static_cast<Registrar*>(context);
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  const CurrentContext current(registrar, tail_of(reg)->device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result()).code();
  return status_of(*registrar, call, copy(registrar->cuda, reinterpret_cast<CUdeviceptr>(reg->base))).code();
}

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  const Status checked = check_request(registrar->limits, *request);
  if (!checked.ok()) return checked.code();
  if (request->traits != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (request->kind == PINRAIL_KIND_GPU) return export_own(registrar, *request, tail_of(reg)).code();
  return open_peer(registrar, *request, reg).code();
}

// Closes a peer's memory, or withdraws a local allocation's event and descriptor. Does nothing in a forked child.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  Tail* tail = tail_of(reg);
  if (getpid() != registrar->process) return PINRAIL_SUCCESS;
  if (tail->mapped != 0) {
    const Status closed = close_with_retry(registrar, tail);
    const Status ended = close_peers_event(registrar, tail);
    return closed.ok() ? ended.code() : closed.code();
  }
  return_event(registrar, tail);
  registrar->server->remove(ticket_of(tail->block));
  return PINRAIL_SUCCESS;
}

pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length) {
  if (!within(*reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  return transfer(context, reg, "cuMemcpyDtoH", [&](const Library& cuda, CUdeviceptr base) {
    return cuda.cuMemcpyDtoH(into, base + offset, length);
  });
}

pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length) {
  if (!within(*reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  return transfer(context, reg, "cuMemcpyHtoD", [&](const Library& cuda, CUdeviceptr base) {
    const CUresult error = cuda.cuMemcpyHtoD(base + offset, from, length);
    return error == CUDA_SUCCESS ? cuda.cuCtxSynchronize() : error;  // the bytes may still be on their way
  });
}

// The driver exports exactly this range; CUDA 13's may crash for managed memory. make_copies_wait() makes bytes that
// the CPU copies arrive before a device may read them.
pinrail_status_t export_dmabuf(void* context, const void* addr, size_t length, int* fd_out, uint64_t* fd_offset_out) {
  auto* registrar = static_cast<Registrar*>(context);
  const auto pointer = reinterpret_cast<CUdeviceptr>(addr);
  if (getpid() != registrar->process || !registrar->cuda.has_optional) return PINRAIL_ERR_NOT_SUPPORTED;
  unsigned managed = 0;
  const bool is_known = query_attribute(*registrar, pointer, CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed);
  if (is_known && managed != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const CurrentContext current(registrar, device_of_pointer(*registrar, pointer));
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result()).code();
  make_copies_wait(*registrar, pointer);
  int descriptor = -1;
  const CUresult error = registrar->cuda.cuMemGetHandleForAddressRange(&descriptor, pointer, length,
                                                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (error != CUDA_SUCCESS)
    return status_of(*registrar, "cuMemGetHandleForAddressRange", error, PINRAIL_ERR_NOT_SUPPORTED).code();
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  *fd_out = descriptor;
  *fd_offset_out = 0;
  return PINRAIL_SUCCESS;
}

// Identifies a pointer: which allocation it is in, with which id and of which kind. API context, no lock.

constexpr uint64_t kFabricType = CU_MEM_HANDLE_TYPE_FABRIC;

// Drivers may need a current context for this, and the calling thread may have none.
CUresult address_range(Registrar* registrar, CUdeviceptr pointer, Found* found) {
  const CUresult error = registrar->cuda.cuMemGetAddressRange(&found->base, &found->length, pointer);
  if (error != CUDA_ERROR_INVALID_CONTEXT) return error;
  const CurrentContext current(registrar, device_of_pointer(*registrar, pointer));
  if (current.result() != CUDA_SUCCESS) return current.result();
  return registrar->cuda.cuMemGetAddressRange(&found->base, &found->length, pointer);
}

// Finds the range that is mapped at the address, not the reservation around it. The id of a reservation does not change
// when other physical memory is mapped there, so the id of that memory is mixed in.
Status query_mapping(Registrar* registrar, CUdeviceptr pointer, Found* found) {
  unsigned long long block = 0;
  CUresult error = address_range(registrar, pointer, found);
  if (error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemGetAddressRange", error);
  error = registrar->cuda.cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuPointerGetAttribute", error, PINRAIL_ERR_NOT_SUPPORTED);
  found->id ^= block * 0x9E3779B97F4A7C15u;
  return success();
}

// For an allocation from a pool the attributes may give the addresses that are reserved for the pool, as they give the
// reservation around a mapping. If the driver does not know a range for pool memory, the attributes are used.
Status query_pool_memory(Registrar* registrar, CUdeviceptr pointer, Found* found) {
  Found reported = *found;
  const CUresult error = address_range(registrar, pointer, &reported);
  const bool is_known = error == CUDA_SUCCESS && reported.base != 0 && reported.length != 0;
  if (is_known) *found = reported;
  const bool is_unknown = error == CUDA_SUCCESS || error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_INVALID_VALUE ||
                          error == CUDA_ERROR_NOT_SUPPORTED;
  return is_unknown ? success() : status_of(*registrar, "cuMemGetAddressRange", error);
}

// Memory that is not cuMemAlloc's, or of a driver without IPC. What the driver says when a handle is requested decides.
// Managed memory has the attributes of GPU memory, but it moves: no other process and no device can use it.
Status query_other(Registrar* registrar, CUdeviceptr pointer, Found* found) {
  unsigned managed = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&found->pool, &found->handle_types, &managed};
  const CUresult error = registrar->cuda.cuPointerGetAttributes(3, names, values, pointer);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuPointerGetAttributes", error);
  if (managed != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (found->pool != nullptr) {
    found->kind = PINRAIL_GPU_POOL;
    return query_pool_memory(registrar, pointer, found);
  }
  if ((found->handle_types & kFabricType) != 0) found->kind = PINRAIL_GPU_FABRIC;
  // Descriptors are preferred: blocks do not leave the machine.
  if ((found->handle_types & kDescriptorType) != 0) found->kind = PINRAIL_GPU_VMM;
  return query_mapping(registrar, pointer, found);
}

pinrail_status_t identify(void* context, const void* addr, pinrail_gpu_range_t* range_out) {
  if (range_out->size < sizeof(*range_out)) return PINRAIL_ERR_VERSION;
  Found found{};
  const Status status = look_up(static_cast<Registrar*>(context), addr, &found);
  if (!status.ok()) return status.code();
  range_out->size = sizeof(*range_out);
  range_out->base = reinterpret_cast<void*>(found.base);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
  range_out->length = found.length;
  range_out->buffer_id = found.id;
  return PINRAIL_SUCCESS;
}

}  // namespace

Mapping mapping_at(const Registrar& registrar, CUdeviceptr pointer) {
  unsigned long long id = 0;
  CUdeviceptr start = 0;
  size_t bytes = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&id, &start, &bytes};
  if (registrar.cuda.cuPointerGetAttributes(3, names, values, pointer) != CUDA_SUCCESS) return {};
  const bool is_inside = bytes != 0 && pointer - start <= bytes;
  return {id, is_inside ? bytes - (pointer - start) : SIZE_MAX};
}

int device_of_pointer(const Registrar& registrar, CUdeviceptr pointer) {
  int device = 0;
  const bool is_known = query_attribute(registrar, pointer, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &device);
  return is_known && device >= 0 && device < registrar.device_count ? device : 0;
}

// Asks everything about memory of cuMemAlloc in one call, because each hit of an owner asks.
Status look_up(Registrar* registrar, const void* addr, Found* found_out) {
  const auto pointer = reinterpret_cast<CUdeviceptr>(addr);
  Found found{};
  found.kind = PINRAIL_GPU_IPC;
  unsigned type = 0;
  int is_legacy = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&type, &found.base, &found.length, &found.id, &is_legacy};
  const CUresult error = registrar->cuda.cuPointerGetAttributes(5, names, values, pointer);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuPointerGetAttributes", error, PINRAIL_ERR_NOT_FOUND);
  if (type != CU_MEMORYTYPE_DEVICE || found.base == 0 || found.length == 0) return PINRAIL_ERR_NOT_FOUND;
  if (is_legacy == 0 && registrar->cuda.has_optional) {
    const Status status = query_other(registrar, pointer, &found);
    if (!status.ok()) return status;
  }
  *found_out = found;
  return success();
}

void fill_table(Registrar* registrar) {
  pinrail_registrar_t& table = registrar->limits;
  table = make_registrar("cuda_ipc", registrar, uint32_t{PINRAIL_KIND_GPU} | uint32_t{PINRAIL_KIND_REMOTE}, 1,
                         register_mem, deregister_mem);
  table.tail_size = sizeof(Tail);
  table.device_read = device_read;
  table.device_write = device_write;
  table.identify = identify;
  table.export_dmabuf = export_dmabuf;
  if (!registrar->cuda.has_events) return;
  table.record = record;
  table.wait = wait;
}

}  // namespace pinrail::cuda_ipc
