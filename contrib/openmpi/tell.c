// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/open_mpi.h"
// opal_config.h comes first
#include <stdio.h>

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

// Open MPI does not compare versions of its own: a component that was built for other structs would be used.
static bool is_built_for_this(void) {
  int built[2], running[2];
  return sscanf(OPAL_VERSION, "%d.%d", &built[0], &built[1]) == 2 &&
         sscanf(opal_version_string, "%d.%d", &running[0], &running[1]) == 2 && built[0] == running[0] &&
         built[1] == running[1];
}

bool check_version(const char* what, const char* follows) {
  if (is_built_for_this()) return true;
  char happened[160];
  snprintf(happened, sizeof(happened), "Pinrail's %s was built for Open MPI " OPAL_VERSION "; this is Open MPI %s.",
           what, opal_version_string);
  print_help(
      happened, follows,
      "build Pinrail with this Open MPI's headers (configure --with-openmpi=DIR), or leave Pinrail's folder out of"
      " mca_base_component_path.");
  return false;
}
