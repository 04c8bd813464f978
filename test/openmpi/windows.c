// SPDX-License-Identifier: BSD-3-Clause
// Windows that come and go: created over the same memory, used once, freed. windows [TIMES]
#include <stdlib.h>

#include "test/openmpi/common.h"

enum { kBytes = 32 * 1024 };

static void one_window(char* exposed, char* out, uint64_t seed) {
  MPI_Win window;
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  fill(out, kBytes, seed + (uint64_t)rank);
  MPI_Win_lock(MPI_LOCK_SHARED, next_rank(), 0, window);
  MPI_Put(out, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
  MPI_Win_unlock(next_rank(), window);
  MPI_Win_free(&window);
  check(exposed, kBytes, seed + (uint64_t)previous_rank(), "put into a window that was freed since");
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int times = argument(argc, argv, 1, 1000);
  char* const exposed = buffer_of(kBytes);
  char* const out = buffer_of(kBytes);
  for (int i = 0; i < times; ++i) one_window(exposed, out, (uint64_t)i * 1000);
  free(exposed);
  free(out);
  return verdict("windows");
}
