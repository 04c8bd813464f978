// SPDX-License-Identifier: BSD-3-Clause
// sanitized_verbs.cc - a program of libibverbs that test/pinrun/sanitizers builds with each sanitizer. With an argument
// it makes a mistake that the sanitizer reports.
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "test/pinrun/mistake.h"

namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kThreads = 4, kTimes = 200;

void* map(void* where) {
  const int fixed = where != nullptr ? MAP_FIXED : 0;
  return mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
}

// Returns the key that the registration had; 0 if it failed.
uint32_t register_once(ibv_pd* domain, void* memory, size_t length) {
  ibv_mr* region = ibv_reg_mr(domain, memory, length, IBV_ACCESS_LOCAL_WRITE);
  if (region == nullptr) return 0;
  const uint32_t key = region->lkey;
  return ibv_dereg_mr(region) == 0 ? key : 0;
}

void register_in_threads(ibv_pd* domain, void* memory) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([=] {
      for (int round = 0; round < kTimes; ++round)
        register_once(domain, memory, 4096 * (1 + static_cast<size_t>(round + i) % 8));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char**) {
  ibv_context device{};
  ibv_pd* domain = ibv_alloc_pd(&device);
  void* memory = map(nullptr);
  register_in_threads(domain, memory);
  const uint32_t key = register_once(domain, memory, kBytes);
  munmap(memory, kBytes);
  map(memory);
  const uint32_t next = register_once(domain, memory, kBytes);
  if (key == 0 || next == 0 || key == next || ibv_dealloc_pd(domain) != 0) return 1;
  if (argc > 1) pinrail::test::make_mistake(argc - 1);
  std::puts("all was right");
  return 0;
}
