// SPDX-License-Identifier: BSD-3-Clause
// rgpusm.h - the peer's side: other processes' GPU memory, opened once and found again.
//
// Owns     a mapping of each exporter's segment of validity slots.
// Threads  as gpu_pool::Pool. API context without a lock held, unless a comment says otherwise.
// Hook     invalidate_range_hook(), report_hook().
//
// A hit checks the validity slot and the exporter's end mark, a load each. A slot of another segment, exporter or
// generation never matches.
//
// rgpusm/P2  A process that has memory open is counted in its slot, from before the driver opens it until after it was
//     closed.
// rgpusm/P3  A restart forgets all exporters. If this process's identity has changed, it leaves the old identity's
//     counts in the slots alone, because the process that was checkpointed may still run.
#ifndef PINRAIL_COMPONENTS_MPOOL_RGPUSM_RGPUSM_H
#define PINRAIL_COMPONENTS_MPOOL_RGPUSM_RGPUSM_H

#include "framework/mpool/gpu_block.h"
#include "framework/mpool/gpu_pool.h"

namespace pinrail::rgpusm {

using mpool::Component;

class Pool final : public gpu_pool::Pool {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out);
  ~Pool() override;
  // The table's register_remote: tries a hit without a lock, then register_on_slow_path().
  static pinrail_status_t register_entry(void* module, pinrail_thread_t* thread, const pinrail_gpu_block_t* block,
                                         size_t offset, size_t length, uint64_t access_and_flags,
                                         pinrail_handle_t* handle_out);
  // Returns a referenced registration that is mapped at that range of this process; NOT_FOUND. Kills first what hooks
  // noted, and visits all: for messages and tests, not for transfers.
  Status find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  // Notes the range; the next call kills what overlaps. Hook context.
  void invalidate_range_hook(uintptr_t base, size_t length);
  // A subscriber to events of GPU memory. Hook context.
  static void report_hook(void* pool, uintptr_t base, size_t length);

 private:
  using gpu_pool::Pool::Pool;
  struct Range {  // of an allocation
    size_t offset, length;
  };
  enum class Report : uint8_t { version, user, machine, own, no_entry };
  Status report(Report what, const pinrail_gpu_block_t& block, pinrail_status_t status);
  Status check_block(const pinrail_gpu_block_t& block);
  bool hit(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range, uint64_t access_and_flags,
           pinrail_registration_t** reg_out);
  __attribute__((noinline)) pinrail_status_t register_on_slow_path(pinrail_thread_t* thread,
                                                                   const pinrail_gpu_block_t& block, const Range& range,
                                                                   uint64_t access_and_flags,
                                                                   pinrail_handle_t* handle_out);
  Status acquire_remote(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
                        uint64_t access_and_flags, pinrail_registration_t** reg_out);
  Status before_open(const gpu_pool::Request& request, pinrail_registration_t* reg) override;
  void end_slot(pinrail_registration_t* reg) override;
  bool is_gone(const gpu_pool::Request& request) const override;
  void before_progress(pinrail_thread_t* thread) override;
  Status restart(pinrail_thread_t* thread) override;

  // rgpusm_register.cc
  Status acquire_peer(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) EXCLUDES(peers_mutex_);
  Status open_peer_locked(const pinrail_gpu_block_t& block, gpu_pool::Peer** peer_out) REQUIRES(peers_mutex_);
  void release_peer(gpu_pool::Peer* peer);
  gpu_pool::Peer* find_peer_locked(const gpu_pool::Owner& owner) const REQUIRES(cache_->mutex);
  template <typename IsAskedFor>
  size_t close_if_ended(pinrail_thread_t* thread, gpu_pool::Peer* peer, IsAskedFor&& is_asked_for);
  size_t close_ended_peers(pinrail_thread_t* thread, const gpu_pool::Peer* successor) override;
  void free_peer(gpu_pool::Peer* peer, const gpu_pool::Owner& owner);
  void forget_slots();
  void drain_invalidated(pinrail_thread_t* thread);

  slots::Process self_;
  std::atomic<uint32_t> reported_{0};       // a bit for each Report that was made
  Mutex peers_mutex_{LockRank::caches};     // held while an exporter's segment is opened; before cache_->mutex
  std::atomic<bool> is_checking_{false};    // a thread runs before_progress()
  gpu_pool::Peer* last_checked_ = nullptr;  // by that thread
  // The union of mappings of this process that were reported gone. While there is one, hits do not follow hints.
  Mutex invalidated_mutex_{LockRank::pending};
  uintptr_t invalidated_base_ GUARDED_BY(invalidated_mutex_) = UINTPTR_MAX, invalidated_end_
                                                                            GUARDED_BY(invalidated_mutex_) = 0;
  uint64_t invalidations_noted_ GUARDED_BY(invalidated_mutex_) = 0;
  std::atomic<bool> is_noted_{false};
  void* subscription_ = nullptr;
};

}  // namespace pinrail::rgpusm

#endif
