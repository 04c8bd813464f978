// SPDX-License-Identifier: BSD-3-Clause
// transfers.c - jobs of jobs.c that transfer: one-sided and two-sided, from memory that stays, goes, is evicted, or is
// of threads.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "test/openmpi/common.h"

// One-sided: what is put arrives, what is got is what is there, sums and exchanges are exact. Every buffer is used
// many times, so that a cache has something to find.
enum { kBuffers = 4, kLargest = 1 << 20, kAdders = 512 };

static uint64_t seed_of(int of_rank, int round, int buffer) {
  return ((uint64_t)(of_rank + 1) << 20) + (uint64_t)round * kBuffers + (uint64_t)buffer;
}

// Into the next one's window, and back out of it.
static void put_and_get_all(MPI_Win window, const char* exposed, void* const* buffers, size_t bytes, int round) {
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

int rma_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 20);
  const size_t window_bytes = (size_t)kBuffers * kLargest;
  void* const exposed = buffer_of(window_bytes);
  void* buffers[kBuffers + 1];
  memset(exposed, 0, window_bytes);
  for (int i = 0; i <= kBuffers; ++i) buffers[i] = buffer_of(kLargest);
  MPI_Win window = open_window(exposed, window_bytes);
  for (int round = 0; round < rounds; ++round) {
    put_and_get_all(window, exposed, buffers, round % 2 == 0 ? 64 * 1024 : kLargest, round);
  }
  memset(exposed, 0, kAdders * 8 + 8);
  MPI_Win_sync(window);
  MPI_Barrier(MPI_COMM_WORLD);
  accumulate(window, exposed, buffers[0]);
  close_window(&window);
  for (int i = 0; i <= kBuffers; ++i) free(buffers[i]);
  free(exposed);
  return verdict("rma");
}

// Two-sided: messages of 64 KiB to 16 MiB around a ring, each size several times from the same buffers.
enum { kTimes = 4 };

static void around(char* out, char* in, size_t bytes, int turn) {
  MPI_Request requests[2];
  const uint64_t seed = (uint64_t)turn * 1000;
  fill(out, bytes, seed + (uint64_t)rank + 1);
  memset(in, 0, bytes);
  MPI_Irecv(in, (int)bytes, MPI_BYTE, previous_rank(), turn, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(out, (int)bytes, MPI_BYTE, next_rank(), turn, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  check(in, bytes, seed + (uint64_t)previous_rank() + 1, "received");
}

int two_sided_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const size_t smallest = 64 * 1024;
  const size_t largest = (size_t)argument(argc, argv, 1, 16) << 20;
  char* const out = buffer_of(largest);
  char* const in = buffer_of(largest);
  int turn = 0;
  for (size_t bytes = smallest; bytes <= largest; bytes *= 2) {
    for (int i = 0; i < kTimes; ++i) around(out, in, bytes, ++turn);
  }
  free(out);
  free(in);
  return verdict("two_sided");
}

// Memory that goes away between two transfers and comes back at the same address with other pages: what a cache did
// not hear of would be sent from, or received into, pages that are no longer mapped. Each mapping is used twice.
// remap ROUNDS            by mmap
// remap 0 ROUNDS          by malloc and free, in sizes with and without a mapping of their own
enum { kRemapped = 256 * 1024 };

static void* fresh(void* at) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at != NULL ? MAP_FIXED_NOREPLACE : 0);
  void* const got = mmap(at, kRemapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (got == MAP_FAILED || (at != NULL && got != at)) MPI_Abort(MPI_COMM_WORLD, 2);
  return got;
}

int remap_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 100);
  char* const exposed = buffer_of(kRemapped);
  void* out = fresh(NULL);
  void* in = fresh(NULL);
  MPI_Win window = open_window(exposed, kRemapped);
  for (int round = 0; round < rounds; ++round) {
    exchange(window, exposed, out, in, kRemapped, (uint64_t)round * 1000 + 1);
    exchange(window, exposed, out, in, kRemapped, (uint64_t)round * 1000 + 501);
    munmap(out, kRemapped);
    munmap(in, kRemapped);
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
  close_window(&window);
  return verdict("remap");
}

// Windows that come and go: created over the same memory, used once, freed. windows [TIMES]
enum { kWindow = 32 * 1024 };

