// SPDX-License-Identifier: BSD-3-Clause
// domains.cc - a small table under a lock, and in each thread the pools that it used last.
#include "pinrun.h"

#include <pthread.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <new>

namespace pinrail::pinrun {
namespace {

struct Pool {
  ibv_pd* native;
  unsigned number;
  pinrail_registrar_t registrar;
  pinrail_mpool_t* pool;
};

struct Table {
  std::mutex mutex;
  bool started = false;   // pinrail_init() was called in this process
  bool usable = false;    // and succeeded
  std::list<Pool> pools;  // they stay where they are: a pool keeps the address of its registrar
};

// The memory of the table is never freed: threads may use it while the process exits.
alignas(Table) char memory[sizeof(Table)];
Table* table = nullptr;
pthread_once_t made = PTHREAD_ONCE_INIT;

// Counts the domains that were forgotten: what a thread remembers is valid while the number stays the same.
std::atomic<uint64_t> forgotten{0};

struct LastUsed {
  ibv_pd* native;
  pinrail_mpool_t* pool;
  uint64_t forgotten;
};
thread_local LastUsed last_used[kPools];

// The parent's threads may have held the mutex, and its pools are inert in a child.
void make_table() { table = new (memory) Table; }
void fork_child() {
  make_table();
  forgotten.fetch_add(1, std::memory_order_relaxed);
}
void make_table_once() {
  make_table();
  pthread_atfork(nullptr, nullptr, fork_child);
}
Table& the_table() {
  pthread_once(&made, make_table_once);
  return *table;
}

bool start_locked(Table* own) {
  if (own->started) return own->usable;
  own->started = true;
  // A region has the rights and the pages that the program asked for, also with --share. The program knows nothing of
  // pools, so no message explains why one has no room.
  static constexpr pinrail_setting_t kDefaults[] = {
      {"mpool_grdma_rights", "asked"}, {"mpool_grdma_extent", "0"}, {"mpool_base_events", "0"}};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.defaults = kDefaults;
  init.default_count = std::size(kDefaults);
  init.settings_from = "pinrun";
  own->usable = pinrail_init(&init) == PINRAIL_SUCCESS;
  return own->usable;
}

pinrail_status_t create_pool(Pool* own) {
  pinrail_mpool_options_t choices = PINRAIL_MPOOL_OPTIONS_INIT;
  if (!options().share) choices.flags = PINRAIL_POOL_EXACT;
  if (options().release) choices.leave_pinned = 0;
  pinrail_registrar_choice_t registrar{};
  registrar.table = &own->registrar;
  return pinrail_mpool_create("grdma", &registrar, "pinrun", &choices, &own->pool);
}

// A pool that could not be created stays in the table without one, so that the message is printed once.
pinrail_mpool_t* find_or_create_locked(Table* own, ibv_pd* native, unsigned number) {
  for (const Pool& known : own->pools) {
    if (known.native == native && known.number == number) return known.pool;
  }
  own->pools.push_back(Pool{native, number, registrar_of(native), nullptr});
  if (create_pool(&own->pools.back()) != PINRAIL_SUCCESS) own->pools.back().pool = nullptr;
  return own->pools.back().pool;
}

pinrail_mpool_t* look_up(ibv_pd* native, unsigned number) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  if (!start_locked(&own)) return nullptr;
  // relaxed: end_domain() does not run together with calls of the same domain
  const uint64_t before = forgotten.load(std::memory_order_relaxed);
  pinrail_mpool_t* pool = find_or_create_locked(&own, native, number);
  last_used[number] = {native, pool, before};
  return pool;
}

// Takes out of the table the pools that the function chooses. A new domain at the address of an old one finds none.
template <typename Chosen>
std::list<Pool> take_out(Chosen chosen) {
  std::list<Pool> taken;
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (auto next = own.pools.begin(); next != own.pools.end();) {
    const auto pool = next++;
    if (chosen(*pool)) taken.splice(taken.end(), own.pools, pool);
  }
  if (!taken.empty()) forgotten.fetch_add(1, std::memory_order_relaxed);
  return taken;
}

void put_back(std::list<Pool>* taken) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  own.pools.splice(own.pools.end(), *taken);
}

void destroy(const std::list<Pool>& taken) {
  for (const Pool& each : taken) {
    if (each.pool != nullptr) static_cast<void>(pinrail_mpool_destroy(each.pool, PINRAIL_DESTROY_FORCE));
  }
}

}  // namespace

