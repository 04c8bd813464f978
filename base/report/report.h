// SPDX-License-Identifier: BSD-3-Clause
// report.h - messages for users: one-line logs with a verbosity, and help texts of three lines.
//
// Threads  All functions may run together. They may throw std::bad_alloc; the API catches it.
// Context  start-up or API; debug builds end the program if a hook calls log() or help().
//
// A help catalogue is a text with topics in brackets and three lines below each. {name} is replaced by an argument's
// value:
//   [registrar refused]
//   What happened  ibv_reg_mr refused {bytes} ...
//   What follows   ...
//   What to do     ...
//
// Each message reaches stderr in one write, so that lines of many processes are not mixed. Texts of others cannot
// control a terminal: control characters are shown as '?'.
//
// report/T3  No lock of this file is held while a message is passed on.
#ifndef PINRAIL_BASE_REPORT_REPORT_H
#define PINRAIL_BASE_REPORT_REPORT_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace pinrail::report {

// Writes one line to stderr, "[pinrail:<channel>] <line>", if level <= verbosity; ERROR and WARN always. channel:
// "grdma", "loader", ...
void log(std::string_view channel, int verbosity, int level, std::string_view line);

// Returns the catalogue's topic with the arguments filled in; empty if there is no such topic. A {name} without an
// argument stays as it is. Braces inside a value are not replaced. A line break in a value continues in the text's
// column.
std::string render(std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
                   size_t arg_count);

// Prints a topic to stderr with the channel's mark. Equal texts are printed once per process. If the catalogue lacks
// the topic, a message with the arguments says so.
void help(std::string_view channel, std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
          size_t arg_count);
inline void help(std::string_view channel, std::string_view catalogue, std::string_view topic,
                 std::initializer_list<pinrail_help_arg_t> args) {
  help(channel, catalogue, topic, args.begin(), args.size());
}

// The same, each time: the caller bounds how often.
void help_again(std::string_view channel, std::string_view catalogue, std::string_view topic,
                std::initializer_list<pinrail_help_arg_t> args);

// The same with the catalogue of base (base/report/base_help.txt).
void help(std::string_view topic, std::initializer_list<pinrail_help_arg_t> args);

// Returns the catalogue of base.
std::string_view base_catalogue();

// Sends all later messages to the function; NULL: to stderr.
void divert(pinrail_message_t function, void* arg);

// Forgets which texts were printed; for tests and for a new init.
void forget();
// In a forked child: makes the lock and the list of printed texts anew.
void fork_reinit();

}  // namespace pinrail::report

#endif
