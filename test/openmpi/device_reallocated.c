// SPDX-License-Identifier: BSD-3-Clause
// GPU memory that is freed and allocated again at its address between messages: as long, shorter, longer, and beginning
// elsewhere in what was freed. device_reallocated [ROUNDS]
#include <stdio.h>

#include "test/openmpi/common.h"
#include "test/openmpi/device.h"

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

int main(int argc, char** argv) {
  open_device();
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 1000);
  for (int round = 0; round < rounds; ++round) round_of(round);
  if (rank == 0) check_value(at_same_place, (uint64_t)rounds, "rounds at the same place");  // rank 1 maps rank 0's
  tell_device();
  return verdict("device_reallocated");
}
