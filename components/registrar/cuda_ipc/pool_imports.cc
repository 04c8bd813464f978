// SPDX-License-Identifier: BSD-3-Clause
// API context; a context is current. Each function takes the lock of the imports.
#include "components/registrar/cuda_ipc/pool_imports.h"

#include <new>

namespace pinrail::cuda_ipc {
namespace {

// Counts one more user. False: there is no memory for the first one.
template <typename Key>
bool add_user(std::map<Key, size_t>* users, const Key& key) {
  try {
    ++(*users)[key];
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

// Counts one user less; the last one ends it by end().
template <typename Key, typename End>
CUresult PoolImports::drop(std::map<Key, size_t>* users, const Key& key, End&& end) {
  const auto found = users->find(key);
  if (found == users->end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second == 1) {
    const CUresult error = end();
    if (error != CUDA_SUCCESS) return error;
    users->erase(found);
  } else {
    --found->second;
  }
  return CUDA_SUCCESS;
}

CUresult PoolImports::import_pool(const Library& cuda, int descriptor, CUmemoryPool* pool_out) {
  void* const number = reinterpret_cast<void*>(intptr_t{descriptor});  // NOLINT(performance-no-int-to-ptr): its way
  CUmemoryPool pool = nullptr;
  Guard guard(mutex_);
  const CUresult error =
      cuda.cuMemPoolImportFromShareableHandle(&pool, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (error != CUDA_SUCCESS) return error;
  if (!add_user(&pools_, pool)) {
    cuda.cuMemPoolDestroy(pool);  // nobody else uses it
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pool_out = pool;
  return CUDA_SUCCESS;
}

CUresult PoolImports::import_pointer(const Library& cuda, CUmemoryPool pool, CUmemPoolPtrExportData* data,
                                     Pointer* pointer_out) {
  CUdeviceptr address = 0;
  Guard guard(mutex_);
  const CUresult error = cuda.cuMemPoolImportPointer(&address, pool, data);
  if (error != CUDA_SUCCESS) return error;
  unsigned long long id = 0;
  const bool has_id = cuda.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) == CUDA_SUCCESS;
  const Pointer pointer = {address, has_id ? id : 0};
  if (!add_user(&pointers_, pointer)) {
    cuda.cuMemFree(address);  // nobody else uses it
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pointer_out = pointer;
  return CUDA_SUCCESS;
}

CUresult PoolImports::free_pointer(const Library& cuda, const Pointer& pointer) {
  Guard guard(mutex_);
  return drop(&pointers_, pointer, [&] { return cuda.cuMemFree(pointer.first); });
}

// The driver refuses it, INVALID_VALUE, while the program itself has memory of the pool open. Then it is the program's
// to destroy. It is asked twice, as for all that must not stay open.
CUresult PoolImports::destroy_pool(const Library& cuda, CUmemoryPool pool) {
  Guard guard(mutex_);
  return drop(&pools_, pool, [&] {
    CUresult error = cuda.cuMemPoolDestroy(pool);
    if (error == CUDA_ERROR_INVALID_VALUE) error = cuda.cuMemPoolDestroy(pool);
    return error == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : error;
  });
}

void PoolImports::forget_pointer(const Pointer& pointer) {
  Guard guard(mutex_);
  drop(&pointers_, pointer, [] { return CUDA_SUCCESS; });
}

void PoolImports::forget_pool(CUmemoryPool pool) {
  Guard guard(mutex_);
  drop(&pools_, pool, [] { return CUDA_SUCCESS; });
}

}  // namespace pinrail::cuda_ipc
