// SPDX-License-Identifier: BSD-3-Clause
// tell.h - messages for people, three lines each, once on every node.
#ifndef PINRAIL_OPENMPI_TELL_H
#define PINRAIL_OPENMPI_TELL_H

// Sentences, without a newline. A job has many processes: the first of each node speaks for all.
void print_help(const char* happened, const char* follows, const char* to_do);

#endif
