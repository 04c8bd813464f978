// SPDX-License-Identifier: BSD-3-Clause
// MPI_THREAD_MULTIPLE: four threads put and get at once, from buffers that they allocate and free meanwhile, and from
// one that all share. Each has a window of its own.
//
// What has arrived is known by requests, MPI_Rput and MPI_Rget, for MPI_Win_flush does not tell where threads share the
// transport: btl ofi of Open MPI 4.1.4 counts an operation after libfabric has taken it. If another thread reads its
// completion before that, the count lacks one meanwhile, and a flush then returns although an operation of its thread
// is under way. So a get that was only flushed sometimes found the old contents of the buffer, with any registration
// cache, and the data some milliseconds later. A request is completed by its own operation.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"

enum { kThreads = 4, kBytes = 128 * 1024 };

static int rounds;
static MPI_Win windows[kThreads];
static char* shared;  // all threads put from it

// MPI needs the flush for what was put to be there; with Open MPI 4.1.4 it is there after the wait.
static void put(const char* from, MPI_Win window) {
  MPI_Request request;
  MPI_Rput(from, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Win_flush(next_rank(), window);
}

// Cleared before, so that a wrong word tells what happened: 0, nothing arrived; anything else, another buffer's data.
static void get(char* to, MPI_Win window) {
  MPI_Request request;
  memset(to, 0, kBytes);
  MPI_Rget(to, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void one_round(int thread, int round) {
  const MPI_Win window = windows[thread];
  const uint64_t seed = ((uint64_t)(rank * kThreads + thread + 1) << 16) + (uint64_t)round;
  char* const out = malloc(kBytes);
  char* const in = malloc(kBytes);
  fill(out, kBytes, seed);
  put(out, window);
  get(in, window);
  check(in, kBytes, seed, "got back by a thread");
  put(shared, window);
  get(in, window);
  check(in, kBytes, 7, "the shared buffer, got back by a thread");
  free(out);
  free(in);
}

static void* work(void* thread) {
  for (int round = 0; round < rounds; ++round) one_round((int)(intptr_t)thread, round);
  return NULL;
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_MULTIPLE);
  rounds = argument(argc, argv, 1, 50);
  char* const exposed = buffer_of((size_t)kThreads * kBytes);
  pthread_t threads[kThreads];
  shared = buffer_of(kBytes);
  fill(shared, kBytes, 7);
  for (int i = 0; i < kThreads; ++i) {
    MPI_Win_create(exposed + (size_t)i * kBytes, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &windows[i]);
    MPI_Win_lock_all(0, windows[i]);
  }
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, (void*)(intptr_t)i);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < kThreads; ++i) {
    MPI_Win_unlock_all(windows[i]);
    MPI_Win_free(&windows[i]);
  }
  free(shared);
  free(exposed);
  return verdict("threads");
}
