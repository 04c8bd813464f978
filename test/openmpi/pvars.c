// SPDX-License-Identifier: BSD-3-Clause
// Pinrail's figures as a tool sees them, by MPI_T: there, of the right class, and moving with what the program does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"

enum { kBytes = 64 * 1024, kPuts = 10 };

static MPI_T_pvar_session session;

static int index_of(const char* name, int* class_out) {
  int count;
  MPI_T_pvar_get_num(&count);
  for (int i = 0; i < count; ++i) {
    char seen[128], text[512];
    int name_length = sizeof(seen), text_length = sizeof(text), level, bind, read_only, continuous, atomic;
    MPI_Datatype type;
    MPI_T_enum enumeration;
    if (MPI_T_pvar_get_info(i, seen, &name_length, &level, class_out, &type, &enumeration, text, &text_length, &bind,
                            &read_only, &continuous, &atomic) == MPI_SUCCESS &&
        strcmp(seen, name) == 0) {
      check_value((uint64_t)(type == MPI_UNSIGNED_LONG_LONG && read_only != 0 && continuous != 0), 1, name);
      return i;
    }
  }
  fprintf(stderr, "rank %d: there is no performance variable %s\n", rank, name);
  MPI_Abort(MPI_COMM_WORLD, 2);
  return -1;
}

static MPI_T_pvar_handle handle_of(const char* name, int expected_class) {
  MPI_T_pvar_handle handle;
  int count, class;
  const int index = index_of(name, &class);
  check_value((uint64_t) class, (uint64_t)expected_class, name);
  MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &count);
  check_value((uint64_t)count, 1, name);
  return handle;
}

static uint64_t value_of(MPI_T_pvar_handle handle) {
  unsigned long long value = 0;
  check_value((uint64_t)MPI_T_pvar_read(session, handle, &value), MPI_SUCCESS, "MPI_T_pvar_read");
  return value;
}

int main(int argc, char** argv) {
  int level;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  MPI_T_pvar_session_create(&session);
  MPI_T_pvar_handle hits = handle_of("rcache_grdma_hits", MPI_T_PVAR_CLASS_COUNTER);
  MPI_T_pvar_handle misses = handle_of("rcache_grdma_misses", MPI_T_PVAR_CLASS_COUNTER);
  MPI_T_pvar_handle bytes = handle_of("rcache_grdma_registered_bytes", MPI_T_PVAR_CLASS_LEVEL);
  MPI_T_pvar_handle limit = handle_of("rcache_grdma_size_limit", MPI_T_PVAR_CLASS_SIZE);
  char* const exposed = buffer_of(kBytes);
  char* const out = buffer_of(kBytes);
  MPI_Win window;
  MPI_Win_create(exposed, kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  MPI_Win_lock_all(0, window);
  const uint64_t hits_before = value_of(hits), misses_before = value_of(misses), bytes_before = value_of(bytes);
  for (int i = 0; i < kPuts; ++i) {
    MPI_Put(out, kBytes, MPI_BYTE, next_rank(), 0, kBytes, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
  }
  check_value(value_of(misses), misses_before + 1, "misses");
  check_value(value_of(hits), hits_before + kPuts - 1, "hits");
  check_value(value_of(bytes), bytes_before + kBytes, "registered_bytes");
  check_value((uint64_t)(value_of(limit) >= kBytes), 1, "size_limit");
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  MPI_T_pvar_session_free(&session);
  MPI_T_finalize();  // before MPI_Finalize: this Open MPI's btl ofi does not outlive it
  return verdict("pvars");
}
