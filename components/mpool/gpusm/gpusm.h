// SPDX-License-Identifier: BSD-3-Clause
// gpusm.h - the owner's side: a block for each allocation of local GPU memory, found again by what the driver says that
// it is now.
//
// Owns     the segment of validity slots, and which allocation each slot is for.
// Threads  as gpu_pool::Pool.
// Hook     free_hook().
//
// gpusm/O0  A block names the process as it is since the last restart. After one, no slot of before is believed, and
//     none of another process's is written: the one that was checkpointed may live on.
// gpusm/O1  A slot's word changes before the memory that it was for can be anybody else's, where the free was reported;
//     where it was not, when its address is exported again.
// gpusm/O2  A block leaves the pool only if its memory was seen alive after the hook could see its range.
#ifndef PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H
#define PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H

#include "components/common/gpu_pool/block.h"
#include "components/common/gpu_pool/gpu_component.h"
#include "components/mpool/gpusm/exports_hook.h"

namespace pinrail::gpusm {

struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  gpu_pool::Caches caches;
};

// What a free of exported memory does.
enum class Free : uint8_t { notify, defer };

// What the pool is to others from one restart to the next: which process, its segment, what each slot is for.
class Session {
 public:
  // By the component's parameters; from here on hooks come in. Without shared memory blocks have no slot, and it is
  // said.
  static Status begin(const pinrail_host_t* host, std::unique_ptr<Session>* session_out);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // To others, and to the pool's own index.
  void introduce(gpu_pool::Peer* own) const;
  // The owner's part of a block, and a slot; OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: there is none, which was said.
  Status sign(const gpu_pool::Key& key, gpu_pool::Name* name, pinrail_gpu_block_t* block);
  void take_back(gpu_pool::Name* name);
  // No hook comes in any more. If the process of the next life is another one, the segment is left to the old one.
  void end(const Session& next);
  // gpusm_free_hook.cc: memory goes away.
  void free_hook(uintptr_t base, size_t length);

 private:
  explicit Session(const pinrail_host_t* host) : host_(host) {}
  static void report_hook(void* life, uintptr_t base, size_t length);
  void wait_for_importers_hook(uint32_t slot, uint64_t until);

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
  Status acquire_local(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                       pinrail_registration_t** reg_out);
  Status find_key(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_registration_t** reg_out);
  Status export_range(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_gpu_block_t* block_out,
                      size_t* offset_out);
  void free_hook(uintptr_t base, size_t length) { session_->free_hook(base, length); }

 private:
  using gpu_pool::Pool::Pool;
  ~Pool() override;
  Status identify(uintptr_t addr, size_t length, gpu_pool::Key* key_out);
  Status made(const gpu_pool::Request& request, pinrail_registration_t* reg) override;
  void left(pinrail_registration_t* reg) override;
  Status restart(pinrail_thread_t* thread) override;

  std::unique_ptr<Session> session_;
  gpu_pool::Peer* own_ = nullptr;
};

}  // namespace pinrail::gpusm

#endif
