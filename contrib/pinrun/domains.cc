// SPDX-License-Identifier: BSD-3-Clause
// domains.cc - a small table under a lock, and in each thread the pools that it used last.
#include "contrib/pinrun/domains.h"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "contrib/pinrun/recorder.h"

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
  bool started = false;  // pinrail_init() was called in this process
  bool usable = false;   // and succeeded
  std::vector<std::unique_ptr<Pool>> pools;
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
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.settings_from = "pinrun";
  own->usable = pinrail_init(&init) == PINRAIL_SUCCESS;
  if (own->usable) Recorder::start();
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
  for (const auto& known : own->pools) {
    if (known->native == native && known->number == number) return known->pool;
  }
  auto added = std::make_unique<Pool>(Pool{native, number, registrar_of(native), nullptr});
  own->pools.reserve(own->pools.size() + 1);
  if (create_pool(added.get()) != PINRAIL_SUCCESS) added->pool = nullptr;
  own->pools.push_back(std::move(added));
  return own->pools.back()->pool;
}

pinrail_mpool_t* look_up(ibv_pd* native, unsigned number) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  if (!start_locked(&own)) return nullptr;
  // relaxed: forget_domain() does not run together with calls of the same domain
  const uint64_t before = forgotten.load(std::memory_order_relaxed);
  pinrail_mpool_t* pool = find_or_create_locked(&own, native, number);
  last_used[number] = {native, pool, before};
  return pool;
}

// Returns false if the pool is held.
bool destroy_locked(Table* own, size_t index, uint32_t flags) {
  pinrail_mpool_t* pool = own->pools[index]->pool;
  if (pool != nullptr && pinrail_mpool_destroy(pool, flags) != PINRAIL_SUCCESS) return false;
  own->pools.erase(own->pools.begin() + static_cast<std::ptrdiff_t>(index));
  forgotten.fetch_add(1, std::memory_order_relaxed);
  return true;
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
  for (const auto& known : own.pools) {
    if (known->pool != nullptr && pinrail_mpool_evict(known->pool) == PINRAIL_SUCCESS) return true;
  }
  return false;
}

// If one pool is held, those that went before it lost nothing but what they kept.
bool forget_domain(ibv_pd* domain) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (size_t i = own.pools.size(); i > 0; --i) {
    if (own.pools[i - 1]->native == domain && !destroy_locked(&own, i - 1, 0)) return false;
  }
  return true;
}

void abandon_domain(const ibv_pd* domain) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (size_t i = own.pools.size(); i > 0; --i) {
    if (own.pools[i - 1]->native == domain) destroy_locked(&own, i - 1, PINRAIL_DESTROY_FORCE);
  }
}

void forget_device(const ibv_context* device) {
  Table& own = the_table();
  const std::lock_guard<std::mutex> guard(own.mutex);
  for (size_t i = own.pools.size(); i > 0; --i) {
    if (own.pools[i - 1]->native->context == device) destroy_locked(&own, i - 1, PINRAIL_DESTROY_FORCE);
  }
}

}  // namespace pinrail::pinrun
