// SPDX-License-Identifier: BSD-3-Clause
// Children that are forked between transfers: they inherit the cache and may neither use it nor harm it. Each unmaps
// what the parent has registered, allocates, frees and ends; the parent's registrations go on. forked [ROUNDS]
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/openmpi/common.h"

enum { kBytes = 256 * 1024 };

static void child(void* out, void* in) {
  munmap(out, kBytes);
  munmap(in, kBytes);
  void* volatile allocated = malloc(kBytes);
  free(allocated);
  exit(0);  // with whatever the libraries do at exit
}

static void fork_one(void* out, void* in) {
  int status = -1;
  const pid_t pid = fork();
  if (pid == 0) child(out, in);
  check_value((uint64_t)(pid > 0 && waitpid(pid, &status, 0) == pid), 1, "fork");
  check_value((uint64_t)status, 0, "how the child ended");
}

static void* fresh(void) {
  void* const got = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 2);
  return got;
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 10);
  char* const exposed = buffer_of(kBytes);
  void* const out = fresh();
  void* const in = fresh();
  MPI_Win window;
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  for (int round = 0; round < rounds; ++round) {
    exchange(window, exposed, out, in, kBytes, (uint64_t)round * 1000 + 1);
    fork_one(out, in);
    exchange(window, exposed, out, in, kBytes, (uint64_t)round * 1000 + 501);
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  munmap(out, kBytes);
  munmap(in, kBytes);
  free(exposed);
  return verdict("forked");
}
