// SPDX-License-Identifier: BSD-3-Clause
#include "test/attack/world.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "framework/mpool/mpool.h"  // the layout of a pool, to reach its check()

namespace pinrail::attack {
namespace {

constexpr size_t kPage = 4096;
constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kPages = 24;  // of the memory that all ranges lie in
constexpr size_t kMaxPools = 4;
constexpr size_t kThreads = 3;
constexpr size_t kMaxHeld = 24;
constexpr size_t kTraced = 60;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

// ---- devices
// ---------------------------------------------------------------------------------------------------------

Device::Device(World* world, size_t pool, const fake::FakeOptions& options)
    : world_(world), pool_(pool), fake_(options), table_(*fake_.table()) {
  table_.context = this;
  table_.register_mem = register_entry;
  table_.deregister_mem = deregister_entry;
  if (table_.tail_init != nullptr) table_.tail_init = tail_init_entry;
  if (table_.tail_fini != nullptr) table_.tail_fini = tail_fini_entry;
}

pinrail_status_t Device::register_entry(void* device, const pinrail_register_request_t* request,
                                        pinrail_registration_t* reg) {
  auto* const self = static_cast<Device*>(device);
  Model& model = self->world_->model();
  model.attempt_begins(self->pool_, *request);
  const bool fails = self->failures_ > 0;
  if (fails) --self->failures_;
  self->world_->callback(false);
  const pinrail_registrar_t& table = *self->fake_.table();
  const pinrail_status_t status = fails ? self->failure_ : table.register_mem(table.context, request, reg);
  model.attempt_ends(self->pool_, reg, *request, status);
  return status;
}

pinrail_status_t Device::deregister_entry(void* device, pinrail_registration_t* reg, pinrail_reason_t reason) {
  auto* const self = static_cast<Device*>(device);
  self->world_->model().device_forgot(self->pool_, reg, reason);
  self->world_->callback(true);
  const pinrail_registrar_t& table = *self->fake_.table();
  return table.deregister_mem(table.context, reg, reason);
}

pinrail_status_t Device::tail_init_entry(void* device, void* tail) {
  const pinrail_registrar_t& table = *static_cast<Device*>(device)->fake_.table();
  return table.tail_init(table.context, tail);
}

void Device::tail_fini_entry(void* device, void* tail) {
  const pinrail_registrar_t& table = *static_cast<Device*>(device)->fake_.table();
  table.tail_fini(table.context, tail);
}

// ---- what the seed decides
// -------------------------------------------------------------------------------------------

World::World(uint64_t seed, const std::vector<std::string>& tolerated)
    : random_(seed), model_(tolerated), workers_(kThreads) {
  const std::string gc_limit = one_in(3) ? std::to_string((1 + below(8)) * kPage) : "64M";
  const bool all_rights = one_in(2);
  model_.set_all_rights(all_rights);
  const pinrail_setting_t settings[] = {{"monitor", "external"},
                                        {"mpool_grdma_gc_thread", "never"},
                                        {"mpool_grdma_gc_limit", gc_limit.c_str()},
                                        {"mpool_grdma_rights", all_rights ? "all" : "asked"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = std::size(settings);
  if (pinrail_init(&options) != PINRAIL_SUCCESS) {
    model_.note("pinrail_init() failed");
    return;
  }
  draw_caches();
  const size_t pools = 1 + below(kMaxPools);
  pools_.resize(pools, nullptr);
  devices_.resize(pools);
  miscounted_.resize(pools, false);
  all_concurrent_ = one_in(2);
  for (size_t pool = 0; pool < pools; ++pool) make_pool(pool);
}

World::~World() = default;

void World::draw_caches() {
  for (int i = 0; i < 2; ++i) {
    CacheShape shape;
    if (one_in(2)) shape.bytes = (2 + below(20)) * kPage;
    if (one_in(2)) shape.count = 1 + below(8);
    model_.add_cache(shape);
  }
}

PoolShape World::draw_shape(size_t pool) {
  constexpr size_t kGranularities[] = {kPage, kPage, 1, 4 * kPage};
  constexpr pinrail_thread_mode_t kModes[] = {PINRAIL_THREAD_SERIALIZED, PINRAIL_THREAD_CALLER,
                                              PINRAIL_THREAD_CONCURRENT};
  PoolShape shape;
  shape.cache = pool == 0 || one_in(3) ? 0 : pool % 2;
  shape.exact = one_in(4);
  shape.leave_pinned = !one_in(4);
  shape.granularity = kGranularities[below(std::size(kGranularities))];
  shape.max_length = one_in(4) ? 4 * kPage : 0;
  if (!all_concurrent_) shape.mode = kModes[below(std::size(kModes))];
  return shape;
}

void World::make_pool(size_t pool) {
  const PoolShape shape = draw_shape(pool);
  model_.set_pool(pool, shape);
  fake::FakeOptions options;
  options.thread_mode = shape.mode;
  options.needs_pool_scope = shape.mode == PINRAIL_THREAD_CALLER;
  options.granularity = shape.granularity;
  options.max_length = shape.max_length;
  options.refused_rights = one_in(3) ? PINRAIL_ACCESS_REMOTE_ATOMIC : 0;
  options.tail_size = one_in(2) ? 64 : 0;
  options.tail_hooks = options.tail_size != 0;
  devices_[pool] = std::make_unique<Device>(this, pool, options);

  pinrail_registrar_choice_t choice{};
  choice.table = &devices_[pool]->table();
  const CacheShape& limits = model_.limits(pool);
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  wanted.flags = shape.exact ? PINRAIL_POOL_EXACT : 0;
  wanted.leave_pinned = shape.leave_pinned ? 1 : 0;
  wanted.size_limit = limits.bytes == UINT64_MAX ? 0 : static_cast<int64_t>(limits.bytes);
  wanted.count_limit = limits.count == UINT64_MAX ? 0 : static_cast<int64_t>(limits.count);
  const char* const name = shape.cache == 0 ? "first" : "second";
  if (pinrail_mpool_create("grdma", &choice, name, &wanted, &pools_[pool]) != PINRAIL_SUCCESS)
    model_.note("a pool could not be made");
  miscounted_[pool] = false;
  say("pool " + std::to_string(pool) + " cache " + name + (shape.exact ? " EXACT" : "") + " leave_pinned " +
      std::to_string(wanted.leave_pinned) + " mode " + std::to_string(shape.mode) + " granularity " +
      std::to_string(shape.granularity) + " limits " + std::to_string(wanted.size_limit) + " bytes " +
      std::to_string(wanted.count_limit));
}

World::Request World::draw_request() {
  constexpr uint32_t kRights[] = {0, 1, 1, 1, 2, 3, 5, PINRAIL_ACCESS_REMOTE_ATOMIC};
  if (!recent_.empty() && one_in(2)) return recent_[below(recent_.size())];
  Request request{};
  request.range.base = kBase + below(kPages) * kPage;
  request.range.length = (1 + below(6)) * kPage;
  if (one_in(3)) request.range.base += below(kPage);
  if (one_in(3)) request.range.length = 1 + below(request.range.length);
  request.access = kRights[below(std::size(kRights))];
  if (one_in(8)) request.access |= PINRAIL_TRAIT_RELAXED_ORDERING;
  if (one_in(10)) request.flags |= PINRAIL_FLAG_CACHE_BYPASS;
  if (one_in(12)) request.flags |= PINRAIL_FLAG_PERSISTENT;
  recent_.push_back(request);
  if (recent_.size() > 6) recent_.erase(recent_.begin());
  return request;
}

size_t World::draw_pool() { return below(pools_.size()); }

void World::say(const std::string& what) {
  trace_.push_back(std::string(2 * model_.calls().size(), ' ') + what);
  if (trace_.size() > kTraced) trace_.pop_front();
}

// ---- steps
// -----------------------------------------------------------------------------------------------------------

template <typename Body>
void World::on_some_thread(size_t pool, bool may_move, Body body) {
  const bool is_caller = model_.shape(pool).mode == PINRAIL_THREAD_CALLER;
  const size_t innermost = workers_.innermost();
  size_t chosen = below(workers_.size());
  while (workers_.is_busy(chosen) && chosen != innermost) chosen = (chosen + 1) % workers_.size();
  // A registrar may ask to be called from such calls alone.
  const auto call = [&](bool inside) {
    std::optional<fake::PoolScope> scope;
    if (is_caller) scope.emplace();
    body(inside);
  };
  if (innermost != workers_.size() && (!may_move || !all_concurrent_ || chosen == innermost)) return call(true);
  if (innermost != workers_.size()) say("on thread " + std::to_string(chosen) + ":");
  workers_.run(chosen, [&] { call(false); });
}

template <typename Body>
void World::in_call(Call call, bool may_move, const std::string& what, Body body) {
  on_some_thread(call.pool, may_move, [&](bool inside) {
    say(what);
    call.inside = inside;
    body(model_.begin(call));
    model_.end();
  });
}

bool World::is_closing(size_t pool) const {
  const auto& calls = const_cast<World*>(this)->model_.calls();
  return std::any_of(calls.begin(), calls.end(), [&](const Call& call) { return call.destroys && call.pool == pool; });
}

// Whether another thread's request would wait for one that is under way, which waits for the other thread.
bool World::may_meet_pending(size_t pool, const Range& range) const {
  const auto& calls = const_cast<World*>(this)->model_.calls();
  return std::any_of(calls.begin(), calls.end(), [&](const Call& call) {
    return call.registers && call.pool == pool && call.range.overlaps(range);
  });
}

void World::do_register() {
  const size_t pool = draw_pool();
  if (is_closing(pool) || held_.size() >= kMaxHeld) return;
  const Request request = draw_request();
  const Range range = model_.rounded(pool, request.range);
  const bool may_move = forgetting_ == 0 && !may_meet_pending(pool, range);
  Call asked(pool);
  asked.range = range;
  asked.access = request.access;
  asked.flags = request.flags;
  asked.registers = true;
  const std::string what = "register pool " + std::to_string(pool) + " " + text_of(request.range) + " access " +
                           std::to_string(request.access) + " flags " + std::to_string(request.flags);
  pinrail_status_t status = PINRAIL_SUCCESS;
  in_call(asked, may_move, what, [&](Call* call) {
    // R5: a thread that is inside a registrar call may get one of its own.
    const bool expects_hit = request.flags == 0 && !call->inside && model_.has_hit(pool, range, request.access);
    pinrail_handle_t handle{};
    status = pinrail_mpool_register(pools_[pool], pointer(request.range.base), request.range.length, request.access,
                                    request.flags, &handle);
    if (call->disturbed) miscounted_[pool] = true;
    if (status == PINRAIL_SUCCESS) {
      Entry* const entry = model_.registered(*call, handle, expects_hit);
      if (entry != nullptr) held_.push_back({handle, entry, pool});
    } else {
      model_.refused(*call, status, expects_hit);
    }
  });
  say(std::string("-> ") + pinrail_status_name(status));
}

void World::do_deregister() {
  if (held_.empty()) return;
  const size_t at = below(held_.size());
  const Held held = held_[at];
  if (is_closing(held.pool)) return;
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(at));
  in_call(Call(held.pool), true, "deregister " + text_of(*held.entry), [&](Call* call) {
    --held.entry->references;
    const pinrail_status_t status = pinrail_mpool_deregister(held.handle);
    if (status != PINRAIL_SUCCESS)
      model_.note(std::string("R10: a held handle: ") + pinrail_status_name(status) + " of " + text_of(*held.entry));
    model_.dropped(*call, held.entry);
  });
  if (!held.entry->at_device && held.entry->references == 0) spent_.push_back({held.handle, text_of(*held.entry)});
  if (spent_.size() > 8) spent_.erase(spent_.begin());
}

void World::do_find() {
  const size_t pool = draw_pool();
  if (is_closing(pool) || held_.size() >= kMaxHeld) return;
  const Request request = draw_request();
  const Range range = model_.rounded(pool, request.range);
  const std::string what =
      "find pool " + std::to_string(pool) + " " + text_of(request.range) + " access " + std::to_string(request.access);
  const bool expected = model_.has_hit(pool, range, request.access);
  in_call(Call(pool), true, what, [&](const Call* call) {
    pinrail_handle_t handle{};
    const pinrail_status_t status =
        pinrail_mpool_find(pools_[pool], pointer(request.range.base), request.range.length, request.access, &handle);
    // A register call under way may have its registration in the index before it returns it.
    bool is_new = false;
    if (status == PINRAIL_SUCCESS) {
      Entry* const entry = model_.found(pool, range, request.access, handle);
      if (entry != nullptr) held_.push_back({handle, entry, pool});
      is_new = entry != nullptr && !entry->returned;
    }
    if (!call->disturbed && !is_new && expected != (status == PINRAIL_SUCCESS))
      model_.note("find differs from the model");
  });
}

void World::do_event() {
  const size_t pool = one_in(3) ? draw_pool() : SIZE_MAX;
  Range range{kBase + below(kPages) * kPage + below(2) * below(kPage), 1 + below(3 * kPage)};
  // Often in the middle of what is being registered.
  for (const Call& call : model_.calls()) {
    if (call.registers && one_in(2)) range.base = call.range.base + below(call.range.length);
  }
  if (pool != SIZE_MAX && is_closing(pool)) return;
  say("event " + (pool == SIZE_MAX ? std::string("everywhere") : "pool " + std::to_string(pool)) + " " +
      text_of(range));
  if (pool == SIZE_MAX) {
    pinrail_monitor_report(pointer(range.base), range.length);
  } else if (pinrail_mpool_invalidate_range(pools_[pool], pointer(range.base), range.length) != PINRAIL_SUCCESS) {
    model_.note("invalidate_range failed");
  }
  model_.event(pool, range);
}

void World::do_evict() {
  const size_t pool = draw_pool();
  if (is_closing(pool)) return;
  in_call(Call(pool), true, "evict pool " + std::to_string(pool),
          [&](const Call* call) { model_.evicted(*call, pinrail_mpool_evict(pools_[pool])); });
}

void World::do_progress() {
  const size_t pool = draw_pool();
  if (is_closing(pool)) return;
  in_call(Call(pool), true, "progress pool " + std::to_string(pool), [&](const Call* call) {
    if (pinrail_mpool_progress(pools_[pool]) != PINRAIL_SUCCESS) model_.note("progress failed");
    model_.progressed(*call);
  });
}

// R2: what is refused for its arguments changes nothing.
void World::do_wrong_call() {
  const size_t pool = draw_pool();
  if (is_closing(pool)) return;
  struct Wrong {
    uintptr_t base;
    size_t length;
    uint32_t access, flags;
  };
  const Wrong kWrong[] = {{kBase, 0, 1, 0},           {0, kPage, 1, 0},     {UINTPTR_MAX - 10, 100, 1, 0},
                          {kBase, kPage, 16, 0},      {kBase, kPage, 1, 4}, {kBase, SIZE_MAX, 1, 0},
                          {kBase, kPage, 1u << 31, 0}};
  in_call(Call(pool), true, "wrong arguments", [&](const Call* call) {
    const Wrong& wrong = kWrong[below(std::size(kWrong))];
    pinrail_handle_t handle{nullptr, 7};
    const pinrail_status_t status =
        pinrail_mpool_register(pools_[pool], pointer(wrong.base), wrong.length, wrong.access, wrong.flags, &handle);
    if (status != PINRAIL_ERR_BAD_PARAM) model_.note("R2: wrong arguments are accepted");
    if (handle.reg != nullptr || handle.generation != 7) model_.note("C4: an output is written on failure");
    if (call->forgotten != 0) model_.note("R2: wrong arguments changed something");
  });
}

// A handle whose registration is gone, whatever its memory serves now.
void World::do_spent_handle() {
  if (spent_.empty()) return;
  const Spent spent = spent_[below(spent_.size())];
  on_some_thread(0, true, [&](bool) {
    say("deregister again " + spent.of);
    const pinrail_status_t status = pinrail_mpool_deregister(spent.handle);
    if (status != PINRAIL_ERR_BAD_PARAM)
      model_.note(std::string("R9: a spent handle: ") + pinrail_status_name(status) + " of " + spent.of);
  });
}

void World::do_trouble() {
  constexpr pinrail_status_t kStatuses[] = {PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_PERM,
                                            PINRAIL_ERR_NOT_SUPPORTED, PINRAIL_ERR_ERROR};
  const size_t pool = draw_pool();
  if (one_in(2)) {
    const pinrail_status_t status = kStatuses[below(std::size(kStatuses))];
    const int times = static_cast<int>(1 + below(3));
    devices_[pool]->fail(times, status);
    return say("pool " + std::to_string(pool) + ": the device says " + pinrail_status_name(status) + " " +
               std::to_string(times) + " times");
  }
  const size_t bytes = one_in(2) ? SIZE_MAX : (2 + below(16)) * kPage;
  const size_t count = one_in(2) ? SIZE_MAX : 1 + below(6);
  devices_[pool]->fake().set_capacity(bytes, count);
  say("pool " + std::to_string(pool) + ": the device has room for " + std::to_string(bytes) + " bytes, " +
      std::to_string(count) + " registrations");
}

void World::do_destroy() {
  if (!model_.calls().empty()) return;
  const size_t pool = draw_pool();
  const bool force = one_in(2);
  pinrail_status_t status = PINRAIL_ERR_ERROR;
  Call closing(pool);
  closing.destroys = true;
  closing.forces = force;
  const std::string what = "destroy pool " + std::to_string(pool) + (force ? " by force" : "");
  in_call(closing, false, what, [&](const Call* call) {
    status = pinrail_mpool_destroy(pools_[pool], force ? PINRAIL_DESTROY_FORCE : 0);
    model_.destroyed(*call, status);
  });
  say(std::string("-> ") + pinrail_status_name(status));
  if (status != PINRAIL_SUCCESS) return;
  fake::FakeRegistrar& fake = devices_[pool]->fake();
  if (fake.live_count() != 0) model_.note("R10: the device knows something of a destroyed pool");
  for (const std::string& violation : fake.violations()) model_.note("the registrar's contract: " + violation);
  make_pool(pool);
}

// F2: everything idle and dead goes.
void World::do_checkpoint() {
  if (!model_.calls().empty()) return;
  const size_t pool = draw_pool();
  in_call(Call(pool), false, "checkpoint pool " + std::to_string(pool), [&](const Call* call) {
    if (pinrail_mpool_ft_event(pools_[pool], PINRAIL_FT_CHECKPOINT) != PINRAIL_SUCCESS)
      model_.note("checkpoint failed");
    for (const Entry& entry : model_.entries()) {
      const bool left = entry.pool == pool && entry.at_device && entry.references == 0;
      if (left && !call->disturbed) model_.note("F2: a checkpoint left " + text_of(entry));
    }
  });
}

void World::do_turnover() {
  if (!model_.calls().empty()) return;
  say("a thread ends");
  workers_.replace(below(workers_.size()));
}

void World::act() {
  const uint64_t what = below(100);
  if (what < 38) return do_register();
  if (what < 64) return do_deregister();
  if (what < 71) return do_find();
  if (what < 79) return do_event();
  if (what < 84) return do_evict();
  if (what < 87) return do_progress();
  if (what < 89) return do_wrong_call();
  if (what < 92) return do_spent_handle();
  if (what < 96) return do_trouble();
  if (what < 98) return do_turnover();
  if (what < 99) return do_destroy();
  do_checkpoint();
}

void World::callback(bool forgets) {
  if (forgets) ++forgetting_;
  while (budget_ > 0 && one_in(2)) {
    --budget_;
    for (Call& call : model_.calls()) call.disturbed = true;
    act();
  }
  if (forgets) --forgetting_;
}

void World::step(uint64_t seed) {
  random_.seed(seed);
  budget_ = one_in(5) ? static_cast<int>(1 + below(3)) : 0;
  act();
  budget_ = 0;
  check();
}

// ---- what must hold
// --------------------------------------------------------------------------------------------------

void World::check_pool(size_t pool) {
  const std::string which = "pool " + std::to_string(pool) + ": ";
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pinrail_mpool_read_stats(pools_[pool], &stats) != PINRAIL_SUCCESS) return model_.note("no figures");
  const size_t cache = model_.shape(pool).cache;
  const Counts& counts = model_.counts(pool);
  if (pools_[pool]->ops->check(pools_[pool]->module) != PINRAIL_SUCCESS) model_.note(which + "an invariant is broken");
  if (stats.registered_bytes != model_.bytes_at_devices(cache)) model_.note(which + "registered_bytes is wrong");
  if (stats.registered_count != model_.count_at_devices(cache)) model_.note(which + "registered_count is wrong");
  if (stats.registered_bytes > model_.limits(pool).bytes) model_.note(which + "R8: above the limit");
  if (stats.indexed != model_.indexed(pool))
    model_.note(which + "indexed is " + std::to_string(stats.indexed) + ", the model has " +
                std::to_string(model_.indexed(pool)));
  if (stats.hits != counts.hits)
    model_.note(which + "hits are " + std::to_string(stats.hits) + ", the model has " + std::to_string(counts.hits));
  if (!miscounted_[pool] && stats.misses != counts.misses)
    model_.note(which + "misses are " + std::to_string(stats.misses) + ", the model has " +
                std::to_string(counts.misses));
  for (const std::string& violation : devices_[pool]->fake().violations())
    model_.note(which + "the registrar's contract: " + violation);
}

void World::check() {
  for (size_t pool = 0; pool < pools_.size() && model_.fault().empty(); ++pool) check_pool(pool);
  // Held ones are named by held_ still.
  model_.forget_the_gone();
}

void World::end() {
  while (!held_.empty() && model_.fault().empty()) {
    do_deregister();
    check();
  }
  for (size_t pool = 0; pool < pools_.size() && model_.fault().empty(); ++pool) {
    Call closing(pool);
    closing.destroys = true;
    in_call(closing, false, "destroy pool " + std::to_string(pool),
            [&](const Call* call) { model_.destroyed(*call, pinrail_mpool_destroy(pools_[pool], 0)); });
    if (devices_[pool]->fake().live_count() != 0) model_.note("R10: the device knows something of a destroyed pool");
  }
  if (model_.fault().empty() && pinrail_finalize() != PINRAIL_SUCCESS) model_.note("finalize failed");
}

}  // namespace pinrail::attack
