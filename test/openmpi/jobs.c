// SPDX-License-Identifier: BSD-3-Clause
// jobs.c - the MPI program, whose first argument is the name of a job. Of this file are those about Pinrail in a
// process: its figures, its allocator, look-ups among many buffers, and fork(); transfers.c has the others.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/openmpi/common.h"

// Many buffers that stay registered: each is attached to a dynamic window and detached, once, then again in an order
// without a pattern. Attaching is registering and little else, so the time that is printed is a look-up's. The first
// rank does it; the others wait.
// many [BUFFERS [OPERATIONS]]
enum { kApart = 8192, kAttached = 4096 };  // pages between them are unused, so that ranges do not touch
enum { kAlive = 1, kDone = 2 };            // tags of the first rank's signs of life

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
  MPI_Win_attach(window, buffer, kAttached);
  MPI_Win_detach(window, buffer);
}

// The neighbour puts into the buffer that was used last.
static void use(MPI_Win window, char* buffer, char* out) {
  MPI_Aint mine, theirs;
  MPI_Win_attach(window, buffer, kAttached);
  MPI_Get_address(buffer, &mine);
  MPI_Sendrecv(&mine, 1, MPI_AINT, previous_rank(), 0, &theirs, 1, MPI_AINT, next_rank(), 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  fill(out, kAttached, (uint64_t)rank + 1);
  MPI_Put(out, kAttached, MPI_BYTE, next_rank(), theirs, kAttached, MPI_BYTE, window);
  MPI_Win_flush(next_rank(), window);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  check(buffer, kAttached, (uint64_t)previous_rank() + 1, "put into one of many");
  MPI_Win_detach(window, buffer);
}

static int many_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const size_t buffers = (size_t)argument(argc, argv, 1, 65536);
  const int operations = argument(argc, argv, 2, 10000);
  char* const memory = buffer_of(buffers * kApart);
  char* const out = buffer_of(kAttached);
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
  close_window(&window);
  free(memory);
  free(out);
  return verdict("many");
}

// Pinrail's figures as a tool sees them, by MPI_T: there, of the right class, and moving with what the program does.
enum { kPut = 64 * 1024, kPuts = 10 };

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

