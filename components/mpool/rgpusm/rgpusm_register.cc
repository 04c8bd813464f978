// SPDX-License-Identifier: BSD-3-Clause
// From a block to a registration: checks the block, finds its memory in the index, or opens it. API context; the
// caller holds no lock and may hold references.
#include <unistd.h>

#include <memory>
#include <string>

#include "base/core/own_component.h"
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

// Reads each field once.
gpu_pool::Key key_of(const pinrail_gpu_block_t& block) {
  const auto load = [](const auto& field) { return __atomic_load_n(&field, __ATOMIC_RELAXED); };
  gpu_pool::Key key;
  key.pid = load(block.pid);
  key.start = load(block.start);
  key.segment = load(block.segment);
  key.base = load(block.base);
  key.length = load(block.length);
  key.id = load(block.buffer_id);
  key.slot_word = load(block.slot_word);
  return key;
}

// Whether the index may answer a request with this access and these flags.
bool may_hit(uint64_t access_and_flags) {
  constexpr uint64_t kBypass = uint64_t{PINRAIL_FLAG_CACHE_BYPASS} << PINRAIL_ACCESS_FLAGS_SHIFT;
  return (access_and_flags & (kBypass | PINRAIL_TRAITS_MASK)) == 0;
}

// The number of the slot in the peer's segment.
uint32_t slot_of(const gpu_pool::Peer& peer, const slots::Word* word) {
  return static_cast<uint32_t>(word - peer.slots->word(0));
}

}  // namespace

