// SPDX-License-Identifier: BSD-3-Clause
// Physical memory of virtual memory management (cuMemCreate), exported as a file descriptor or a fabric handle; and
// closing a peer's memory of every kind. API context, no lock; a context is current.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <type_traits>

#include "base/core/files.h"
#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

constexpr auto kFabricType = CU_MEM_HANDLE_TYPE_FABRIC;
constexpr auto kDescriptorHandle = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// As status_of(), of a call that makes a descriptor. OUT_OF_RESOURCE: this process has none left, of which drivers have
// no error of their own; the pool then gives up what is idle, and its descriptor.
Status status_of_export(const Registrar& registrar, const char* call, CUresult error,
                        pinrail_status_t of_invalid = PINRAIL_ERR_ERROR) {
  const Descriptor another(eventfd(0, EFD_CLOEXEC));
  if (!another.is_open() && is_lack(errno)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return status_of(registrar, call, error, of_invalid);
}

// The memory is mapped from its beginning on: the driver supports no other offset yet.
Status export_physical(const Registrar& registrar, const Found& found, CUmemGenericAllocationHandle physical,
                       pinrail_gpu_block_t* block, int* descriptor_out) {
  int descriptor = -1;
  const bool by_fabric = found.kind == PINRAIL_GPU_FABRIC;
  void* const into = by_fabric ? static_cast<void*>(block->driver) : &descriptor;
  const auto type = by_fabric ? kFabricType : kDescriptorHandle;
  const CUresult error = registrar.cuda.cuMemExportToShareableHandle(into, physical, type, 0);
  constexpr const char* kCall = "cuMemExportToShareableHandle";
  if (error != CUDA_SUCCESS)
    return by_fabric ? status_of(registrar, kCall, error) : status_of_export(registrar, kCall, error);
  *descriptor_out = descriptor;
  return success();
}

// The driver's functions take a descriptor in place of a pointer.
void* as_handle(int descriptor) {
  return reinterpret_cast<void*>(intptr_t{descriptor});  // NOLINT(performance-no-int-to-ptr): its way
}

CUresult import_physical(const Registrar& registrar, int descriptor, Tail* tail) {
  const bool by_fabric = tail->block.kind == PINRAIL_GPU_FABRIC;
  return registrar.cuda.cuMemImportFromShareableHandle(&tail->imported,
                                                       by_fabric ? tail->block.driver : as_handle(descriptor),
                                                       by_fabric ? kFabricType : kDescriptorHandle);
}

// Access for the GPU on which the peer's memory is mapped.
CUmemAccessDesc access_for(const Tail& tail) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, tail.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// Reserves addresses, maps the memory and permits access; records in the tail what was done.
CUresult map_physical(const Registrar& registrar, Tail* tail, const char** call_out) {
  const Library& cuda = registrar.cuda;
  const size_t length = tail->block.length;
  *call_out = "cuMemAddressReserve";
  CUresult error = cuda.cuMemAddressReserve(&tail->reserved, length, 0, 0, 0);
  if (error != CUDA_SUCCESS) {
    tail->reserved = 0;
    return error;
  }
  *call_out = "cuMemMap";
  error = cuda.cuMemMap(tail->reserved, length, 0, tail->imported, 0);
  if (error != CUDA_SUCCESS) return error;
  tail->mapped = tail->reserved;
  *call_out = "cuMemSetAccess";
  const CUmemAccessDesc access = access_for(*tail);
  return cuda.cuMemSetAccess(tail->mapped, length, &access, 1);
}

CUresult unmap(const Registrar& registrar, const Tail& tail, const char** call_out) {
  const Library& cuda = registrar.cuda;
  switch (tail.block.kind) {
    case PINRAIL_GPU_IPC: *call_out = "cuIpcCloseMemHandle"; return cuda.cuIpcCloseMemHandle(tail.mapped);
    case PINRAIL_GPU_POOL:
      *call_out = "cuMemFree";
      return registrar.component->pool_imports.free_pointer(registrar, {tail.mapped, tail.mapping_id});
    default: *call_out = "cuMemUnmap"; return cuda.cuMemUnmap(tail.mapped, tail.block.length);
  }
}

// Keeps cuda_ipc/I5. Whatever belonged to a destroyed context is gone with it.
bool is_gone(const Registrar& registrar, const Tail& tail) {
  unsigned long long now = 0;
  return tail.mapped != 0 && tail.mapping_id != 0 &&
         query_attribute(registrar, tail.mapped, CU_POINTER_ATTRIBUTE_BUFFER_ID, &now) && now != tail.mapping_id;
}

}  // namespace

