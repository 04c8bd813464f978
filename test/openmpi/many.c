// SPDX-License-Identifier: BSD-3-Clause
// Many buffers that stay registered: each is attached to a dynamic window and detached, once, then again in an order
// without a pattern. Attaching is registering and little else, so the time that is printed is a look-up's. The first
// rank does it; the others wait.
// many [BUFFERS [OPERATIONS]]
#include <stdio.h>
#include <stdlib.h>

#include "test/openmpi/common.h"

enum { kApart = 8192, kBytes = 4096 };  // pages between them are unused, so that ranges do not touch
enum { kAlive = 1, kDone = 2 };         // tags of the first rank's signs of life

static uint64_t step(uint64_t* state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 33;
}

static void tell_others(int tag) {
  alive();
  for (int other = 1; other < ranks; ++other) MPI_Send(NULL, 0, MPI_BYTE, other, tag, MPI_COMM_WORLD);
}

static void wait_for_first(void) {
  MPI_Status status = {.MPI_TAG = kAlive};
  while (status.MPI_TAG != kDone) {
    MPI_Recv(NULL, 0, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    alive();
  }
}

static void attach_and_detach(MPI_Win window, char* buffer) {
  static unsigned times;
  if (times++ % 1024 == 0) tell_others(kAlive);  // at each of them it would be a part of what is measured
  MPI_Win_attach(window, buffer, kBytes);
  MPI_Win_detach(window, buffer);
}

// The neighbour puts into the buffer that was used last.
static void use(MPI_Win window, char* buffer, char* out) {
  MPI_Aint mine, theirs;
  MPI_Win_attach(window, buffer, kBytes);
  MPI_Get_address(buffer, &mine);
  MPI_Sendrecv(&mine, 1, MPI_AINT, previous_rank(), 0, &theirs, 1, MPI_AINT, next_rank(), 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  fill(out, kBytes, (uint64_t)rank + 1);
  MPI_Put(out, kBytes, MPI_BYTE, next_rank(), theirs, kBytes, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  check(buffer, kBytes, (uint64_t)previous_rank() + 1, "put into one of many");
  MPI_Win_detach(window, buffer);
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const size_t buffers = (size_t)argument(argc, argv, 1, 65536);
  const int operations = argument(argc, argv, 2, 10000);
  char* const memory = buffer_of(buffers * kApart);
  char* const out = buffer_of(kBytes);
  uint64_t state = (uint64_t)rank + 1;
  MPI_Win window;
  MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  const double start = now_seconds();
  for (size_t i = 0; rank == 0 && i < buffers; ++i) attach_and_detach(window, memory + i * kApart);
  const double filled = now_seconds();
  for (int i = 0; rank == 0 && i < operations; ++i) attach_and_detach(window, memory + step(&state) % buffers * kApart);
  const double end = now_seconds();
  if (rank == 0) tell_others(kDone);
  if (rank != 0) wait_for_first();
  MPI_Barrier(MPI_COMM_WORLD);
  use(window, memory + step(&state) % buffers * kApart, out);
  if (rank == 0) {
    printf("many: %zu buffers, %.2f us the first time, %.2f us again\n", buffers,
           1e6 * (filled - start) / (double)buffers, 1e6 * (end - filled) / operations);
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  free(memory);
  free(out);
  return verdict("many");
}
