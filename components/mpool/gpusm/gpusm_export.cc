// SPDX-License-Identifier: BSD-3-Clause
// From a pointer to a block: what is it now, is it known, and if not, a handle and a validity slot for it.
#include <new>

#include "components/mpool/gpusm/gpusm.h"
#include "framework/registrar/request.h"

namespace pinrail::gpusm {
namespace {

pinrail_gpu_handle_t* block_of(pinrail_registration_t* reg) {
  return static_cast<pinrail_gpu_handle_t*>(registrar_tail(reg));
}

}  // namespace

Status Exports::create(uint32_t count) {
  ranges.reset(new (std::nothrow) Range[count]);
  return ranges != nullptr ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
}

// All seq_cst: O2, the range is there before the driver is asked once more.
void Exports::put(uint32_t slot, uintptr_t base, size_t length) {
  const auto raise = [](auto* figure, auto value, auto&& is_better) {
    auto now = figure->load();
    while (is_better(value, now) && !figure->compare_exchange_weak(now, value)) {
    }
  };
  ranges[slot].base.store(base);
  ranges[slot].end.store(base + length);
  raise(&lowest, base, [](auto a, auto b) { return a < b; });
  raise(&highest, base + length, [](auto a, auto b) { return a > b; });
  raise(&used, slot + 1, [](auto a, auto b) { return a > b; });
}

void Exports::clear(uint32_t slot) { ranges[slot].end.store(0); }

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, exact::Pool** pool_out) {
  const pinrail_registrar_t& registrar = *config.limits;
  if ((registrar.kinds & PINRAIL_KIND_GPU) == 0 || registrar.identify == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  if (registrar.tail_size < sizeof(pinrail_gpu_handle_t)) return PINRAIL_ERR_NOT_SUPPORTED;
  exact::Settings settings;
  Status status = exact::read_settings(component->host, config, "mpool_gpusm_", &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool, void (*)(Pool*)> pool(new Pool(component->host, config, settings, &component->caches),
                                              [](Pool* unused) { delete unused; });
  status = pool->connect();
  if (status.ok()) status = pool->join(config.cache_name);
  if (!status.ok()) return status;
  pool->add_peer(pool->own_);
  *pool_out = pool.release();
  return status;
}

// The segment, and the monitors: from here on hooks come in. Without shared memory blocks have no slot, and it is said.
Status Pool::connect() {
  pinrail_param_value_t most{}, free_way{}, timeout{};
  Status status = host_->param(host_, "max_exports", &most);
  if (status.ok()) status = host_->param(host_, "free", &free_way);
  if (status.ok()) status = host_->param(host_, "free_timeout", &timeout);
  if (!status.ok()) return status;
  free_ = free_way.i == 1 ? Free::defer : Free::notify;
  free_timeout_ms_ = timeout.u;
  status = slots::this_process(&self_);
  if (status.ok()) status = exports_.create(static_cast<uint32_t>(most.u));
  if (!status.ok()) return status;
  slots::remove_stale(self_.user);
  const Status made_segment = exporter_.create(self_, static_cast<uint32_t>(most.u));
  if (made_segment.is(PINRAIL_ERR_OUT_OF_RESOURCE)) return made_segment;
  if (!made_segment.ok()) host_->help(host_, "no segment", nullptr, 0);
  own_ = new exact::Peer;
  own_->pid = self_.pid;
  own_->start = self_.start;
  own_->segment = exporter_.segment();
  if (made_segment.ok()) own_->deaths = exporter_.deaths();
  return host_->monitor_subscribe(host_, report_hook, this, &subscription_);
}

// Hooks in flight are waited for: they look at the exports.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
  if (!has_peers()) delete own_;  // the pool was never finished
}

// What the driver says now: on each call, so that a block of freed memory is never given out again.
Status Pool::identify(uintptr_t addr, size_t length, exact::Key* key_out) {
  pinrail_gpu_range_t range{};
  range.size = sizeof(range);
  const pinrail_registrar_t& registrar = *config_.limits;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as the caller gave it
  const Status status = registrar.identify(registrar.context, reinterpret_cast<const void*>(addr), &range);
  if (!status.ok()) return status;
  if (!Span::of(range.base, range.length).contains(Span::of(addr, length))) return PINRAIL_ERR_BAD_PARAM;
  key_out->pid = own_->pid;
  key_out->start = own_->start;
  key_out->segment = own_->segment;
  key_out->base = reinterpret_cast<uintptr_t>(range.base);
  key_out->length = range.length;
  key_out->id = range.buffer_id;
  key_out->peer = own_;
  return success();
}

Status Pool::acquire_local(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t how,
                           pinrail_registration_t** reg_out) {
  exact::Request request;
  request.how = how;
  Status status = identify(addr, length, &request.key);
  if (!status.ok()) return status;
  pinrail_registration_t* reg = nullptr;
  if ((request.flags() & PINRAIL_FLAG_CACHE_BYPASS) == 0 && find(thread, request.key, &reg).ok()) {
    *reg_out = reg;
    return success();
  }
  status = acquire(thread, request, &reg);
  if (!status.ok()) return status;
  // Other memory where this is: it is gone, whether anybody reported that or not (O1).
  kill_overlapping(thread, own_, request.key.base, request.key.length, request.key.id);
  *reg_out = reg;
  return status;
}

Status Pool::find_key(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_registration_t** reg_out) {
  exact::Key key;
  if (!identify(addr, length, &key).ok()) return PINRAIL_ERR_NOT_FOUND;
  return find(thread, key, reg_out);
}

Status Pool::export_range(pinrail_thread_t* thread, uintptr_t addr, size_t length, pinrail_gpu_handle_t* block_out,
                          size_t* offset_out) {
  if (!settings_.leave_pinned) return PINRAIL_ERR_NOT_SUPPORTED;
  pinrail_registration_t* reg = nullptr;
  const Status status = acquire_local(thread, addr, length, 0, &reg);
  if (!status.ok()) return status;
  *block_out = *block_of(reg);
  *offset_out = addr - reinterpret_cast<uintptr_t>(reg->base);
  return deregister(thread, exact::handle_of(reg));
}

// The registrar's part of the block is there. Now ours, and a last look (O2).
Status Pool::made(const exact::Request& request, pinrail_registration_t* reg) {
  pinrail_gpu_handle_t* block = block_of(reg);
  exact::Name& name = exact::name_of(reg);
  block->pid = self_.pid;
  block->user = self_.user;
  block->start = self_.start;
  block->machine = self_.machine;
  block->segment = 0;
  block->slot_word = block->slot = 0;
  if (exporter_.segment() != 0) {
    uint32_t slot = 0;
    uint64_t life = 0;
    const Status taken = exporter_.take(&slot, &life);
    if (!taken.ok()) {
      host_->help(host_, "too many exports", nullptr, 0);
      return taken;
    }
    name.slot = exporter_.word(slot);
    name.life = life;
    block->segment = exporter_.segment();
    block->slot = slot;
    block->slot_word = life;
    exports_.put(slot, request.key.base, request.key.length);
  }
  seal_block(block);
  exact::Key now;
  const Status status = identify(request.key.base, request.key.length, &now);
  if (!status.ok()) return status;
  return now.id == request.key.id && block->buffer_id == now.id ? success() : Status(PINRAIL_ERR_NOT_FOUND);
}

// The slot is dead before another allocation may have it, also if it was evicted: then peers must ask for a new block.
void Pool::left(pinrail_registration_t* reg) {
  exact::Name& name = exact::name_of(reg);
  if (name.slot == nullptr) return;
  const auto slot = static_cast<uint32_t>(name.slot - exporter_.word(0));
  exports_.clear(slot);
  exporter_.give_back(slot);
  name.slot = nullptr;
}

}  // namespace pinrail::gpusm
