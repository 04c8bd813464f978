// SPDX-License-Identifier: BSD-3-Clause
// command_line.h - the options of a program: each is declared once, with its help. CLI11 reads and checks them.
//
//   CommandLine line("pinrail_info", "Shows what this Pinrail is.", "Exit status: ...");
//   line.flag("--json", "one JSON document", &json);
//   line.number("--level", "N", "parameters up to that level", 1, 9, &level);
//   if (const std::optional<int> status = line.read(argc, argv, std::cout, std::cerr)) return *status;
//
// Every program also has -h and --help, -V and --version, and --mca NAME VALUE.
//
// Threads  one at a time.
//
// command_line/L1  read() returns nothing if the program is to go on; 0 after --help and --version; 2 for a command
// line
//     that is wrong, after one line that names the program and the word. Nothing is written to out then.
// command_line/L2  Of an option that has one value and is given twice, the last one counts.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_COMMAND_LINE_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_COMMAND_LINE_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace pinrail::tools {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// For pinrail_init(); the strings stay those of the pairs.
std::vector<pinrail_setting_t> settings_of(const Pairs& mca);

class CommandLine {
 public:
  // Returns "" or what is wrong, which names the value.
  using Take = std::function<std::string(const std::string& value)>;

  // notes follow the list of options in the help. mca_out receives what --mca said.
  CommandLine(std::string program, const char* purpose, const char* notes, Pairs* mca_out);
  ~CommandLine();

  void flag(const char* names, const char* help, bool* out);
  void value(const char* names, const char* what, const char* help, Take take);
  void text(const char* names, const char* what, const char* help, std::string* out);  // not empty
  void pairs(const char* names, const char* what, const char* help, Pairs* out);       // may be repeated
  void exclude(const char* name, const char* other);

  template <typename Number>
  void number(const char* names, const char* what, const char* help, uint64_t least, uint64_t most, Number* out) {
    bounded(names, what, help, least, most, [out](uint64_t typed) { *out = static_cast<Number>(typed); });
  }

  std::optional<int> read(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

 private:
  struct Parser;
  int refuse(const std::string& why, std::ostream& err) const;
  void bounded(const char* names, const char* what, const char* help, uint64_t least, uint64_t most,
               std::function<void(uint64_t)> take);

  const std::string program_;
  const std::unique_ptr<Parser> parser_;
};

// The exit status of a program that has written all to standard output: status, or 1 after a line that says why not all
// of it arrived.
int close_output(const char* program, int status);

}  // namespace pinrail::tools

#endif
