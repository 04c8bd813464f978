// SPDX-License-Identifier: BSD-3-Clause
// report.h - what people are told: one-line logs with verbosity, and help texts of three lines.
//
// Threads  all functions may run together. Not in hook context. std::bad_alloc may leave them: C faces catch it.
//
// A help catalogue is text: topics in brackets, three lines below each, {name} filled from the arguments:
//   [registrar refused]
//   What happened  ibv_reg_mr refused {bytes} ...
//   What follows   ...
//   What to do     ...
//
// report/T1  Everything that is said at once reaches stderr in one write, so that lines of many processes stay whole.
// report/T3  No lock of this file is held while a message is passed on.
// report/T2  Texts of others cannot drive a terminal: control characters are shown as '?'.
#ifndef PINRAIL_BASE_REPORT_REPORT_H
#define PINRAIL_BASE_REPORT_REPORT_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace pinrail::report {

// One line to stderr, "[pinrail:<channel>] <line>", if level <= verbosity; ERROR and WARN always. Channel: "grdma",
// "loader", ...
void log(std::string_view channel, int verbosity, int level, std::string_view line);

// The topic of the catalogue, filled; empty if there is no such topic. A {name} that no argument has stays as it is;
// one in a value is not filled again. A line break in a value goes on in the text's column.
std::string render(std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
                   size_t arg_count);

// Prints a topic to stderr, framed by the channel; equal texts only once per process. A topic that the catalogue lacks
// is said to be missing, with its arguments: what happened is not lost.
void help(std::string_view channel, std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
          size_t arg_count);

// As above from the base's own catalogue (base/report/base_help.txt).
void help(std::string_view topic, std::initializer_list<pinrail_help_arg_t> args);

// The base's own catalogue.
std::string_view base_catalogue();

// Where messages go from now on; NULL: to stderr.
void divert(pinrail_message_t function, void* arg);

// Forgets what was said; for tests and for a new init.
void forget();
// In a forked child: the same, whoever held the lock.
void fork_reinit();

}  // namespace pinrail::report

#endif
