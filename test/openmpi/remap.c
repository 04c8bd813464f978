// SPDX-License-Identifier: BSD-3-Clause
// Memory that goes away between two transfers and comes back at the same address with other pages: what a cache did
// not hear of would be sent from, or received into, pages that are no longer mapped. Each mapping is used twice.
// remap ROUNDS            by mmap
// remap 0 ROUNDS          by malloc and free, in sizes with and without a mapping of their own
#include <stdlib.h>
#include <sys/mman.h>

#include "test/openmpi/common.h"

enum { kBytes = 256 * 1024 };

static void* fresh(void* at) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at != NULL ? MAP_FIXED_NOREPLACE : 0);
  void* const got = mmap(at, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (got == MAP_FAILED || (at != NULL && got != at)) MPI_Abort(MPI_COMM_WORLD, 2);
  return got;
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 100);
  char* const exposed = buffer_of(kBytes);
  void* out = fresh(NULL);
  void* in = fresh(NULL);
  MPI_Win window;
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  for (int round = 0; round < rounds; ++round) {
    exchange(window, exposed, out, in, kBytes, (uint64_t)round * 1000 + 1);
    exchange(window, exposed, out, in, kBytes, (uint64_t)round * 1000 + 501);
    munmap(out, kBytes);
    munmap(in, kBytes);
    out = fresh(out);
    in = fresh(in);
  }
  for (int round = 0; round < argument(argc, argv, 2, 0); ++round) {
    const size_t bytes = (size_t)(8 * 1024) << (round % 6);
    void* const a = malloc(bytes);
    void* const b = malloc(bytes);
    exchange(window, exposed, a, b, bytes, (uint64_t)round * 1000 + 251);
    free(a);
    free(b);
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  return verdict("remap");
}
