// SPDX-License-Identifier: BSD-3-Clause
// sanitized.cc - a program of libibverbs, or with PINRAIL_TEST_POOL of libpinrail, that test/pinrun_sanitizers_test.sh
// builds with each sanitizer. With an argument it makes a mistake that the sanitizer reports.
#ifdef PINRAIL_TEST_POOL
#include <pinrail/pinrail.h>
#else
#include <infiniband/verbs.h>
#endif
#include <sys/mman.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#ifdef PINRAIL_TEST_POOL
#include "test/support/host_table.h"
#endif

namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kThreads = 4, kTimes = 200;

#ifdef PINRAIL_TEST_POOL
std::atomic<uint32_t> next_key{1};
pinrail_mpool_t* pool = nullptr;

// Atomically, because ThreadSanitizer does not see what libpinrail orders: that another thread wrote keys to the same
// memory, for a registration that has ended.
pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t* reg) {
  const uint32_t key = next_key.fetch_add(1);
  __atomic_store_n(&reg->lkey, key, __ATOMIC_RELAXED);
  __atomic_store_n(&reg->rkey, key, __ATOMIC_RELAXED);
  return PINRAIL_SUCCESS;
}

bool open() {
  pinrail_registrar_t registrar = pinrail::test::host_table("counting");
  registrar.register_mem = register_mem;
  pinrail_registrar_choice_t choice{};
  choice.table = &registrar;
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  return pinrail_init(&init) == PINRAIL_SUCCESS &&
         pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool) == PINRAIL_SUCCESS;
}
bool close() { return pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && pinrail_finalize() == PINRAIL_SUCCESS; }

// Returns the key that the registration had; 0 if it failed. key_is_read: not beside other threads, for the same
// reason.
uint32_t register_once(void* memory, size_t length, bool key_is_read) {
  pinrail_handle_t handle{};
  if (pinrail_mpool_register(pool, memory, length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) != PINRAIL_SUCCESS) return 0;
  const uint32_t key = key_is_read ? handle.reg->lkey : 1;
  return pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS ? key : 0;
}
#else
ibv_context device{};
ibv_pd* domain = nullptr;

bool open() { return (domain = ibv_alloc_pd(&device)) != nullptr; }
bool close() { return ibv_dealloc_pd(domain) == 0; }

uint32_t register_once(void* memory, size_t length, bool) {
  ibv_mr* region = ibv_reg_mr(domain, memory, length, IBV_ACCESS_LOCAL_WRITE);
  if (region == nullptr) return 0;
  const uint32_t key = region->lkey;
  return ibv_dereg_mr(region) == 0 ? key : 0;
}
#endif

void* map(void* where) {
  const int fixed = where != nullptr ? MAP_FIXED : 0;
  return mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
}

void register_in_threads(void* memory) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([=] {
      for (int round = 0; round < kTimes; ++round)
        register_once(memory, 4096 * (1 + static_cast<size_t>(round + i) % 8), false);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// one: 1 at least.
void make_mistake(int one) {
  volatile int sum = INT_MAX;
  sum = sum + one;  // undefined: signed overflow
  auto* bytes = static_cast<volatile char*>(std::malloc(16));
  if (bytes == nullptr) return;
  // thread: data races. A race of two writes at the same moment may go unseen, so there is one at each byte.
  std::thread other([bytes] {
    for (int i = 0; i < 16; ++i) bytes[i] = 1;
  });
  for (int i = 15; i >= 0; --i) bytes[i] = 2;
  other.join();
#ifdef PINRAIL_TEST_ADDRESS
  bytes[15 + one] = 3;  // address: a write behind the block
#endif
  std::free(const_cast<char*>(bytes));
}

}  // namespace

int main(int argc, char**) {
  if (!open()) return 1;
  void* memory = map(nullptr);
  register_in_threads(memory);
  const uint32_t key = register_once(memory, kBytes, true);
  munmap(memory, kBytes);
  map(memory);
  const uint32_t next = register_once(memory, kBytes, true);
  if (key == 0 || next == 0 || key == next) return 2;
  if (argc > 1) make_mistake(argc - 1);
  if (!close()) return 3;
  std::puts("all was right");
  return 0;
}
