// SPDX-License-Identifier: BSD-3-Clause
// Messages of GPU memory between two ranks: 8 bytes to 64 MiB, blocking and not, derived datatypes.
// device_messages [LARGEST_MIB]
#include <stdlib.h>

#include "test/openmpi/common.h"
#include "test/openmpi/device.h"

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

int main(int argc, char** argv) {
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
