// SPDX-License-Identifier: BSD-3-Clause
#include "test/openmpi/common.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kPage = 4096, kShown = 5, kHangsAfter_s = 300 };

int rank, ranks;
static atomic_ullong checks, wrong;

void alive(void) { alarm(kHangsAfter_s); }

void begin(int* argc, char*** argv, int level) {
  int given;
  alive();
  MPI_Init_thread(argc, argv, level, &given);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (given >= level) return;
  fprintf(stderr, "this MPI does not give the thread level that the program needs\n");
  MPI_Abort(MPI_COMM_WORLD, 2);
}

int verdict(const char* name) {
  unsigned long long mine[2] = {checks, wrong}, all[2];
  MPI_Allreduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%s %s: %llu checks, %llu wrong\n", all[1] == 0 ? "ok" : "WRONG", name, all[0], all[1]);
  fflush(stdout);
  MPI_Finalize();
  return all[0] == 0 || all[1] != 0;
}

void fill(void* buffer, size_t bytes, uint64_t seed) {
  uint64_t* const words = buffer;
  for (size_t i = 0; i < bytes / 8; ++i) words[i] = (seed << 32) + i;
}

static void complain(const char* what, size_t at, uint64_t seen, uint64_t expected) {
  if (atomic_fetch_add(&wrong, 1) >= kShown) return;
  fprintf(stderr, "rank %d: %s: word %zu is %#" PRIx64 ", expected %#" PRIx64 "\n", rank, what, at, seen, expected);
}

void check(const void* buffer, size_t bytes, uint64_t seed, const char* what) {
  const uint64_t* const words = buffer;
  alive();
  atomic_fetch_add(&checks, 1);
  for (size_t i = 0; i < bytes / 8; ++i) {
    if (words[i] != (seed << 32) + i) {
      complain(what, i, words[i], (seed << 32) + i);
      return;
    }
  }
}

void check_value(uint64_t seen, uint64_t expected, const char* what) {
  alive();
  atomic_fetch_add(&checks, 1);
  if (seen != expected) complain(what, 0, seen, expected);
}

void* buffer_of(size_t bytes) {
  void* const buffer = aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (buffer != NULL) return buffer;
  fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
  MPI_Abort(MPI_COMM_WORLD, 2);
  abort();
}

MPI_Win open_window(void* memory, size_t bytes) {
  MPI_Win window;
  MPI_Win_create(memory, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  return window;
}

void close_window(MPI_Win* window) {
  MPI_Win_unlock_all(*window);
  MPI_Win_free(window);
}

void exchange(MPI_Win window, const char* exposed, void* out, void* in, size_t bytes, uint64_t seed) {
  fill(out, bytes, seed + (uint64_t)rank);
  MPI_Put(out, (int)bytes, MPI_BYTE, next_rank(), 0, (int)bytes, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  memset(in, 0, bytes);
  MPI_Get(in, (int)bytes, MPI_BYTE, next_rank(), 0, (int)bytes, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  check(in, bytes, seed + (uint64_t)rank, "got back from the next one");
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  check(exposed, bytes, seed + (uint64_t)previous_rank(), "put by the previous one");
  MPI_Barrier(MPI_COMM_WORLD);
}

double now_seconds(void) { return MPI_Wtime(); }
int next_rank(void) { return (rank + 1) % ranks; }
int previous_rank(void) { return (rank + ranks - 1) % ranks; }

int argument(int argc, char** argv, int at, int fallback) { return argc > at ? atoi(argv[at]) : fallback; }
