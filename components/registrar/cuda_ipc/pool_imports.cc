// SPDX-License-Identifier: BSD-3-Clause
// API context; a context is current. Each function takes the lock of the imports.
#include "components/registrar/cuda_ipc/pool_imports.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace pinrail::cuda_ipc {
namespace {

// Counts one more use of an imported pool or pointer. OUT_OF_MEMORY: there is no host memory for the count; end() has
// then given the import back to the driver, unless it has other uses.
template <typename Uses, typename Key, typename End>
CUresult add_use(Uses* uses, PoolImports::User user, const Key& key, End&& end) {
  try {
    uses->emplace(key, user);
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    if (uses->count(key) == 0) end();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

template <typename Uses>
void erase_all_of(Uses* uses, PoolImports::User user) {
  for (auto at = uses->begin(); at != uses->end();) at = at->second == user ? uses->erase(at) : std::next(at);
}

}  // namespace

// Removes one use. The last use of an import gives it back to the driver by end().
template <typename Key, typename End>
CUresult PoolImports::drop(Uses<Key>* uses, User user, const Key& key, End&& end) {
  const auto all = uses->equal_range(key);
  const auto own = std::find_if(all.first, all.second, [&](const auto& each) { return each.second == user; });
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

CUresult PoolImports::import_pool(const Library& cuda, User user, int descriptor, CUmemoryPool* pool_out) {
  void* const number = reinterpret_cast<void*>(intptr_t{descriptor});  // NOLINT(performance-no-int-to-ptr): its way
  CUmemoryPool pool = nullptr;
  Guard guard(mutex_);
  const CUresult error =
      cuda.cuMemPoolImportFromShareableHandle(&pool, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (error != CUDA_SUCCESS) return error;
  const CUresult added = add_use(&pools_, user, pool, [&] { cuda.cuMemPoolDestroy(pool); });
  if (added == CUDA_SUCCESS) *pool_out = pool;
  return added;
}

CUresult PoolImports::import_pointer(const Library& cuda, User user, CUmemoryPool pool, CUmemPoolPtrExportData* data,
                                     Pointer* pointer_out) {
  CUdeviceptr address = 0;
  Guard guard(mutex_);
  const CUresult error = cuda.cuMemPoolImportPointer(&address, pool, data);
  if (error != CUDA_SUCCESS) return error;
  unsigned long long id = 0;
  const bool has_id = cuda.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) == CUDA_SUCCESS;
  const Pointer pointer = {address, common_id_locked(address, has_id ? id : 0)};
  const CUresult added = add_use(&pointers_, user, pointer, [&] { cuda.cuMemFree(address); });
  if (added == CUDA_SUCCESS) *pointer_out = pointer;
  return added;
}

CUresult PoolImports::free_pointer(const Library& cuda, User user, const Pointer& pointer) {
  Guard guard(mutex_);
  return drop(&pointers_, user, pointer, [&] { return cuda.cuMemFree(pointer.first); });
}

// The driver refuses it, INVALID_VALUE, while the program itself has memory of the pool open. Then it is the program's
// to destroy. It is asked twice, as for all that must not stay open.
CUresult PoolImports::destroy_pool(const Library& cuda, User user, CUmemoryPool pool) {
  Guard guard(mutex_);
  return drop(&pools_, user, pool, [&] {
    CUresult error = cuda.cuMemPoolDestroy(pool);
    if (error == CUDA_ERROR_INVALID_VALUE) error = cuda.cuMemPoolDestroy(pool);
    return error == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : error;
  });
}

void PoolImports::forget_pointer(User user, const Pointer& pointer) {
  Guard guard(mutex_);
  drop(&pointers_, user, pointer, [] { return CUDA_SUCCESS; });
}

void PoolImports::forget_pool(User user, CUmemoryPool pool) {
  Guard guard(mutex_);
  drop(&pools_, user, pool, [] { return CUDA_SUCCESS; });
}

void PoolImports::forget_all_of(User user) {
  Guard guard(mutex_);
  erase_all_of(&pools_, user);
  erase_all_of(&pointers_, user);
}

}  // namespace pinrail::cuda_ipc
