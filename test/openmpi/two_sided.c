// SPDX-License-Identifier: BSD-3-Clause
// Two-sided: messages of 64 KiB to 16 MiB around a ring, each size several times from the same buffers.
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"

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

int main(int argc, char** argv) {
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
