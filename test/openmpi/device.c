// SPDX-License-Identifier: BSD-3-Clause
// device.c - an MPI program of GPU memory, whose first argument is the name of a job. The memory, which is filled and
// checked as host memory is (common.h), is the driver double's, or with PINRAIL_TEST_REAL_DRIVER a GPU's.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"
#ifdef PINRAIL_TEST_REAL_DRIVER
#include "test/fake/cuda/toolkit/cuda.h"
#else
#include "test/fake/cuda/cuda_double.h"
#endif

static char* host;  // as long as the longest buffer
static size_t host_bytes;

static void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "rank %d: %s: error %d\n", rank, call, (int)result);
  exit(2);
}

// A context of the first GPU on this thread, before MPI starts: Open MPI takes the one that it finds.
static void open_device(void) {
  CUcontext context;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

static void* device_alloc(size_t bytes) {
  CUdeviceptr address;
  must(cuMemAlloc(&address, bytes), "cuMemAlloc");
  return (void*)(uintptr_t)address;
}
static void device_free(void* memory) { must(cuMemFree((uintptr_t)memory), "cuMemFree"); }

static void device_read(void* into, const void* memory, size_t bytes) {
  must(cuMemcpyDtoH(into, (uintptr_t)memory, bytes), "cuMemcpyDtoH");
}
static void device_write(void* memory, const void* from, size_t bytes) {
  must(cuMemcpyHtoD((uintptr_t)memory, from, bytes), "cuMemcpyHtoD");
}

static void* host_buffer(size_t bytes) {
  if (bytes <= host_bytes) return host;
  free(host);
  host = buffer_of(bytes);
  host_bytes = bytes;
  return host;
}

static void device_fill(void* memory, size_t bytes, uint64_t seed) {
  fill(host_buffer(bytes), bytes, seed);
  device_write(memory, host, bytes);
}
static void device_check(const void* memory, size_t bytes, uint64_t seed, const char* what) {
  device_read(host_buffer(bytes), memory, bytes);
  check(host, bytes, seed, what);
}
static void device_clear(void* memory, size_t bytes) { must(cuMemsetD8((uintptr_t)memory, 0, bytes), "cuMemsetD8"); }

// A line of figures of the double: "device RANK: N opens, N closes, N already mapped, N open". A GPU's driver has none.
#ifdef PINRAIL_TEST_REAL_DRIVER
static uint64_t open_handles(void) { return 0; }
static void tell_device(void) {}
#else
static uint64_t open_handles(void) { return cuda_double_open_handles(); }
static void tell_device(void) {
  const unsigned long long opens = cuda_double_calls("cuIpcOpenMemHandle"),
                           closes = cuda_double_calls("cuIpcCloseMemHandle"),
                           mapped = cuda_double_calls(CUDA_DOUBLE_ALREADY_MAPPED);
  printf("device %d: %llu opens, %llu closes, %llu already mapped, %zu open\n", rank, opens, closes, mapped,
         cuda_double_open_handles());
  fflush(stdout);
}
#endif

// Messages of GPU memory between two ranks: 8 bytes to 64 MiB, blocking and not, derived datatypes.
// device_messages [LARGEST_MIB]
enum { kTimes = 4, kUnaligned = 24 };

static int tag;

// Rank 0 sends, then rank 1.
static void blocking(char* out, char* in, size_t bytes) {
  const int other = 1 - rank;
  const uint64_t seed = (uint64_t)++tag * 2;
  device_fill(out, bytes, seed + (uint64_t)rank);
  device_clear(in, bytes);
  if (rank == 0) MPI_Send(out, (int)bytes, MPI_BYTE, other, tag, MPI_COMM_WORLD);
  MPI_Recv(in, (int)bytes, MPI_BYTE, other, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == 1) MPI_Send(out, (int)bytes, MPI_BYTE, other, tag, MPI_COMM_WORLD);
  device_check(in, bytes, seed + (uint64_t)other, "blocking");
}

// Both at once, two messages each: the second one is from the middle of the buffer.
static void at_once(char* out, char* in, size_t bytes) {
  const int other = 1 - rank;
  const uint64_t seed = (uint64_t)++tag * 2;
  const size_t half = bytes / 16 * 8;
  MPI_Request requests[4];
  device_fill(out, half, seed + (uint64_t)rank);
  device_fill(out + half, bytes - half, seed + (uint64_t)rank + 1000000);
  device_clear(in, bytes);
  MPI_Irecv(in, (int)half, MPI_BYTE, other, 2 * tag, MPI_COMM_WORLD, &requests[0]);
  MPI_Irecv(in + half, (int)(bytes - half), MPI_BYTE, other, 2 * tag + 1, MPI_COMM_WORLD, &requests[1]);
  MPI_Isend(out, (int)half, MPI_BYTE, other, 2 * tag, MPI_COMM_WORLD, &requests[2]);
  MPI_Isend(out + half, (int)(bytes - half), MPI_BYTE, other, 2 * tag + 1, MPI_COMM_WORLD, &requests[3]);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  device_check(in, half, seed + (uint64_t)other, "first half");
  device_check(in + half, bytes - half, seed + (uint64_t)other + 1000000, "second half");
}

// Every second word, into every second word: the others stay as they are.
static void strided(char* out, char* in, size_t bytes) {
  const int other = 1 - rank, count = (int)(bytes / 16);
  const uint64_t seed = (uint64_t)++tag * 2;
  MPI_Datatype every_second;
  if (count == 0) return;
  MPI_Type_vector(count, 1, 2, MPI_UINT64_T, &every_second);
  MPI_Type_commit(&every_second);
  device_fill(out, bytes, seed + (uint64_t)rank);
  device_clear(in, bytes);
  MPI_Sendrecv(out, 1, every_second, other, tag, in, 1, every_second, other, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  uint64_t* const words = buffer_of(bytes);
  device_read(words, in, bytes);
  uint64_t wrong = 0;
  for (int i = 0; i < count; ++i) {
    wrong += words[2 * i] != ((seed + (uint64_t)other) << 32) + (uint64_t)(2 * i);
    wrong += words[2 * i + 1] != 0;
  }
  check_value(wrong, 0, "strided");
  free(words);
  MPI_Type_free(&every_second);
}

static int device_messages(int argc, char** argv) {
  open_device();
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const size_t largest = (size_t)argument(argc, argv, 1, 64) << 20;
  char* const out = device_alloc(largest + kUnaligned);
  char* const in = device_alloc(largest + kUnaligned);
  for (size_t bytes = 8; bytes <= largest; bytes *= bytes < 1 << 20 ? 2 : 8) {
    for (int i = 0; i < kTimes; ++i) {
      const size_t shift = i % 2 == 0 ? 0 : kUnaligned;
      blocking(out + shift, in + shift, bytes);
      at_once(out + shift, in + shift, bytes);
      strided(out, in, bytes);
    }
  }
  device_free(out);
  device_free(in);
  tell_device();
  return verdict("device_messages");
}

// GPU memory that is freed and allocated again at its address between messages: as long, shorter, longer, and beginning
// elsewhere in what was freed. device_reallocated [ROUNDS]
enum { kLength = 256 << 10, kPad = 64 << 10, kKinds = 4 };

static uint64_t at_same_place;

// Memory of this round, where that of the one before was. *pad_out: what lies before it, or NULL.
static char* allocate(int round, size_t* bytes_out, char** pad_out) {
  static const size_t lengths[kKinds] = {kLength, kLength / 2, 2 * kLength, kLength};
  const int kind = round % kKinds;
  *pad_out = kind == kKinds - 1 ? device_alloc(kPad) : NULL;
  *bytes_out = lengths[kind];
  return device_alloc(lengths[kind]);
}

static void message(char* memory, size_t bytes, uint64_t seed) {
  if (rank == 0) {
    device_fill(memory, bytes, seed);
    MPI_Send(memory, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
  } else {
    device_clear(memory, bytes);
    MPI_Recv(memory, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    device_check(memory, bytes, seed, "reallocated");
  }
}

// Twice from the same memory: once it is new, once it is known.
static void round_of(int round) {
  static uintptr_t start;
  size_t bytes;
  char* pad;
  char* const memory = allocate(round, &bytes, &pad);
  if (start == 0) start = (uintptr_t)memory;
  at_same_place += (uintptr_t)(pad != NULL ? pad : memory) == start;
  for (uint64_t i = 0; i < 2; ++i) message(memory, bytes, (uint64_t)round * 2 + i + 1);
  MPI_Barrier(MPI_COMM_WORLD);
  device_free(memory);
  if (pad != NULL) device_free(pad);
}

static int device_reallocated(int argc, char** argv) {
  open_device();
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 1000);
  for (int round = 0; round < rounds; ++round) round_of(round);
  if (rank == 0) check_value(at_same_place, (uint64_t)rounds, "rounds at the same place");  // rank 1 maps rank 0's
  tell_device();
  return verdict("device_reallocated");
}

// More allocations than the peer may have open: rank 0 sends four buffers A, B, C, D of 1 MiB in the order
// A B C A D A, ROUNDS times, and rank 1 reads them. device_many [ROUNDS [LIMIT]]: never more than LIMIT are open.
// Of three that may be open, D takes the place of B, which was not hit since it was opened; so the last A is a hit.
enum { kManyBytes = 1 << 20, kBuffers = 4 };

static uint64_t most_open;

static void message_of_many(char* memory, int which, uint64_t seed) {
  if (rank == 0) {
    device_fill(memory, kManyBytes, seed);
    MPI_Send(memory, kManyBytes, MPI_BYTE, 1, which, MPI_COMM_WORLD);
  } else {
    device_clear(memory, kManyBytes);
    MPI_Recv(memory, kManyBytes, MPI_BYTE, 0, which, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    device_check(memory, kManyBytes, seed, "many");
    const uint64_t open = open_handles();
    if (open > most_open) most_open = open;
  }
}

static int device_many(int argc, char** argv) {
  static const int order[] = {0, 1, 2, 0, 3, 0};
  char* buffers[kBuffers];
  uint64_t seed = 0;
  open_device();
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 20), limit = argument(argc, argv, 2, kBuffers);
  for (int i = 0; i < kBuffers; ++i) buffers[i] = device_alloc(kManyBytes);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); ++i) message_of_many(buffers[order[i]], order[i], ++seed);
  }
  check_value(most_open <= (uint64_t)limit, 1, "buffers open at once");
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < kBuffers; ++i) device_free(buffers[i]);
  tell_device();
  return verdict("device_many");
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(int argc, char** argv);
  } jobs[] = {
      {"device_messages", device_messages}, {"device_reallocated", device_reallocated}, {"device_many", device_many}};
  for (size_t i = 0; argc > 1 && i < sizeof(jobs) / sizeof(jobs[0]); ++i) {
    if (strcmp(argv[1], jobs[i].name) == 0) return jobs[i].run(argc - 1, argv + 1);
  }
  fprintf(stderr, "usage: device NAME [ARGUMENT]...\n");
  return 2;
}