// Creates a pool. NOT_SUPPORTED: the registrar does not open peers' memory.
Status Pool::create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out) {
  const pinrail_registrar_t& registrar = *config.limits;
  if ((registrar.kinds & PINRAIL_KIND_REMOTE) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  gpu_pool::Settings settings;
  Status status = gpu_pool::read_settings(component->host, config, "mpool_rgpusm_", &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool, void (*)(Pool*)> pool(new Pool(component, config, settings, Hits::library),
                                              [](Pool* unused) { delete unused; });
  status = slots::this_process(&pool->self_);
  if (status.ok()) {
    status = component->host->monitor_subscribe(component->host, PINRAIL_KIND_GPU, report_hook, pool.get(),
                                                &pool->subscription_);
  }
  if (status.ok()) status = pool->join();
  if (status.ok()) *pool_out = pool.release();
  return status;
}

// monitor_unsubscribe() waits for hooks in flight.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
}

pinrail_status_t Pool::register_entry(void* module, pinrail_thread_t* thread, const pinrail_gpu_block_t* block,
                                      size_t offset, size_t length, uint64_t access_and_flags,
                                      pinrail_handle_t* handle_out) {
  Pool* const pool = static_cast<Pool*>(gpu_pool::pool_of(module));
  const Range range = {offset, length};
  pinrail_registration_t* reg = nullptr;
  if (!pool->hit(thread, *block, range, access_and_flags, &reg)) {
    return pool->register_on_slow_path(thread, *block, range, access_and_flags, handle_out);
  }
  *handle_out = gpu_pool::handle_of(reg);
  return PINRAIL_SUCCESS;
}

// A hit without a lock. False: the block or the range is bad, a hook has noted a range, or no hint answers. The block
// lies in the caller's memory, which a peer may be able to change meanwhile; so each field is read once.
bool Pool::hit(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
               uint64_t access_and_flags, pinrail_registration_t** reg_out) {
  if (!has_known_head(block) || !may_hit(access_and_flags) || is_noted_.load(std::memory_order_acquire)) return false;
  const gpu_pool::Key key = key_of(block);
  return is_inside(key.length, range.offset, range.length) && find_hint(thread, key, reg_out);
}

// Reports once for each kind, because a transport may send thousands of such blocks.
void Pool::report(Report what, const pinrail_gpu_block_t& block) {
  constexpr const char* kTopics[] = {"block of another version", "block of another user", "block of another machine",
                                     "own block", "too many importers"};
  const uint32_t bit = 1u << static_cast<unsigned>(what);
  if ((reported_.fetch_or(bit) & bit) != 0) return;
  show(host_, kTopics[static_cast<size_t>(what)],
       {{"pid", NumberText(block.pid).c_str()},
        {"user", NumberText(block.user).c_str()},
        {"self", NumberText(geteuid()).c_str()},
        {"version", NumberText(block.version).c_str()},
        {"size", NumberText(block.size).c_str()}});
}

Status Pool::refuse(Report why, const pinrail_gpu_block_t& block, pinrail_status_t status) {
  report(why, block);
  return status;
}

// Checks every field of the block before it is used.
Status Pool::check_block(const pinrail_gpu_block_t& block) {
  const Status head = check_head(block);
  if (head.is(PINRAIL_ERR_VERSION)) return refuse(Report::version, block, head.code());
  if (!head.ok()) return head;
  if (block.checksum != checksum_of(block)) return PINRAIL_ERR_BAD_PARAM;
  if (block.pid == 0) return PINRAIL_ERR_BAD_PARAM;  // no process; and it marks a Peer that is free
  if (block.user != geteuid()) return refuse(Report::user, block, PINRAIL_ERR_PERM);
  if (block.machine != self_.machine) return refuse(Report::machine, block, PINRAIL_ERR_NOT_SUPPORTED);
  const bool is_own = self_.is(block.pid, block.start);
  return is_own ? refuse(Report::own, block, PINRAIL_ERR_NOT_SUPPORTED) : success();
}

// Registers after draining what hooks noted: a hit under the cache lock, or a miss.
pinrail_status_t Pool::register_on_slow_path(pinrail_thread_t* thread, const pinrail_gpu_block_t& block,
                                             const Range& range, uint64_t access_and_flags,
                                             pinrail_handle_t* handle_out) {
  return guarded([&] {
    pinrail_registration_t* reg = nullptr;
    drain_invalidated(thread);
    const Status status = acquire_remote(thread, block, range, access_and_flags, &reg);
    if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
    return status;
  });
}

// A mapping that an event has ended is not found (E1).
Status Pool::find(pinrail_thread_t* thread, uintptr_t base, size_t length, uint64_t, pinrail_handle_t* handle_out) {
  drain_invalidated(thread);
  pinrail_registration_t* reg = nullptr;
  const Status status = find_local(thread, base, length, &reg);
  if (status.ok()) *handle_out = gpu_pool::handle_of(reg);
  return status;
}

// Returns a referenced registration of the block's allocation: from the index, or by opening it. Keeps the exporter's
// Peer in use meanwhile.
Status Pool::acquire_remote(pinrail_thread_t* thread, const pinrail_gpu_block_t& block, const Range& range,
                            uint64_t access_and_flags, pinrail_registration_t** reg_out) {
  const pinrail_gpu_block_t copy = block;  // the caller's block may change during the call
  Status status = check_block(copy);
  if (status.ok() && !is_inside(copy.length, range.offset, range.length)) status = PINRAIL_ERR_BAD_PARAM;
  if (!status.ok()) return status;
  gpu_pool::Request request;
  request.access_and_flags = access_and_flags;
  request.key = key_of(copy);
  if (may_hit(access_and_flags) && gpu_pool::Pool::find(thread, request.key, reg_out).ok()) return success();
  gpu_pool::Peer* peer = nullptr;
  status = acquire_peer(copy, &peer);
  if (!status.ok()) return status;
  const auto release = [this](gpu_pool::Peer* used) { release_peer(used); };
  const std::unique_ptr<gpu_pool::Peer, decltype(release)> in_use(peer, release);
  request.key.peer = peer;
  request.block = &copy;
  if (peer->slots != nullptr) {
    if (!peer->slots->has_entry()) report(Report::no_entry, copy);
    status = copy.slot < peer->slots->count() ? success() : Status(PINRAIL_ERR_BAD_PARAM);
    if (status.ok()) request.key.slot = peer->slots->word(copy.slot);
  }
  pinrail_registration_t* reg = nullptr;
  if (status.ok()) status = acquire(thread, request, &reg);
  if (!status.ok()) return status;
  // Without slots this block alone tells that what it overlaps was freed; the driver may open both.
  if (peer->slots == nullptr) kill_overlapping(thread, reg);
  *reg_out = reg;
  return status;
}

// Counts this process in the slot before the driver opens the memory (rgpusm/P2): an exporter that defers a free waits
// for it. NOT_FOUND: the memory was freed.
Status Pool::before_open(const gpu_pool::Request& request, pinrail_registration_t* reg) {
  gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
  if (request.key.slot == nullptr) return success();
  if (!request.key.peer->slots->enter(slot_of(*request.key.peer, request.key.slot), request.key.slot_word)) {
    return PINRAIL_ERR_NOT_FOUND;
  }
  identity.slot = request.key.slot;
  identity.slot_word = request.key.slot_word;
  return success();
}

// Whether the memory or its exporter is gone. For a crashed exporter the driver may report that it cannot map the
// memory; eviction would not help.
bool Pool::is_gone(const gpu_pool::Request& request) const {
  const gpu_pool::Key& key = request.key;
  return key.slot != nullptr && !(slots::is_alive(key.slot, key.slot_word) && key.peer->source().is_alive());
}

// The registrar has forgotten the registration, or refused it: uncounts this process in the slot (rgpusm/P2).
void Pool::end_slot(pinrail_registration_t* reg) {
  gpu_pool::Identity& identity = gpu_pool::identity_of(reg);
  if (identity.slot == nullptr) return;
  const gpu_pool::Peer& peer = *gpu_pool::area_of(reg).peer;
  peer.slots->leave(slot_of(peer, identity.slot), identity.slot_word);
  identity.slot = nullptr;
}

}  // namespace pinrail::rgpusm
