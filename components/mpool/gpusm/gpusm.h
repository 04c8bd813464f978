// SPDX-License-Identifier: BSD-3-Clause
// gpusm.h - the owner's side: a block for each allocation of local GPU memory, found by the driver's present answer.
//
// Owns     the segment of validity slots, and the allocation of each slot.
// Threads  as gpu_pool::Pool. API context without a lock held, unless a comment says otherwise.
// Hook     free_hook(), report_hook() and wait_for_importers_hook().
//
// A block names the process's identity since the last restart. After a restart no earlier slot is valid, and slots of
// another process are not written, because the process that was checkpointed may still run.
//
// gpusm/O1  If a free is reported, the slot's word changes before the memory can be reallocated; if not, when the
//     address is exported again.
// gpusm/O2  A block is given out only if its memory was seen alive after the hook could find its range.
// gpusm/O3  With Free::defer, a free waits for all that have the memory open, whether its registration is still there
//     or was closed by an eviction or by the gc thread. An importer that still has it open when the time limit has
//     passed is not waited for again. If all slots are taken, those whose registration has ended are given back.
#ifndef PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H
#define PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H

#include "components/mpool/gpusm/exports.h"
#include "framework/mpool/gpu_block.h"
#include "framework/mpool/gpu_pool.h"

namespace pinrail::gpusm {

using mpool::Component;

// What a free of exported memory does.
enum class Free : uint8_t { notify, defer };

// The pool's identity for peers between two restarts: the process, its segment, and the allocation of each slot.
class Session {
 public:
  // Creates a session by the component's parameters; hooks arrive from here on. Without shared memory blocks have no
  // slot, which is reported.
  static Status create(const pinrail_host_t* host, std::unique_ptr<Session>* session_out);
  ~Session();

  // Sets the identity of the pool's own peer. The caller holds the cache lock, or no other thread knows the peer yet.
  void set_own_peer(gpu_pool::Peer* own) const;
  // Fills in the owner's part of a block and takes a slot. OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: there is no free
  // slot, which is reported.
  Status fill_owner(const gpu_pool::Key& key, gpu_pool::Identity* name, pinrail_gpu_block_t* block);
  // Ends the block's slot, so that peers must ask for a new block. With Free::defer the slot and its range stay as long
  // as importers have the memory open, because a free of the memory still has to wait for them (gpusm/O3).
  void end_slot(gpu_pool::Identity* name);
  // Gives back the slots that stayed and have no importer any more, and frees what a crashed importer has left.
  void look_at_importers();
  // Stops the hooks and waits for those in flight. If `next` is of another process, the segment is left to the old
  // one.
  void end(const Session& next);
  // Memory of the range is about to be freed: see gpusm_component.cc. Hook context.
  void free_hook(uintptr_t base, size_t length);

 private:
  explicit Session(const pinrail_host_t* host) : host_(host) {}
  static void report_hook(void* life, uintptr_t base, size_t length);
  void wait_for_importers_hook(uint32_t slot, int64_t until);
  void give_back(uint32_t slot);
  // Gives back the slots that stayed and have no importer any more; Importers::any: all of them.
  enum class Importers : uint8_t { none, any };
  void give_back_kept(Importers whose);

  const pinrail_host_t* const host_;
  slots::Process self_;
  slots::Exporter exporter_;
  Exports exports_;
  Free free_ = Free::notify;
  uint64_t free_timeout_ms_ = 0;
  void* subscription_ = nullptr;
};

class Pool final : public gpu_pool::Pool {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out);
  // Returns a referenced registration of the allocation that holds the range; in the index, or by a new handle.
  // NOT_FOUND: the range is not GPU memory. BAD_PARAM: it exceeds one allocation.
  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  // The same from the index only; NOT_FOUND if it has none.
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  Status export_range(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_gpu_block_t* block_out,
                      size_t* offset_out);
  void free_hook(uintptr_t base, size_t length) { session_->free_hook(base, length); }

 private:
  using gpu_pool::Pool::Pool;
  ~Pool() override;
  // Asks the driver for the allocation that holds the range. Errors as register_mem().
  Status identify(uintptr_t addr, size_t length, gpu_pool::Key* key_out);
  Status after_open(const gpu_pool::Request& request, pinrail_registration_t* reg) override;
  void end_slot(pinrail_registration_t* reg) override;
  void before_progress(pinrail_thread_t* thread) override;
  Status restart(pinrail_thread_t* thread) override;

  std::unique_ptr<Session> session_;
  gpu_pool::Peer* own_peer_ = nullptr;
};

}  // namespace pinrail::gpusm

#endif
