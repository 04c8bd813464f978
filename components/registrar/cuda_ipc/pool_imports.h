// SPDX-License-Identifier: BSD-3-Clause
// pool_imports.h - counts what this process has open of peers' stream-ordered memory. The driver has one object for all
// imports of a pool, and one mapping for all imports of a pointer, and counts neither (seen with 580.159.04): the first
// cuMemFree() ends the mapping for all, and a pool that was destroyed may not be used again.
//
// Owns     the imported pools and pointers, until their last user has closed them. A user is a registrar.
// Threads  all functions may run together.
// Context  API; a context is current. No lock is held by the caller.
//
// pool_imports/U1  A pool is imported and destroyed, and a pointer imported and freed, under one lock. Otherwise what
//     one thread has just imported could be the object that another one ends. It is the only lock that is held across
//     calls of the driver; hits, and memory of other kinds, do not take it.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_POOL_IMPORTS_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_POOL_IMPORTS_H

#include <cstdint>
#include <map>
#include <utility>

#include "base/sync/lock.h"
#include "components/registrar/cuda_ipc/cuda_library.h"

namespace pinrail::cuda_ipc {

class PoolImports {
 public:
  // A mapping: its address, and the driver's id of it (0: the driver has none). After a device reset another one may be
  // at the address.
  using Pointer = std::pair<CUdeviceptr, uint64_t>;

  using User = const void*;

  // Errors: the driver's; OUT_OF_MEMORY also without host memory. Nothing was opened then.
  CUresult import_pool(const Library& cuda, User user, int descriptor, CUmemoryPool* pool_out);
  CUresult import_pointer(const Library& cuda, User user, CUmemoryPool pool, CUmemPoolPtrExportData* data,
                          Pointer* pointer_out);
  // Ends it if this was its last use. Errors: the driver's; it is still in use then.
  CUresult free_pointer(const Library& cuda, User user, const Pointer& pointer);
  CUresult destroy_pool(const Library& cuda, User user, CUmemoryPool pool);
  // The context has ended, and everything in it; or the user could not end it and leaves it to the next one.
  void forget_pointer(User user, const Pointer& pointer);
  void forget_pool(User user, CUmemoryPool pool);
  // After a restart: the pool abandons all that this user has open (F2). Needs no context.
  void forget_all_of(User user);

 private:
  template <typename Key>
  using Uses = std::multimap<Key, User>;
  template <typename Key, typename End>
  static CUresult drop(Uses<Key>* uses, User user, const Key& key, End&& end);
  uint64_t common_id_locked(CUdeviceptr address, uint64_t id) const REQUIRES(mutex_);

  Mutex mutex_{LockRank::device};
  Uses<CUmemoryPool> pools_ GUARDED_BY(mutex_);
  Uses<Pointer> pointers_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::cuda_ipc

#endif