pinrail_mpool_t* pool_of(ibv_pd* domain, unsigned number) {
  const LastUsed& last = last_used[number];
  if (last.native == domain && last.forgotten == forgotten.load(std::memory_order_relaxed)) return last.pool;
  try {
    return look_up(domain, number);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool make_room() {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (const Pool& known : own.pools) {
    if (known.pool != nullptr && pinrail_mpool_evict(known.pool) == PINRAIL_SUCCESS) return true;
  }
  // Waits for what other threads are giving back now: nothing else is idle.
  for (const Pool& known : own.pools) {
    if (known.pool != nullptr) static_cast<void>(pinrail_mpool_ft_event(known.pool, PINRAIL_FT_CHECKPOINT));
  }
  return false;
}

// Whether the domain is busy is for libibverbs to say: the device has a region for each that the program holds.
int end_domain(ibv_pd* domain, int (*end)(ibv_pd*)) {
  std::list<Pool> taken = take_out([domain](const Pool& pool) { return pool.native == domain; });
  for (const Pool& each : taken) {
    if (each.pool != nullptr) static_cast<void>(pinrail_mpool_ft_event(each.pool, PINRAIL_FT_CHECKPOINT));
  }
  const int error = end(domain);
  if (error != 0)
    put_back(&taken);
  else
    destroy(taken);
  return error;
}

void abandon_domain(const ibv_pd* domain) {
  destroy(take_out([domain](const Pool& pool) { return pool.native == domain; }));
}

void forget_device(const ibv_context* device) {
  destroy(take_out([device](const Pool& pool) { return pool.native->context == device; }));
}

// Regions are told from libibverbs' own by a mark that contains their address.

namespace {

// libibverbs keeps a type of 0 to 3 in the first four bytes. A mark is none of these: addresses end in four zero bits.
constexpr uint64_t kExists = 0x70696e72756e0009, kGone = 0x70696e72756e000b;
constexpr size_t kMarkOffset = sizeof(ibv_mr);
static_assert(offsetof(Region, mark) == kMarkOffset);

uint64_t mark_for(const ibv_mr* mr, uint64_t state) { return reinterpret_cast<uintptr_t>(mr) ^ state; }

bool has_mark(const ibv_mr* mr, uint64_t state) {
  uint64_t mark = 0;
  if (mr != nullptr) std::memcpy(&mark, reinterpret_cast<const char*>(mr) + kMarkOffset, sizeof(mark));
  return mark == mark_for(mr, state);
}

}  // namespace

Region* new_region() {
  auto* region = static_cast<Region*>(std::calloc(1, sizeof(Region)));
  if (region != nullptr) region->mark = mark_for(&region->mr, kExists);
  return region;
}

void free_region(Region* region) { std::free(region); }

Region* region_of(ibv_mr* mr) { return has_mark(mr, kExists) ? reinterpret_cast<Region*>(mr) : nullptr; }

void mark_as_gone(Region* region) { region->mark = mark_for(&region->mr, kGone); }

bool is_gone(const ibv_mr* mr) { return has_mark(mr, kGone); }

// Takes the device's region from its pool, or makes another one if the program has more regions of it.

namespace {

// Returns the device's region if no other region of the program uses it. The pool forgets it, and what else it keeps of
// that range.
ibv_mr* take_from_pool(const pinrail_handle_t& handle) {
  pinrail_registration_t* reg = handle.reg;
  ibv_mr* taken = take_device_region(reg);
  if (taken == nullptr) return nullptr;
  static_cast<void>(pinrail_mpool_invalidate_range(reg->pool, reg->base, reg->length));
  return taken;
}

// Returns a region of the device with the same range and access, whose keys are other ones. The dmabuf of a region of
// GPU memory is not known any more.
ibv_mr* make_another(const Region& region) {
  if (!is_dmabuf(region.handle.reg))
    return register_real(region.mr.pd, region.mr.addr, region.mr.length, region.iova, region.access);
  errno = EOPNOTSUPP;
  return nullptr;
}

void give_up_registration(Region* region) {
  end_use(region->handle.reg);
  static_cast<void>(pinrail_mpool_deregister(region->handle));
  region->handle.reg = nullptr;
}

int change_real(ibv_mr* real, const Change& to) {
  return with_room([&] { return real_verbs().rereg_mr(real, to.flags, to.domain, to.addr, to.length, to.access); },
                   [](int status) { return status == 0; });
}

void show(const ibv_mr& real, Region* region) {
  region->mr.pd = real.pd;
  region->mr.handle = real.handle;
  region->mr.lkey = real.lkey;
  region->mr.rkey = real.rkey;
}

// With --share the device's region may be larger, so that its address and length are not the program's.
int change_own(Region* region, const Change& change) {
  const int status = change_real(region->real, change);
  if (status != 0) return status;
  show(*region->real, region);
  if ((change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0) return 0;
  region->mr.addr = change.addr;
  region->mr.length = change.length;
  return 0;
}

// If the change fails, the program's region stays as it is.
int change_another(Region* region, const Change& change) {
  Region next = *region;
  next.real = make_another(*region);
  if (next.real == nullptr) return IBV_REREG_MR_ERR_CMD;
  const int status = change_own(&next, change), error = errno;
  if (status != 0) {
    real_verbs().dereg_mr(next.real);
    errno = error;
    return status;
  }
  give_up_registration(region);
  next.handle.reg = nullptr;
  *region = next;
  return 0;
}

}  // namespace

int reregister(Region* region, const Change& change) {
  if (region->real == nullptr) {
    ibv_mr* taken = take_from_pool(region->handle);
    if (taken == nullptr) return change_another(region, change);
    region->real = taken;
    give_up_registration(region);
  }
  return change_own(region, change);
}

}  // namespace pinrail::pinrun
