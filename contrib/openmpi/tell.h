// SPDX-License-Identifier: BSD-3-Clause
// tell.h - messages for people, three lines each, once on every node; and whether this was built for this Open MPI.
#ifndef PINRAIL_CONTRIB_OPENMPI_TELL_H
#define PINRAIL_CONTRIB_OPENMPI_TELL_H

#include <stdbool.h>

// Sentences, without a newline. A job has many processes: the first of each node speaks for all.
void print_help(const char* happened, const char* follows, const char* to_do);

// The same, where the job may end for this reason: every process prints, because the first one that ends can end the
// others before they have printed.
void print_fatal_help(const char* happened, const char* follows, const char* to_do);

// One line, likewise; and one by the first process of the job alone.
void print_line(const char* line);
void print_job_line(const char* line);

// False, after a message, if this was built for another minor version of Open MPI. WHAT: the component, for instance
// "rcache grdma". FOLLOWS: who serves the process then.
bool check_version(const char* what, const char* follows);

#endif