static int pvars_job(int argc, char** argv) {
  int level;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  MPI_T_pvar_session_create(&session);
  MPI_T_pvar_handle hits = handle_of("rcache_grdma_hits", MPI_T_PVAR_CLASS_COUNTER);
  MPI_T_pvar_handle misses = handle_of("rcache_grdma_misses", MPI_T_PVAR_CLASS_COUNTER);
  MPI_T_pvar_handle bytes = handle_of("rcache_grdma_registered_bytes", MPI_T_PVAR_CLASS_LEVEL);
  MPI_T_pvar_handle limit = handle_of("rcache_grdma_size_limit", MPI_T_PVAR_CLASS_SIZE);
  char* const exposed = buffer_of(kPut);
  char* const out = buffer_of(kPut);
  MPI_Win window = open_window(exposed, kPut);
  const uint64_t hits_before = value_of(hits), misses_before = value_of(misses), bytes_before = value_of(bytes);
  for (int i = 0; i < kPuts; ++i) {
    MPI_Put(out, kPut, MPI_BYTE, next_rank(), 0, kPut, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
  }
  check_value(value_of(misses), misses_before + 1, "misses");
  check_value(value_of(hits), hits_before + kPuts - 1, "hits");
  check_value(value_of(bytes), bytes_before + kPut, "registered_bytes");
  check_value((uint64_t)(value_of(limit) >= kPut), 1, "size_limit");
  close_window(&window);
  MPI_T_pvar_session_free(&session);
  MPI_T_finalize();  // before MPI_Finalize: this Open MPI's btl ofi does not outlive it
  return verdict("pvars");
}

// Children that are forked between transfers: they inherit the cache and may neither use it nor harm it. Each unmaps
// what the parent has registered, allocates, frees and ends; the parent's registrations go on. forked [ROUNDS]
enum { kInherited = 256 * 1024 };

static void child(void* out, void* in) {
  munmap(out, kInherited);
  munmap(in, kInherited);
  void* volatile allocated = malloc(kInherited);
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

static void* fresh_mapping(void) {
  void* const got = mmap(NULL, kInherited, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 2);
  return got;
}

static int forked_job(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 10);
  char* const exposed = buffer_of(kInherited);
  void* const out = fresh_mapping();
  void* const in = fresh_mapping();
  MPI_Win window = open_window(exposed, kInherited);
  for (int round = 0; round < rounds; ++round) {
    exchange(window, exposed, out, in, kInherited, (uint64_t)round * 1000 + 1);
    fork_one(out, in);
    exchange(window, exposed, out, in, kInherited, (uint64_t)round * 1000 + 501);
  }
  close_window(&window);
  munmap(out, kInherited);
  munmap(in, kInherited);
  free(exposed);
  return verdict("forked");
}

// Memory of MPI_Alloc_mem() with the hint mpool=pinrail, allocated anew in each round: puts from it, and windows over
// it, are hits, and the transport registers nothing for it. alloc_mem [ROUNDS]
enum { kAllocated = 48 * 1024, kWarm = 3 };

static void tell(const char* what, int rounds, uint64_t hits, uint64_t misses) {
  printf("rank %d: %d %s, %llu hits, %llu misses\n", rank, rounds, what, (unsigned long long)hits,
         (unsigned long long)misses);
}

static void one_window(MPI_Info info, uint64_t seed) {
  char *exposed, *out;
  MPI_Win window;
  check_value((uint64_t)MPI_Alloc_mem(kAllocated, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  check_value((uint64_t)MPI_Alloc_mem(kAllocated, info, &out), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win_create(exposed, kAllocated, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  fill(out, kAllocated, seed + (uint64_t)rank);
  MPI_Win_lock(MPI_LOCK_SHARED, next_rank(), 0, window);
  MPI_Put(out, kAllocated, MPI_BYTE, next_rank(), 0, kAllocated, MPI_BYTE, window);
  MPI_Win_unlock(next_rank(), window);
  MPI_Win_free(&window);
  check(exposed, kAllocated, seed + (uint64_t)previous_rank(), "put into memory of MPI_Alloc_mem");
  check_value((uint64_t)MPI_Free_mem(out), MPI_SUCCESS, "MPI_Free_mem");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

static void puts_into_one_window(MPI_Info info, int rounds, MPI_T_pvar_handle misses, MPI_T_pvar_handle hits) {
  char* exposed;
  check_value((uint64_t)MPI_Alloc_mem(kAllocated, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win window = open_window(exposed, kAllocated);
  const uint64_t misses_before = value_of(misses), hits_before = value_of(hits);
  for (int i = 0; i < rounds; ++i) {
    char* out;
    check_value((uint64_t)MPI_Alloc_mem(kAllocated, info, &out), MPI_SUCCESS, "MPI_Alloc_mem");
    fill(out, kAllocated, (uint64_t)(i * 1000 + rank));
    MPI_Put(out, kAllocated, MPI_BYTE, next_rank(), 0, kAllocated, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
    check_value((uint64_t)MPI_Free_mem(out), MPI_SUCCESS, "MPI_Free_mem");
  }
  tell("puts", rounds, value_of(hits) - hits_before, value_of(misses) - misses_before);
  check_value(value_of(misses) - misses_before, 0, "misses of puts");
  check_value((uint64_t)(value_of(hits) - hits_before >= (uint64_t)rounds), 1, "hits of puts");
  close_window(&window);
  check(exposed, kAllocated, (uint64_t)((rounds - 1) * 1000 + previous_rank()), "the last put");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

// Larger than what is registered at once, so that each allocation is memory that no transfer has used: that it was
// registered is all that can make the put a hit.
static void put_from_fresh_memory(MPI_Info info, MPI_T_pvar_handle misses) {
  enum { kFresh = 4, kFreshBytes = 40 << 20 };
  char *exposed, *out[kFresh];
  check_value((uint64_t)MPI_Alloc_mem(kAllocated, info, &exposed), MPI_SUCCESS, "MPI_Alloc_mem");
  MPI_Win window = open_window(exposed, kAllocated);
  for (int i = 0; i < kFresh; ++i) {
    check_value((uint64_t)MPI_Alloc_mem(kFreshBytes, info, &out[i]), MPI_SUCCESS, "MPI_Alloc_mem");
    fill(out[i], kAllocated, (uint64_t)(i * 1000 + rank));
    const uint64_t before = value_of(misses);
    MPI_Put(out[i], kAllocated, MPI_BYTE, next_rank(), 0, kAllocated, MPI_BYTE, window);
    MPI_Win_flush(next_rank(), window);
    check_value(value_of(misses) - before, 0, "misses of a put from fresh memory");
  }
  close_window(&window);
  check(exposed, kAllocated, (uint64_t)((kFresh - 1) * 1000 + previous_rank()), "the last put from fresh memory");
  for (int i = 0; i < kFresh; ++i) check_value((uint64_t)MPI_Free_mem(out[i]), MPI_SUCCESS, "MPI_Free_mem");
  check_value((uint64_t)MPI_Free_mem(exposed), MPI_SUCCESS, "MPI_Free_mem");
}

static int alloc_mem_job(int argc, char** argv) {
  int level;
  MPI_Info info;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const int rounds = argument(argc, argv, 1, 100);
  MPI_Info_create(&info);
  MPI_Info_set(info, "mpool_hints", "mpool=pinrail");
  MPI_T_pvar_session_create(&session);
  MPI_T_pvar_handle misses = handle_of("rcache_grdma_misses", MPI_T_PVAR_CLASS_COUNTER);
  MPI_T_pvar_handle hits = handle_of("rcache_grdma_hits", MPI_T_PVAR_CLASS_COUNTER);
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

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(int argc, char** argv);
  } jobs[] = {{"rma", rma_job},       {"two_sided", two_sided_job}, {"remap", remap_job}, {"windows", windows_job},
              {"evict", evict_job},   {"threads", threads_job},     {"many", many_job},   {"pvars", pvars_job},
              {"forked", forked_job}, {"alloc_mem", alloc_mem_job}};
  for (size_t i = 0; argc > 1 && i < sizeof(jobs) / sizeof(jobs[0]); ++i) {
    if (strcmp(argv[1], jobs[i].name) == 0) return jobs[i].run(argc - 1, argv + 1);
  }
  fprintf(stderr, "usage: jobs NAME [ARGUMENT]...\n");
  return 2;
}
