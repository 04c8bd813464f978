// SPDX-License-Identifier: BSD-3-Clause
// mpi_transfers.c - two ranks of an MPI program that knows nothing of Pinrail, for MPICH over libfabric.
//
//   mpi_transfers ROUNDS REMAP_EVERY
//
// In each round both ranks make a window of the same buffer, which registers it, write to each other's and free the
// window. Then rank 0 sends the buffer, which is registered too if the message is a long one. REMAP_EVERY n: before
// each n-th round the buffer is unmapped, and other pages are mapped at its address; 0: never. Every byte is compared.
// Exit status 0: all bytes were right; 1: not so.
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kBytes = 1 << 20 };

static int rank;

static unsigned char* map(void* where) {
  const int fixed = where != NULL ? MAP_FIXED : 0;
  void* const memory = mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (memory != MAP_FAILED) return memory;
  fprintf(stderr, "FAILED: no memory\n");
  MPI_Abort(MPI_COMM_WORLD, 1);
  abort();
}

static unsigned char pattern_of(int writer, unsigned long round) {
  return (unsigned char)(round * 2 + (unsigned)writer + 1);
}

static unsigned long wrong(const unsigned char* buffer, unsigned char right) {
  unsigned long count = 0;
  for (size_t i = 0; i < kBytes; ++i) count += buffer[i] != right ? 1 : 0;
  return count;
}

static unsigned long by_window(unsigned char* buffer, unsigned char* source, unsigned long round) {
  MPI_Win window;
  memset(buffer, 0, kBytes);
  memset(source, pattern_of(rank, round), kBytes);
  MPI_Win_create(buffer, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_fence(0, window);
  MPI_Put(source, kBytes, MPI_BYTE, 1 - rank, 0, kBytes, MPI_BYTE, window);
  MPI_Win_fence(0, window);
  MPI_Win_free(&window);
  return wrong(buffer, pattern_of(1 - rank, round));
}

static unsigned long by_message(unsigned char* buffer, unsigned long round) {
  memset(buffer, rank == 0 ? pattern_of(0, round) : 0, kBytes);
  if (rank == 0) MPI_Send(buffer, kBytes, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
  if (rank == 1) MPI_Recv(buffer, kBytes, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return wrong(buffer, pattern_of(0, round));
}

int main(int argc, char** argv) {
  int ranks = 0;
  unsigned long bad = 0, all = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3 || ranks != 2) {
    fprintf(stderr, "Usage: mpiexec -n 2 mpi_transfers ROUNDS REMAP_EVERY\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const unsigned long rounds = strtoul(argv[1], NULL, 10), every = strtoul(argv[2], NULL, 10);
  unsigned char *buffer = map(NULL), *source = map(NULL);
  for (unsigned long round = 0; round < rounds; ++round) {
    if (every != 0 && round % every == every - 1) {
      munmap(buffer, kBytes);
      buffer = map(buffer);
    }
    bad += by_window(buffer, source, round) + by_message(buffer, round);
  }
  MPI_Reduce(&bad, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Bcast(&all, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("rounds %lu wrong_bytes %lu\n", rounds, all);
  MPI_Finalize();
  return all != 0;
}
