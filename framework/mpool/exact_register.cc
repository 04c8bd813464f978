// SPDX-License-Identifier: BSD-3-Clause
// The way in: a hit, or a miss -> registrar -> index; and the way out.
#include <new>

#include "framework/mpool/exact_pool.h"

namespace pinrail::exact {
namespace {

bool is_current(const Area& area) { return area.slot == nullptr || slots::is_alive(area.slot, area.life); }

bool same_memory(const Key& a, const Key& b) {
  return a.peer == b.peer && a.base == b.base && a.length == b.length && a.id == b.id;
}

bool is_of(const Peer& peer, const Key& key) {
  return peer.pid == key.pid && peer.start == key.start && peer.segment == key.segment;
}

pinrail_register_request_t device_request(const Request& request) {
  pinrail_register_request_t asked{};
  asked.size = sizeof(asked);
  asked.kind = request.block != nullptr ? PINRAIL_KIND_REMOTE : PINRAIL_KIND_GPU;
  asked.rights = PINRAIL_RIGHTS_MASK;  // GPU memory has no rights of its own
  asked.fd = -1;
  asked.addr = reinterpret_cast<void*>(request.key.base);  // NOLINT(performance-no-int-to-ptr): as its owner has it
  asked.length = request.key.length;
  asked.handle = request.block;
  asked.handle_length = request.block != nullptr ? sizeof(*request.block) : 0;
  return asked;
}

}  // namespace

uint64_t hash_of(uint32_t pid, uint64_t start, uint64_t segment, uintptr_t base) {
  uint64_t hash = (start ^ segment) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32 ^ pid) * 0xff51afd7ed558ccdu;
  hash = (hash ^ hash >> 29 ^ base) * 0xc4ceb9fe1a85ec53u;
  return hash ^ hash >> 32;
}

// The one that answers; else one of the same range that does not, for it is of other memory: stale.
pinrail_registration_t* Pool::match_locked(const Key& key, pinrail_registration_t** mismatch_out) const {
  return table_.find(hash_of(key), [&](pinrail_registration_t* reg) {
    __builtin_prefetch(reg, 1);  // it lies on another line than its area
    const Area& area = area_of(reg);
    if (area.base != key.base || reg->length != key.length || !is_of(*area.peer, key)) return false;
    const bool same_life = key.life == 0 || area.life == key.life;
    if (area.id == key.id && same_life && is_current(area)) return true;
    *mismatch_out = reg;
    return false;
  });
}

bool Pool::take_locked(pinrail_registration_t* reg, pinrail_registration_t** reg_out) {
  if (!try_acquire(reg, state::load(reg))) return false;
  touch(reg, cache_->tick());
  *reg_out = reg;
  return true;
}

Status Pool::find(const Key& key, pinrail_registration_t** reg_out) {
  Guard guard(cache_->mutex);
  pinrail_registration_t* mismatch = nullptr;
  pinrail_registration_t* reg = match_locked(key, &mismatch);
  if (reg == nullptr || !take_locked(reg, reg_out)) return PINRAIL_ERR_NOT_FOUND;
  count_hit();
  return success();
}

Status Pool::find_local(uintptr_t base, size_t length, pinrail_registration_t** reg_out) {
  const Span span = Span::of(base, length);
  Guard guard(cache_->mutex);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      const bool answers = span_of(reg).contains(span) && is_current(area_of(reg));
      if (!answers || !take_locked(reg, reg_out)) continue;
      count_hit();
      return success();
    }
  }
  return PINRAIL_ERR_NOT_FOUND;
}

// hit: reg_out is held. ours: the caller registers it, and `own` says so to others. gone: a handle of dead memory.
Pool::Looked Pool::look(pinrail_thread_t* thread, const Request& request, Pending* own, Victims* victims,
                        pinrail_registration_t** reg_out) {
  Guard guard(cache_->mutex);
  for (;;) {
    pinrail_registration_t* mismatch = nullptr;
    pinrail_registration_t* reg = match_locked(request.key, &mismatch);
    if (reg != nullptr && take_locked(reg, reg_out)) return Looked::hit;
    const Key& key = request.key;
    if (key.slot != nullptr && !slots::is_alive(key.slot, key.life)) return Looked::gone;
    Pending* other = pending_;
    while (other != nullptr && !same_memory(other->key, key)) other = other->next;
    if (other == nullptr || thread->in_registrar != 0) {
      if (mismatch != nullptr && claim_idle_locked(mismatch)) victims->add(mismatch);
      own->key = key;
      own->next = pending_;
      pending_ = own;
      return Looked::ours;
    }
    cache_->changed.wait(cache_->mutex);  // R5: it is being registered; then we look again
  }
}

void Pool::settle(Pending* own) {
  Guard guard(cache_->mutex);
  Pending** at = &pending_;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  cache_->changed.notify_all();
}

