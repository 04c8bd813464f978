// SPDX-License-Identifier: BSD-3-Clause
// domains.cc - a small table under a lock, and in each thread the pools that it used last.
#include "contrib/pinrun/domains.h"

#include <pthread.h>

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

}  // namespace pinrail::pinrun
