// SPDX-License-Identifier: BSD-3-Clause
// sanitized_pool.cc - a program of libpinrail that test/pinrun/sanitizers builds with each sanitizer. With an argument
// it makes a mistake that the sanitizer reports.
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "test/pinrun/mistake.h"
#include "test/support/host_table.h"

namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kThreads = 4, kTimes = 200;

std::atomic<uint32_t> next_key{1};

// Atomically, because ThreadSanitizer does not see what libpinrail orders: that another thread wrote keys to the same
// memory, for a registration that has ended.
pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t* reg) {
  const uint32_t key = next_key.fetch_add(1);
  __atomic_store_n(&reg->lkey, key, __ATOMIC_RELAXED);
  __atomic_store_n(&reg->rkey, key, __ATOMIC_RELAXED);
  return PINRAIL_SUCCESS;
}

void* map(void* where) {
  const int fixed = where != nullptr ? MAP_FIXED : 0;
  return mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
}

uint32_t register_once(pinrail_mpool_t* pool, void* memory, size_t length) {
  pinrail_handle_t handle{};
  if (pinrail_mpool_register(pool, memory, length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) != PINRAIL_SUCCESS) return 0;
  const uint32_t key = handle.reg->lkey;
  return pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS ? key : 0;
}

// Reads no key that another thread's registrar wrote, for the same reason.
bool register_and_deregister(pinrail_mpool_t* pool, void* memory, size_t length) {
  pinrail_handle_t handle{};
  return pinrail_mpool_register(pool, memory, length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) == PINRAIL_SUCCESS &&
         pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
}

void register_in_threads(pinrail_mpool_t* pool, void* memory) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([=] {
      for (int round = 0; round < kTimes; ++round)
        register_and_deregister(pool, memory, 4096 * (1 + static_cast<size_t>(round + i) % 8));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool use(pinrail_mpool_t* pool) {
  void* memory = map(nullptr);
  register_in_threads(pool, memory);
  const uint32_t key = register_once(pool, memory, kBytes);
  munmap(memory, kBytes);
  map(memory);
  const uint32_t next = register_once(pool, memory, kBytes);
  return key != 0 && next != 0 && key != next;
}

}  // namespace

int main(int argc, char**) {
  pinrail_registrar_t registrar = pinrail::test::host_table("counting");
  registrar.register_mem = register_mem;
  pinrail_registrar_choice_t choice{};
  choice.table = &registrar;
  pinrail_mpool_t* pool = nullptr;
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  if (pinrail_init(&init) != PINRAIL_SUCCESS) return 1;
  if (pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool) != PINRAIL_SUCCESS) return 2;
  if (!use(pool)) return 3;
  if (argc > 1) pinrail::test::make_mistake(argc - 1);
  if (pinrail_mpool_destroy(pool, 0) != PINRAIL_SUCCESS || pinrail_finalize() != PINRAIL_SUCCESS) return 4;
  std::puts("all was right");
  return 0;
}
