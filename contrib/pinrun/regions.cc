// SPDX-License-Identifier: BSD-3-Clause
// regions.cc - a stack of free regions above an area that grows towards its end.
#include "contrib/pinrun/regions.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>

namespace pinrail::pinrun {
namespace {

constexpr size_t kMost = size_t{1} << 20;

// Set once; NULL if there is no address space for it.
Region* area = nullptr;
pthread_once_t mapped = PTHREAD_ONCE_INIT;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Region* first_free = nullptr;
size_t used = 0;

void lock() { pthread_mutex_lock(&mutex); }
void unlock() { pthread_mutex_unlock(&mutex); }

void map_area() {
  void* memory =
      mmap(nullptr, kMost * sizeof(Region), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  area = static_cast<Region*>(memory);
  // A fork waits until no thread changes the stack.
  pthread_atfork(lock, unlock, unlock);
}

Region* take_locked() {
  Region* region = first_free;
  if (region != nullptr) {
    first_free = region->next_free;
    return region;
  }
  return used < kMost ? &area[used++] : nullptr;
}

}  // namespace

Region* new_region() {
  pthread_once(&mapped, map_area);
  if (area == nullptr) return nullptr;
  lock();
  Region* region = take_locked();
  unlock();
  if (region != nullptr) std::memset(region, 0, sizeof(*region));
  return region;
}

void free_region(Region* region) {
  lock();
  region->next_free = first_free;
  first_free = region;
  unlock();
}

Region* region_of(ibv_mr* mr) {
  const auto start = reinterpret_cast<uintptr_t>(area), address = reinterpret_cast<uintptr_t>(mr);
  if (start == 0 || address < start || address >= start + kMost * sizeof(Region)) return nullptr;
  return reinterpret_cast<Region*>(mr);
}

}  // namespace pinrail::pinrun
