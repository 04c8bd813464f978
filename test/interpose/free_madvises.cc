// SPDX-License-Identifier: BSD-3-Clause
// To be preloaded: libc's allocator, but every free() gives the pages inside the block back to the kernel at once, as
// some allocators do now and then. What was registered there is stale from then on.
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);

#define PINRAIL_EXPORTED __attribute__((visibility("default")))

PINRAIL_EXPORTED void free(void* memory) {
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kNotes = 64;  // at a free block's start libc keeps its own
  if (memory == nullptr) return;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kNotes + kPage - 1) & ~(kPage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(memory) + malloc_usable_size(memory)) & ~(kPage - 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): inside the block
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  __libc_free(memory);
}

// Libc's own would free without us.
PINRAIL_EXPORTED void* realloc(void* memory, size_t size) {
  if (memory != nullptr && size == 0) {
    free(memory);
    return nullptr;
  }
  void* const other = __libc_malloc(size);
  if (memory == nullptr || other == nullptr) return other;
  std::memcpy(other, memory, std::min(size, malloc_usable_size(memory)));
  free(memory);
  return other;
}
}
