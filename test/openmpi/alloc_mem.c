// SPDX-License-Identifier: BSD-3-Clause
// Memory of MPI_Alloc_mem() with the hint mpool=pinrail, allocated anew in each round: puts from it, and windows over
// it, are hits, and the transport registers nothing for it. alloc_mem [ROUNDS]
#include <stdio.h>
#include <string.h>

#include "test/openmpi/common.h"

enum { kBytes = 48 * 1024, kWarm = 3 };

static MPI_T_pvar_session session;

static MPI_T_pvar_handle handle_of(const char* name) {
  MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
  int index, count;
  if (MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_COUNTER, &index) != MPI_SUCCESS ||
      MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &count) != MPI_SUCCESS) {
    fprintf(stderr, "rank %d: there is no performance variable %s\n", rank, name);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  return handle;
}

static uint64_t value_of(MPI_T_pvar_handle handle) {
  unsigned long long value = 0;
  check_value((uint64_t)MPI_T_pvar_read(session, handle, &value), MPI_SUCCESS, "MPI_T_pvar_read");
  return value;
}

static void tell(const char* what, int rounds, uint64_t hits, uint64_t misses) {
  printf("rank %d: %d %s, %llu hits, %llu misses\n", rank, rounds, what, (unsigned long long)hits,
         (unsigned long long)misses);
}

static void one_window(MPI_Info info, uint64_t seed) {
  char *exposed, *out;
  MPI_Win window;
  check_value((uint64_t)MPI_Alloc_mem(kBytes, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  check_value((uint64_t)MPI_Alloc_mem(kBytes, info, &out), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  fill(out, kBytes, seed + (uint64_t)rank);
  MPI_Win_lock(MPI_LOCK_SHARED, next_rank(), 0, window);
  MPI_Put(out, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
  MPI_Win_unlock(next_rank(), window);
  MPI_Win_free(&window);
  check(exposed, kBytes, seed + (uint64_t)previous_rank(), "put into memory of MPI_Alloc_mem");
  check_value((uint64_t)MPI_Free_mem(out), MPI_SUCCESS, "MPI_Free_mem");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

static void puts_into_one_window(MPI_Info info, int rounds, MPI_T_pvar_handle misses, MPI_T_pvar_handle hits) {
  char* exposed;
  MPI_Win window;
  check_value((uint64_t)MPI_Alloc_mem(kBytes, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  const uint64_t misses_before = value_of(misses), hits_before = value_of(hits);
  for (int i = 0; i < rounds; ++i) {
    char* out;
    check_value((uint64_t)MPI_Alloc_mem(kBytes, info, &out), MPI_SUCCESS, "MPI_Alloc_mem");
    fill(out, kBytes, (uint64_t)(i * 1000 + rank));
    MPI_Put(out, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
    check_value((uint64_t)MPI_Free_mem(out), MPI_SUCCESS, "MPI_Free_mem");
  }
  tell("puts", rounds, value_of(hits) - hits_before, value_of(misses) - misses_before);
  check_value(value_of(misses) - misses_before, 0, "misses of puts");
  check_value((uint64_t)(value_of(hits) - hits_before >= (uint64_t)rounds), 1, "hits of puts");
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  check(exposed, kBytes, (uint64_t)((rounds - 1) * 1000 + previous_rank()), "the last put");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

// Larger than what is registered at once, so that each allocation is memory that no transfer has used: that it was
// registered is all that can make the put a hit.
static void put_from_fresh_memory(MPI_Info info, MPI_T_pvar_handle misses) {
  enum { kFresh = 4, kFreshBytes = 40 << 20 };
  char *exposed, *out[kFresh];
  MPI_Win window;
  check_value((uint64_t)MPI_Alloc_mem(kBytes, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  for (int i = 0; i < kFresh; ++i) {
    check_value((uint64_t)MPI_Alloc_mem(kFreshBytes, info, &out[i]), MPI_SUCCESS, "MPI_Alloc_mem");
    fill(out[i], kBytes, (uint64_t)(i * 1000 + rank));
    const uint64_t before = value_of(misses);
    MPI_Put(out[i], kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
    check_value(value_of(misses) - before, 0, "misses of a put from fresh memory");
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  check(exposed, kBytes, (uint64_t)((kFresh - 1) * 1000 + previous_rank()), "the last put from fresh memory");
  for (int i = 0; i < kFresh; ++i) check_value((uint64_t)MPI_Free_mem(out[i]), MPI_SUCCESS, "MPI_Free_mem");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

int main(int argc, char** argv) {
  int level;
  MPI_Info info;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 100);
  MPI_Info_create(&info);
  MPI_Info_set(info, "mpool_hints", "mpool=pinrail");
  MPI_T_pvar_session_create(&session);
  MPI_T_pvar_handle misses = handle_of("rcache_grdma_misses"), hits = handle_of("rcache_grdma_hits");
  // The transport's own memory for windows is registered in the first rounds.
  for (int i = 0; i < kWarm; ++i) one_window(info, (uint64_t)i * 1000);
  uint64_t misses_before = value_of(misses), hits_before = value_of(hits);
  // For each window the first rank of a node maps a segment of its own and registers that: one miss.
  for (int i = kWarm; i < kWarm + rounds; ++i) one_window(info, (uint64_t)i * 1000);
  tell("windows", rounds, value_of(hits) - hits_before, value_of(misses) - misses_before);
  check_value((uint64_t)(value_of(hits) - hits_before >= 2 * (uint64_t)rounds), 1, "hits of windows and puts");
  check_value((uint64_t)(value_of(misses) - misses_before <= (uint64_t)rounds), 1, "misses of windows");
  puts_into_one_window(info, rounds, misses, hits);
  put_from_fresh_memory(info, misses);
  MPI_Info_free(&info);
  MPI_T_pvar_session_free(&session);
  MPI_T_finalize();  // before MPI_Finalize: this Open MPI's btl ofi does not outlive it
  return verdict("alloc_mem");
}
