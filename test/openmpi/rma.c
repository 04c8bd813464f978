// SPDX-License-Identifier: BSD-3-Clause
// One-sided: what is put arrives, what is got is what is there, sums and exchanges are exact. Every buffer is used
// many times, so that a cache has something to find.
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"

enum { kBuffers = 4, kLargest = 1 << 20, kAdders = 512 };

static uint64_t seed_of(int of_rank, int round, int buffer) {
  return ((uint64_t)(of_rank + 1) << 20) + (uint64_t)round * kBuffers + (uint64_t)buffer;
}

// Into the next one's window, and back out of it.
static void put_and_get(MPI_Win window, const char* exposed, void* const* buffers, size_t bytes, int round) {
  char* const back = buffers[kBuffers];
  for (int i = 0; i < kBuffers; ++i) {
    fill(buffers[i], bytes, seed_of(rank, round, i));
    MPI_Put(buffers[i], (int)bytes, MPI_BYTE, next_rank(), i * kLargest, (int)bytes, MPI_BYTE, window);
  }
  MPI_Win_flush_all(window);
  for (int i = 0; i < kBuffers; ++i) {
    memset(back, 0, bytes);
    MPI_Get(back, (int)bytes, MPI_BYTE, next_rank(), i * kLargest, (int)bytes, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
    check(back, bytes, seed_of(rank, round, i), "got back");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  for (int i = 0; i < kBuffers; ++i) {
    check(exposed + (size_t)i * kLargest, bytes, seed_of(previous_rank(), round, i), "was put");
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// Each rank adds to the first rank's window, and counts on its first word.
static void accumulate(MPI_Win window, const uint64_t* exposed, uint64_t* buffer) {
  uint64_t before, one = 1;
  for (int i = 0; i < kAdders; ++i) buffer[i] = (uint64_t)(rank + 1) * (uint64_t)i;
  MPI_Accumulate(buffer, kAdders, MPI_UINT64_T, 0, 0, kAdders, MPI_UINT64_T, MPI_SUM, window);
  MPI_Win_flush(0, window);
  MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, kAdders * 8, MPI_SUM, window);
  MPI_Win_flush(0, window);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  if (rank != 0) return;
  const uint64_t sum_of_ranks = (uint64_t)ranks * (uint64_t)(ranks + 1) / 2;
  for (int i = 0; i < kAdders; ++i) check_value(exposed[i], sum_of_ranks * (uint64_t)i, "sum");
  check_value(exposed[kAdders], (uint64_t)ranks, "count");
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 20);
  const size_t window_bytes = (size_t)kBuffers * kLargest;
  void* const exposed = buffer_of(window_bytes);
  void* buffers[kBuffers + 1];
  MPI_Win window;
  memset(exposed, 0, window_bytes);
  for (int i = 0; i <= kBuffers; ++i) buffers[i] = buffer_of(kLargest);
  MPI_Win_create(exposed, (MPI_Aint)window_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  for (int round = 0; round < rounds; ++round) {
    put_and_get(window, exposed, buffers, round % 2 == 0 ? 64 * 1024 : kLargest, round);
  }
  memset(exposed, 0, kAdders * 8 + 8);
  MPI_Win_sync(window);
  MPI_Barrier(MPI_COMM_WORLD);
  accumulate(window, exposed, buffers[0]);
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  for (int i = 0; i <= kBuffers; ++i) free(buffers[i]);
  free(exposed);
  return verdict("rma");
}
