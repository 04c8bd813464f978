// SPDX-License-Identifier: BSD-3-Clause
// common.h - what the MPI programs share: who we are, bytes that tell where they come from, and one verdict of all.
#ifndef PINRAIL_TEST_OPENMPI_COMMON_H
#define PINRAIL_TEST_OPENMPI_COMMON_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

extern int rank, ranks;

// level: MPI_THREAD_*; the job ends where Open MPI gives less.
void begin(int* argc, char*** argv, int level);

// A process that has not been alive for 300 s is ended by SIGALRM. So what hangs fails, and what is only slow, because
// others have the processors, does not. begin() and each check are signs of life; long loops without any give their
// own.
void alive(void);

// The verdict of all ranks, printed by the first: "ok NAME: N checks", or how many were wrong. Ends MPI; 0 if all is
// right and anything was checked at all.
int verdict(const char* name);

// Fills and checks by words of 8 bytes; any two seeds differ in every word.
void fill(void* buffer, size_t bytes, uint64_t seed);
void check(const void* buffer, size_t bytes, uint64_t seed, const char* what);
void check_value(uint64_t seen, uint64_t expected, const char* what);

// A window over this memory that all have locked for all, and its end.
MPI_Win open_window(void* memory, size_t bytes);
void close_window(MPI_Win* window);

// Puts what out holds then into the next one's window, gets it back into in, and checks both and what was put here.
// exposed: the window's own memory here, locked by all.
void exchange(MPI_Win window, const char* exposed, void* out, void* in, size_t bytes, uint64_t seed);

void* buffer_of(size_t bytes);  // page-aligned; never NULL
double now_seconds(void);
int next_rank(void);
int previous_rank(void);
int argument(int argc, char** argv, int at, int fallback);

// The jobs of transfers.c, each with its arguments as a program would have them. The exit status.
int rma_job(int argc, char** argv);
int two_sided_job(int argc, char** argv);
int remap_job(int argc, char** argv);
int windows_job(int argc, char** argv);
int evict_job(int argc, char** argv);
int threads_job(int argc, char** argv);

#endif
