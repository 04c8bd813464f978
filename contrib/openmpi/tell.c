// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/tell.h"

#include "contrib/openmpi/open_mpi.h"

void print_help(const char* happened, const char* follows, const char* to_do) {
  if (opal_process_info.my_local_rank == 0) print_fatal_help(happened, follows, to_do);
}

void print_fatal_help(const char* happened, const char* follows, const char* to_do) {
  opal_output(0, "What happened  %s\nWhat follows   %s\nWhat to do     %s", happened, follows, to_do);
}

void print_line(const char* line) {
  if (opal_process_info.my_local_rank == 0) opal_output(0, "%s", line);
}

void print_job_line(const char* line) {
  if (OPAL_PROC_MY_NAME.vpid == 0) opal_output(0, "%s", line);
}
