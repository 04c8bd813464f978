// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/tell.h"

#include "contrib/openmpi/open_mpi.h"

void print_help(const char* happened, const char* follows, const char* to_do) {
  if (opal_process_info.my_local_rank != 0) return;
  opal_output(0, "What happened  %s\nWhat follows   %s\nWhat to do     %s", happened, follows, to_do);
}
