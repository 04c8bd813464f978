// SPDX-License-Identifier: BSD-3-Clause
// gpusm.h - the owner's side: a block for each allocation of local GPU memory, found again by what the driver says that
// it is now.
//
// Owns     the segment of validity slots, and which allocation each slot is for.
// Threads  as exact::Pool.
// Hook     free_hook().
//
// gpusm/O0  A block names the process as it is since the last restart. After one, no slot of before is believed, and
//     none of another process's is written: the one that was checkpointed may live on.
// gpusm/O1  A slot's word changes before the memory that it was for can be anybody else's, where the free was reported;
//     where it was not, when its address is exported again.
// gpusm/O2  A block leaves the pool only if its memory was seen alive after the hook could see its range.
#ifndef PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H
#define PINRAIL_COMPONENTS_MPOOL_GPUSM_GPUSM_H

#include "components/mpool/gpusm/exports_hook.h"
#include "framework/mpool/block.h"
#include "framework/mpool/exact_component.h"

namespace pinrail::gpusm {

struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  exact::Caches caches;
};

// What a free of exported memory does.
enum class Free : uint8_t { notify, defer };

// What the pool is to others from one restart to the next: which process, its segment, what each slot is for.
class Life {
 public:
  // By the component's parameters; from here on hooks come in. Without shared memory blocks have no slot, and it is
  // said.
  static Status begin(const pinrail_host_t* host, std::unique_ptr<Life>* life_out);
  ~Life();
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // To others, and to the pool's own index.
  void introduce(exact::Peer* own) const;
  // The owner's part of a block, and a slot; OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: there is none, which was said.
  Status sign(const exact::Key& key, exact::Name* name, pinrail_gpu_handle_t* block);
  void take_back(exact::Name* name);
  // No hook comes in any more. If the process of the next life is another one, the segment is left to the old one.
  void end(const Life& next);
  // gpusm_free_hook.cc: memory goes away.
  void free_hook(uintptr_t base, size_t length);

 private:
  explicit Life(const pinrail_host_t* host) : host_(host) {}
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

class Pool final : public exact::Pool {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, exact::Pool** pool_out);
  Status acquire_local(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t how,
                       pinrail_registration_t** reg_out);
  Status find_key(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_registration_t** reg_out);
  Status export_range(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_gpu_handle_t* block_out,
                      size_t* offset_out);
  void free_hook(uintptr_t base, size_t length) { life_->free_hook(base, length); }

 private:
  using exact::Pool::Pool;
  ~Pool() override;
  Status identify(uintptr_t addr, size_t length, exact::Key* key_out);
  Status made(const exact::Request& request, pinrail_registration_t* reg) override;
  void left(pinrail_registration_t* reg) override;
  Status restart(pinrail_thread_t* thread) override;

  std::unique_ptr<Life> life_;
  exact::Peer* own_ = nullptr;
};

}  // namespace pinrail::gpusm

#endif