Status Pool::acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if (in_child()) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((request.how & PINRAIL_TRAITS_MASK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((request.flags() & PINRAIL_FLAG_CACHE_BYPASS) != 0) return open_new(thread, request, false, reg_out);
  Pending own;
  Victims victims;
  switch (look(thread, request, &own, &victims, reg_out)) {
    case Looked::hit: count_hit(); return success();
    case Looked::gone: return PINRAIL_ERR_NOT_FOUND;
    case Looked::ours: break;
  }
  close(thread, victims, PINRAIL_REASON_INVALIDATED);
  Status status = PINRAIL_ERR_OUT_OF_RESOURCE;
  try {
    // What has died of this peer goes first: it may be in the way.
    if (request.key.peer->deaths != nullptr) sweep(thread, request.key.peer, false);
    pinrail_registration_t* reg = nullptr;
    status = open_new(thread, request, true, &reg);
    if (status.ok()) {
      publish(thread, request, reg);
      *reg_out = reg;
    }
  } catch (const std::bad_alloc&) {
    status = PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  settle(&own);
  return status;
}

// A registration that the registrar knows, referenced by its maker; cached: pending still, else dead.
Status Pool::open_new(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t** reg_out) {
  misses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  pinrail_registration_t* reg = nullptr;
  Status status = host_->registration_alloc(host_, limits_of_registrar_.tail_size, PINRAIL_COUNTING_SHARED, &reg);
  if (!status.ok()) return status;
  reg->base = reinterpret_cast<void*>(request.key.base);  // NOLINT(performance-no-int-to-ptr): as its owner has it
  reg->length = request.key.length;
  reg->rights = PINRAIL_RIGHTS_MASK;
  reg->flags = request.flags();
  reg->pool = config_.pool;
  area_of(reg) = {request.key.peer, request.key.base, request.key.id, nullptr, request.key.life, 0, nullptr, nullptr};
  status = admit(thread, reg);
  if (!status.ok()) {
    host_->registration_free(host_, reg);
    return status;
  }
  status = make(thread, request, reg);
  if (!status.ok()) {
    {
      Guard guard(cache_->mutex);
      dismiss_locked(reg);
    }
    host_->registration_free(host_, reg);
    return status;
  }
  state::set(reg, cached ? 0 : state::kDead, 1);
  *reg_out = reg;
  return success();
}

Status Pool::make(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  Status status = begin(request, reg);
  if (!status.ok()) return status;
  status = call_registrar(thread, request, reg);
  if (status.ok()) {
    status = made(request, reg);
    if (status.ok()) return status;
    Status(host_->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_RELEASED)).ignore();
  }
  left(reg);
  return status;
}

// Counted in; within the limits, if need be at the cost of idle ones (R8).
Status Pool::admit(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  for (;;) {
    {
      Guard guard(cache_->mutex);
      const Limits& limits = cache_->limits;
      Usage& usage = cache_->usage;
      if (reg->length > limits.bytes) break;
      if (usage.bytes <= limits.bytes - reg->length && usage.count < limits.count) {
        usage.bytes += reg->length;
        usage.count += 1;
        usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
        link_locked(reg);
        return success();
      }
    }
    if (!make_room(thread)) return nothing_idle(nullptr);
  }
  say_limit(reg);
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

Status Pool::call_registrar(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  const pinrail_register_request_t asked = device_request(request);
  int stage = 0;
  for (;;) {
    const Status status = host_->registrar_register(config_.registrar, thread, &asked, reg);
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) {
      if (!make_room(thread)) return nothing_idle(reg);
    } else if (status.is(PINRAIL_ERR_WOULD_BLOCK)) {
      if (make_way(thread, request, &stage) == Way::blocked) return status;
    } else {
      return status;
    }
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
}

// Into the index, with its maker's reference. What is there of the same range is of memory that is gone.
void Pool::publish(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  const bool kept = settings_.leave_pinned && (request.flags() & PINRAIL_FLAG_PERSISTENT) == 0;
  Victims victims;
  {
    Guard guard(cache_->mutex);
    try {
      table_.reserve_one();
      cache_->lru_list.reserve(cache_->lru_list.size() + 1);
    } catch (const std::bad_alloc&) {
      state::set(reg, state::kDead);  // its maker has it all the same
      return;
    }
    pinrail_registration_t* mismatch = nullptr;
    match_locked(request.key, &mismatch);
    if (mismatch != nullptr) {
      uint64_t word = 0;
      unindex_locked(mismatch);
      kill(mismatch, &word);
      if (state::references(word) == 0) {
        ++cache_->closing;
        victims.add(mismatch);
      }
    }
    table_.insert(hash_of(request.key), reg);
    touch(reg, cache_->tick());
    if (kept) cache_->lru_list.insert(reg, last_use(reg));
    state::set(reg, state::kIndexed);
  }
  close(thread, victims, PINRAIL_REASON_INVALIDATED);
}

// The date first: after the drop it may be gone.
Status Pool::deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
  pinrail_registration_t* reg = handle.reg;
  touch(reg, cache_->tick());
  uint64_t word = 0;
  const Drop dropped = drop_shared(handle, &word);
  if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
  if (dropped == Drop::done) return success();
  const bool kept = settings_.leave_pinned && (reg->flags & PINRAIL_FLAG_PERSISTENT) == 0;
  if ((word & state::kIndexed) != 0 && kept) return success();
  {
    Guard guard(cache_->mutex);
    if ((word & state::kIndexed) != 0) {
      // Somebody may have taken a new reference since, or killed it: then it is theirs.
      if (!claim(reg, word)) return success();
      unindex_locked(reg);
    }
    ++cache_->closing;
  }
  close_one(thread, reg, PINRAIL_REASON_RELEASED);
  return success();
}

// A request that could never fit: named once, with the limit and where that came from.
void Pool::say_limit(const pinrail_registration_t* reg) {
  const std::string parameter = settings_.prefix + "size_limit";
  const std::string source = settings_.explicit_bytes ? "the pool's creator" : source_of(host_, parameter);
  const std::string bytes = std::to_string(reg->length), limit = std::to_string(cache_->limits.bytes);
  const pinrail_help_arg_t args[] = {
      {"bytes", bytes.c_str()}, {"limit", limit.c_str()}, {"parameter", parameter.c_str()}, {"source", source.c_str()}};
  host_->help(host_, "never fits", args, 4);
}

}  // namespace pinrail::exact
