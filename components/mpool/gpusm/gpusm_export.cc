// SPDX-License-Identifier: BSD-3-Clause
// From a pointer to a block: identifies the allocation, finds it in the index, or gets a handle and a validity slot.
// API context; the caller holds no lock and may hold references.
#include <new>

#include "components/mpool/gpusm/gpusm.h"
#include "framework/registrar/request.h"

namespace pinrail::gpusm {
namespace {

pinrail_gpu_block_t* block_of(pinrail_registration_t* reg) {
  return static_cast<pinrail_gpu_block_t*>(registrar_tail(reg));
}

}  // namespace

// Creates a pool. NOT_SUPPORTED: the registrar does not export GPU memory.
Status Pool::create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out) {
  const pinrail_registrar_t& registrar = *config.limits;
  if ((registrar.kinds & PINRAIL_KIND_GPU) == 0 || registrar.identify == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  if (registrar.tail_size < sizeof(pinrail_gpu_block_t)) return PINRAIL_ERR_NOT_SUPPORTED;
  gpu_pool::Settings settings;
  Status status = gpu_pool::read_settings(component->host, config, "mpool_gpusm_", &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool, void (*)(Pool*)> pool(new Pool(component, config, settings, Hits::pool),
                                              [](Pool* unused) { delete unused; });
  status = Session::create(component->host, &pool->session_);
  if (!status.ok()) return status;
  pool->own_peer_ = new gpu_pool::Peer;
  pool->session_->set_own_peer(pool->own_peer_);
  status = pool->join();
  if (!status.ok()) return status;
  pool->add_peer(pool->own_peer_);
  *pool_out = pool.release();
  return status;
}

Pool::~Pool() {
  if (!has_peers()) delete own_peer_;  // create() failed before add_peer()
}

// Asks the driver on each call, so that no block of freed memory is given out.
Status Pool::identify(uintptr_t addr, size_t length, gpu_pool::Key* key_out) {
  pinrail_gpu_range_t range{};
  const Status status = pinrail::identify(*config_.limits, Span::of(addr, length), &range);
  if (!status.ok()) return status;
  key_out->pid = static_cast<uint32_t>(own_peer_->owner.pid);
  key_out->start = own_peer_->owner.start;
  key_out->segment = own_peer_->owner.segment;
  key_out->base = reinterpret_cast<uintptr_t>(range.base);
  key_out->length = range.length;
  key_out->id = range.buffer_id;
  key_out->peer = own_peer_;
  return success();
}

// Returns a referenced registration of the allocation that holds the range: from the index, or a new one.
Status Pool::register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                          pinrail_handle_t* handle_out) {
  gpu_pool::Request request;
  request.access_and_flags = access_and_flags;
  Status status = identify(addr, length, &request.key);
  if (!status.ok()) return status;
  pinrail_registration_t* reg = nullptr;
  const bool is_hit =
      (request.flags() & PINRAIL_FLAG_CACHE_BYPASS) == 0 && gpu_pool::Pool::find(thread, request.key, &reg).ok();
  if (!is_hit) status = acquire(thread, request, &reg);
  if (!status.ok()) return status;
  // Other registrations at these addresses are of freed memory, even if no free was reported (gpusm/O1).
  if (!is_hit) kill_overlapping(thread, reg);
  *handle_out = gpu_pool::handle_of(reg);
  return status;
}

// The same from the index only; NOT_FOUND.
Status Pool::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t, pinrail_handle_t* handle_out) {
  gpu_pool::Key key;
  pinrail_registration_t* reg = nullptr;
  if (!identify(addr, length, &key).ok() || !gpu_pool::Pool::find(thread, key, &reg).ok()) return PINRAIL_ERR_NOT_FOUND;
  *handle_out = gpu_pool::handle_of(reg);
  return success();
}

// Copies the allocation's block, from the index or new. The reference is dropped before the return.
Status Pool::export_range(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_gpu_block_t* block_out,
                          size_t* offset_out) {
  if (!settings_.leave_pinned) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_handle_t handle{};
  const Status status = register_mem(thread, addr, length, 0, &handle);
  if (!status.ok()) return status;
  *block_out = *block_of(handle.reg);
  *offset_out = addr - reinterpret_cast<uintptr_t>(handle.reg->base);
  return deregister(thread, handle);
}

// Completes the block after the registrar has filled in its part, and identifies the memory once more (gpusm/O2).
// NOT_FOUND: it was freed meanwhile.
Status Pool::after_open(const gpu_pool::Request& request, pinrail_registration_t* reg) {
  pinrail_gpu_block_t* block = block_of(reg);
  Status status = session_->fill_owner(request.key, &gpu_pool::identity_of(reg), block);
  if (!status.ok()) return status;
  gpu_pool::Key now;
  status = identify(request.key.base, request.key.length, &now);
  if (!status.ok()) return status;
  return now.id == request.key.id && block->buffer_id == now.id ? success() : Status(PINRAIL_ERR_NOT_FOUND);
}

// The registrar has forgotten the registration: ends its slot.
void Pool::end_slot(pinrail_registration_t* reg) { session_->end_slot(&gpu_pool::identity_of(reg)); }

// Importers may have closed what stayed for them, or crashed.
void Pool::before_progress(pinrail_thread_t*) { session_->look_at_importers(); }

// Creates the new session before it ends the old one, so that an error changes nothing. The caller ensures that no
// other call runs on the pool.
Status Pool::restart(pinrail_thread_t* thread) {
  std::unique_ptr<Session> next;
  Status status = Session::create(host_, &next);
  if (status.ok()) status = restart_registrar(thread);
  if (!status.ok()) return status;
  session_->end(*next);
  release_all(thread, gpu_pool::Device::restarted);
  Guard guard(cache_->mutex);
  next->set_own_peer(own_peer_);
  session_.swap(next);
  return status;
}

}  // namespace pinrail::gpusm