Status export_vmm(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out) {
  if (found.kind == PINRAIL_GPU_VMM && registrar->self.pid == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const Library& cuda = registrar->cuda;
  CUmemGenericAllocationHandle physical = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses
  CUresult error = cuda.cuMemRetainAllocationHandle(&physical, reinterpret_cast<void*>(found.base));
  // It was unmapped meanwhile.
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemRetainAllocationHandle", error, PINRAIL_ERR_NOT_FOUND);
  const Status status = export_physical(*registrar, found, physical, block, descriptor_out);
  release_with_retry(*registrar, "cuMemRelease", [&] { return cuda.cuMemRelease(physical); });
  return status;
}

// After the memory is mapped its handle is not needed. If releasing it fails here, close_peer() releases it.
Status open_vmm(Registrar* registrar, int descriptor, Tail* tail) {
  CUresult error = import_physical(*registrar, descriptor, tail);
  // The received descriptor is no memory, or the memory is gone.
  if (error != CUDA_SUCCESS)
    return status_of(*registrar, "cuMemImportFromShareableHandle", error, PINRAIL_ERR_NOT_FOUND);
  const char* call = "";
  error = map_physical(*registrar, tail, &call);
  if (error != CUDA_SUCCESS) return status_of(*registrar, call, error);
  if (registrar->cuda.cuMemRelease(tail->imported) == CUDA_SUCCESS) tail->imported = 0;
  return success();
}

// What the tail has of a peer's memory is not this registration's to give back any more.
void forget_peer(const Registrar& registrar, Tail* tail) {
  if (tail->pool != nullptr) {
    registrar.component->pool_imports.forget(registrar, tail->pool, {tail->mapped, tail->mapping_id});
  }
  tail->mapped = tail->reserved = 0;
  tail->imported = 0;
  tail->pool = nullptr;
}

// Gives back, in reverse order, what the tail has of a peer's memory. After an error the rest stays in the tail.
Status close_peer(Registrar* registrar, Tail* tail) {
  if (tail->mapped == 0 && tail->reserved == 0 && tail->imported == 0 && tail->pool == nullptr) return success();
  const CurrentContext current(registrar, tail->device);
  CUresult error = current.result();
  const char* call = "cuCtxPushCurrent";
  const auto give_back = [&](auto* thing, const char* name, auto&& function) {
    if (error != CUDA_SUCCESS || *thing == std::remove_pointer_t<decltype(thing)>{}) return;
    call = name;
    error = function();
    if (error == CUDA_SUCCESS) *thing = {};
  };
  const Library& cuda = registrar->cuda;
  const bool is_lost = error == CUDA_SUCCESS && is_gone(*registrar, *tail);
  if (!is_lost) {
    give_back(&tail->mapped, "", [&] { return unmap(*registrar, *tail, &call); });
    give_back(&tail->reserved, "cuMemAddressFree",
              [&] { return cuda.cuMemAddressFree(tail->reserved, tail->block.length); });
    give_back(&tail->imported, "cuMemRelease", [&] { return cuda.cuMemRelease(tail->imported); });
    give_back(&tail->pool, "cuMemPoolDestroy",
              [&] { return registrar->component->pool_imports.destroy_pool(*registrar, tail->pool); });
  }
  if (!is_lost && !has_ended(error)) return status_of(*registrar, call, error);
  // It ended with the context, and may be another event by now. Where that has an id, close_peers_event() looks.
  if (tail->peers_context == 0) tail->peers_event = nullptr;
  forget_peer(*registrar, tail);
  return success();
}

// Stream-ordered memory (cuMemAllocAsync): the pool is exported as a file descriptor, the pointer in the block. API
// context, no lock; a context is current.

// On the GPU where it lies the memory is accessible; for another GPU access must be requested.
static CUresult allow_access(const Registrar& registrar, const Tail& tail) {
  if (is_current_device(registrar, tail)) return CUDA_SUCCESS;
  const CUmemAccessDesc access = access_for(tail);
  return registrar.cuda.cuMemPoolSetAccess(tail.pool, &access, 1);
}

// The pool is exported before the pointer, which some drivers require. A descriptor is requested only from pools that
// were made with descriptors: if it refuses one, CUDA 13.0 crashes when the program destroys the pool. If the driver
// does not tell how the pool was made, the pointer is exported before, too, which fails for a pool that cannot be
// exported, such as the default one.
Status export_pool(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out) {
  if (registrar->self.pid == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (found.handle_types != 0 && (found.handle_types & kDescriptorType) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const Library& cuda = registrar->cuda;
  CUmemPoolPtrExportData data{};
  const auto export_pointer = [&] { return cuda.cuMemPoolExportPointer(&data, found.base); };
  CUresult error = found.handle_types == 0 ? export_pointer() : CUDA_SUCCESS;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolExportPointer", error, PINRAIL_ERR_NOT_SUPPORTED);
  int descriptor = -1;
  error = cuda.cuMemPoolExportToShareableHandle(&descriptor, found.pool, kDescriptorHandle, 0);
  if (error != CUDA_SUCCESS)
    return status_of_export(*registrar, "cuMemPoolExportToShareableHandle", error, PINRAIL_ERR_NOT_SUPPORTED);
  error = export_pointer();
  if (error != CUDA_SUCCESS) {
    close(descriptor);
    return status_of(*registrar, "cuMemPoolExportPointer", error);
  }
  static_assert(sizeof(block->driver) == sizeof(data), "it fits");
  std::memcpy(block->driver, &data, sizeof(data));
  *descriptor_out = descriptor;
  return success();
}

Status open_pool(Registrar* registrar, int descriptor, Tail* tail) {
  PoolImports& imports = registrar->component->pool_imports;
  CUmemPoolPtrExportData data;
  std::memcpy(&data, tail->block.driver, sizeof(data));
  CUresult error = imports.import_pool(*registrar, descriptor, &tail->pool);
  // The received descriptor is no pool, or the pool is gone.
  if (error != CUDA_SUCCESS)
    return status_of(*registrar, "cuMemPoolImportFromShareableHandle", error, PINRAIL_ERR_NOT_FOUND);
  error = allow_access(*registrar, *tail);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolSetAccess", error);
  PoolImports::Pointer pointer;
  error = imports.import_pointer(*registrar, tail->pool, &data, &pointer);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolImportPointer", error, PINRAIL_ERR_NOT_FOUND);
  tail->mapped = pointer.first;
  tail->mapping_id = pointer.second;
  return success();
}

// API context; a context is current. Each function takes the lock of the imports.

namespace {

// Counts one more use of an imported pool or pointer. OUT_OF_MEMORY: there is no host memory for the count; end() has
// then given the import back to the driver, unless it has other uses.
template <typename Uses, typename Key, typename End>
CUresult add_use(Uses* uses, const Registrar& user, const Key& key, End&& end) {
  const Status added = guarded([&] { uses->emplace(key, &user); });
  if (!added.ok() && uses->count(key) == 0) end();
  return added.ok() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Uses>
void erase_all_of(Uses* uses, const Registrar& user) {
  for (auto at = uses->begin(); at != uses->end();) at = at->second == &user ? uses->erase(at) : std::next(at);
}

}  // namespace

// Removes one use. The last use of an import gives it back to the driver by end().
template <typename Key, typename End>
CUresult PoolImports::drop(Uses<Key>* uses, const Registrar& user, const Key& key, End&& end) {
  const auto all = uses->equal_range(key);
  const auto own = std::find_if(all.first, all.second, [&](const auto& each) { return each.second == &user; });
  if (own == all.second) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = std::next(all.first) == all.second ? end() : CUDA_SUCCESS;
  if (error == CUDA_SUCCESS) uses->erase(own);
  return error;
}

// The id under which the mapping's uses are noted. Where the driver tells the id at one import and not at another, it
// is the same mapping: ids rise, so only the last one of an address can be mapped still.
uint64_t PoolImports::common_id_locked(CUdeviceptr address, uint64_t id) const {
  auto last = pointers_.upper_bound({address, UINT64_MAX});
  if (last == pointers_.begin() || (--last)->first.first != address) return id;
  return id == 0 || last->first.second == 0 ? last->first.second : id;
}

CUresult PoolImports::import_pool(const Registrar& user, int descriptor, CUmemoryPool* pool_out) {
  CUmemoryPool pool = nullptr;
  Guard guard(mutex_);
  const CUresult error =
      user.cuda.cuMemPoolImportFromShareableHandle(&pool, as_handle(descriptor), kDescriptorHandle, 0);
  if (error != CUDA_SUCCESS) return error;
  const CUresult added = add_use(&pools_, user, pool, [&] { user.cuda.cuMemPoolDestroy(pool); });
  if (added == CUDA_SUCCESS) *pool_out = pool;
  return added;
}

CUresult PoolImports::import_pointer(const Registrar& user, CUmemoryPool pool, CUmemPoolPtrExportData* data,
                                     Pointer* pointer_out) {
  CUdeviceptr address = 0;
  Guard guard(mutex_);
  const CUresult error = user.cuda.cuMemPoolImportPointer(&address, pool, data);
  if (error != CUDA_SUCCESS) return error;
  unsigned long long id = 0;
  const bool has_id = query_attribute(user, address, CU_POINTER_ATTRIBUTE_BUFFER_ID, &id);
  const Pointer pointer = {address, common_id_locked(address, has_id ? id : 0)};
  const CUresult added = add_use(&pointers_, user, pointer, [&] { user.cuda.cuMemFree(address); });
  if (added == CUDA_SUCCESS) *pointer_out = pointer;
  return added;
}

CUresult PoolImports::free_pointer(const Registrar& user, const Pointer& pointer) {
  Guard guard(mutex_);
  return drop(&pointers_, user, pointer, [&] { return user.cuda.cuMemFree(pointer.first); });
}

// The driver refuses it, INVALID_VALUE, while the program itself has memory of the pool open. Then it is the program's
// to destroy. It is asked twice, as for all that must not stay open.
CUresult PoolImports::destroy_pool(const Registrar& user, CUmemoryPool pool) {
  Guard guard(mutex_);
  return drop(&pools_, user, pool, [&] {
    CUresult error = user.cuda.cuMemPoolDestroy(pool);
    if (error == CUDA_ERROR_INVALID_VALUE) error = user.cuda.cuMemPoolDestroy(pool);
    return error == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : error;
  });
}

void PoolImports::forget(const Registrar& user, CUmemoryPool pool, const Pointer& pointer) {
  Guard guard(mutex_);
  drop(&pointers_, user, pointer, [] { return CUDA_SUCCESS; });
  drop(&pools_, user, pool, [] { return CUDA_SUCCESS; });
}

void PoolImports::forget_all_of(const Registrar& user) {
  Guard guard(mutex_);
  erase_all_of(&pools_, user);
  erase_all_of(&pointers_, user);
}

}  // namespace pinrail::cuda_ipc
