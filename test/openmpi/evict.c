// SPDX-License-Identifier: BSD-3-Clause
// More buffers than the device may hold registered at once: each is put from and got back into, all of them twice.
// evict [BUFFERS]
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"

enum { kBytes = 256 * 1024 };

static void put_and_get(MPI_Win window, char* buffer, uint64_t seed) {
  fill(buffer, kBytes, seed);
  MPI_Put(buffer, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  memset(buffer, 0, kBytes);
  MPI_Get(buffer, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  check(buffer, kBytes, seed, "got back into one of many");
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int buffers = argument(argc, argv, 1, 128);
  char* const exposed = buffer_of(kBytes);
  char* const memory = buffer_of((size_t)buffers * kBytes * 2);  // a gap behind each
  MPI_Win window;
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  for (int i = 0; i < 2 * buffers; ++i) {
    put_and_get(window, memory + (size_t)(i % buffers) * kBytes * 2, (uint64_t)(rank + 1) * 10000 + (uint64_t)i);
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  free(memory);
  free(exposed);
  return verdict("evict");
}