static void one_window(char* exposed, char* out, uint64_t seed) {
  MPI_Win window;
  MPI_Win_create(exposed, kWindow, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  fill(out, kWindow, seed + (uint64_t)rank);
  MPI_Win_lock(MPI_LOCK_SHARED, next_rank(), 0, window);
  MPI_Put(out, kWindow, MPI_BYTE, next_rank(), 0, kWindow, MPI_BYTE, window);
  MPI_Win_unlock(next_rank(), window);
  MPI_Win_free(&window);
  check(exposed, kWindow, seed + (uint64_t)previous_rank(), "put into a window that was freed since");
}

int windows_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int times = argument(argc, argv, 1, 1000);
  char* const exposed = buffer_of(kWindow);
  char* const out = buffer_of(kWindow);
  for (int i = 0; i < times; ++i) one_window(exposed, out, (uint64_t)i * 1000);
  free(exposed);
  free(out);
  return verdict("windows");
}

// More buffers than the device may hold registered at once: each is put from and got back into, all of them twice.
// evict [BUFFERS]
enum { kEvicted = 256 * 1024 };

static void put_and_get(MPI_Win window, char* buffer, uint64_t seed) {
  fill(buffer, kEvicted, seed);
  MPI_Put(buffer, kEvicted, MPI_BYTE, next_rank(), 0, kEvicted, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  memset(buffer, 0, kEvicted);
  MPI_Get(buffer, kEvicted, MPI_BYTE, next_rank(), 0, kEvicted, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  check(buffer, kEvicted, seed, "got back into one of many");
}

int evict_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int buffers = argument(argc, argv, 1, 128);
  char* const exposed = buffer_of(kEvicted);
  char* const memory = buffer_of((size_t)buffers * kEvicted * 2);  // a gap behind each
  MPI_Win window = open_window(exposed, kEvicted);
  for (int i = 0; i < 2 * buffers; ++i) {
    put_and_get(window, memory + (size_t)(i % buffers) * kEvicted * 2, (uint64_t)(rank + 1) * 10000 + (uint64_t)i);
  }
  close_window(&window);
  free(memory);
  free(exposed);
  return verdict("evict");
}

// MPI_THREAD_MULTIPLE: four threads put and get at once, from buffers that they allocate and free meanwhile, and from
// one that all share. Each has a window of its own.
//
// What has arrived is known by requests, MPI_Rput and MPI_Rget, for MPI_Win_flush does not tell where threads share the
// transport: btl ofi of Open MPI 4.1.4 counts an operation after libfabric has taken it. If another thread reads its
// completion before that, the count lacks one meanwhile, and a flush then returns although an operation of its thread
// is under way. So a get that was only flushed sometimes found the old contents of the buffer, with any registration
// cache, and the data some milliseconds later. A request is completed by its own operation.
enum { kThreads = 4, kOfThread = 128 * 1024 };

static int rounds_of_each;
static MPI_Win windows[kThreads];
static char* shared;  // all threads put from it

// MPI needs the flush for what was put to be there; with Open MPI 4.1.4 it is there after the wait.
static void put(const char* from, MPI_Win window) {
  MPI_Request request;
  MPI_Rput(from, kOfThread, MPI_BYTE, next_rank(), 0, kOfThread, MPI_BYTE, window, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Win_flush(next_rank(), window);
}

// Cleared before, so that a wrong word tells what happened: 0, nothing arrived; anything else, another buffer's data.
static void get(char* to, MPI_Win window) {
  MPI_Request request;
  memset(to, 0, kOfThread);
  MPI_Rget(to, kOfThread, MPI_BYTE, next_rank(), 0, kOfThread, MPI_BYTE, window, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void one_round(int thread, int round) {
  const MPI_Win window = windows[thread];
  const uint64_t seed = ((uint64_t)(rank * kThreads + thread + 1) << 16) + (uint64_t)round;
  char* const out = malloc(kOfThread);
  char* const in = malloc(kOfThread);
  fill(out, kOfThread, seed);
  put(out, window);
  get(in, window);
  check(in, kOfThread, seed, "got back by a thread");
  put(shared, window);
  get(in, window);
  check(in, kOfThread, 7, "the shared buffer, got back by a thread");
  free(out);
  free(in);
}

static void* work(void* thread) {
  for (int round = 0; round < rounds_of_each; ++round) one_round((int)(intptr_t)thread, round);
  return NULL;
}

int threads_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_MULTIPLE);
  rounds_of_each = argument(argc, argv, 1, 50);
  char* const exposed = buffer_of((size_t)kThreads * kOfThread);
  pthread_t threads[kThreads];
  shared = buffer_of(kOfThread);
  fill(shared, kOfThread, 7);
  for (int i = 0; i < kThreads; ++i) {
    MPI_Win_create(exposed + (size_t)i * kOfThread, kOfThread, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &windows[i]);
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
