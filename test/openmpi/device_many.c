// SPDX-License-Identifier: BSD-3-Clause
// More allocations than the peer may have open: rank 0 sends four buffers A, B, C, D of 1 MiB in the order
// A B C A D A, ROUNDS times, and rank 1 reads them. device_many [ROUNDS [LIMIT]]: never more than LIMIT are open.
// Of three that may be open, D takes the place of B, which was not hit since it was opened; so the last A is a hit.
#include "test/fake/cuda/cuda_double.h"
#include "test/openmpi/common.h"
#include "test/openmpi/device.h"

enum { kBytes = 1 << 20, kBuffers = 4 };

static uint64_t most_open;

static void message(char* memory, int which, uint64_t seed) {
  if (rank == 0) {
    device_fill(memory, kBytes, seed);
    MPI_Send(memory, kBytes, MPI_BYTE, 1, which, MPI_COMM_WORLD);
  } else {
    device_clear(memory, kBytes);
    MPI_Recv(memory, kBytes, MPI_BYTE, 0, which, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    device_check(memory, kBytes, seed, "many");
    const uint64_t open = cuda_double_open_handles();
    if (open > most_open) most_open = open;
  }
}

int main(int argc, char** argv) {
  static const int order[] = {0, 1, 2, 0, 3, 0};
  char* buffers[kBuffers];
  uint64_t seed = 0;
  open_device();
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 20), limit = argument(argc, argv, 2, kBuffers);
  for (int i = 0; i < kBuffers; ++i) buffers[i] = device_alloc(kBytes);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); ++i) message(buffers[order[i]], order[i], ++seed);
  }
  check_value(most_open <= (uint64_t)limit, 1, "buffers open at once");
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < kBuffers; ++i) device_free(buffers[i]);
  tell_device();
  return verdict("device_many");
}
