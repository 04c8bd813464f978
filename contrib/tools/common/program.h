// SPDX-License-Identifier: BSD-3-Clause
// program.h - what the programs of the tools have in common. The options of a program: each is declared once, with its
// help; CLI11 parses and checks them. And why requests missed, for people and for programs.
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
// read() returns nothing if the program shall continue; 0 after --help and --version; 2 for an invalid command line,
// after one line on `err` that names the program and the word. In that case nothing is written to `out`. If an option
// with one value is given twice, the last value counts.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_PROGRAM_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_PROGRAM_H

#include <pinrail/pinrail.h>
#include <pinrail/stats.h>

#include <array>
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

// Converts --mca pairs for pinrail_init(). The strings stay those of the pairs, which must outlive the result.
std::vector<pinrail_setting_t> settings_of(const Pairs& mca);

// Calls pinrail_init() with the settings of a command line; defaults: what other settings override. Nothing is recorded
// (mpool_base_record) unless the command line says so.
pinrail_status_t init(const std::vector<pinrail_setting_t>& settings,
                      const std::vector<pinrail_setting_t>& defaults = {});

class CommandLine {
 public:
  // Takes an option's value. Returns "", or a clause that names the value and its fault.
  using Take = std::function<std::string(const std::string& value)>;

  // notes: text after the list of options in the help. mca_out receives the pairs of --mca.
  CommandLine(std::string program, const char* purpose, const char* notes, Pairs* mca_out);
  ~CommandLine();

  void flag(const char* names, const char* help, bool* out);
  void value(const char* names, const char* what, const char* help, Take take);
  void argument(const char* name, const char* help, Take take);  // without dashes; required; in the order of calls
  void text(const char* names, const char* what, const char* help, std::string* out);                // not empty
  void texts(const char* names, const char* what, const char* help, std::vector<std::string>* out);  // one or more
  void pairs(const char* names, const char* what, const char* help, Pairs* out);                     // may be repeated
  void exclude(const char* name, const char* other);
  void need(const char* name, const char* other);

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

// Flushes standard output. Returns the status, or 1, after a line that says why, if output was lost.
int close_output(const char* program, int status);

// By pinrail_miss_reason_t.
using Misses = std::array<uint64_t, PINRAIL_MISS_REASONS>;
Misses misses_of(const pinrail_mpool_stats_t& stats);

// The reasons that occurred, the most frequent first.
std::vector<uint32_t> reasons_of(const Misses& misses);

// "evicted 75.0 %, cold 25.0 %": at most so many; "-": there is none.
std::string reasons_text(const Misses& misses, size_t most = PINRAIL_MISS_REASONS);

// For programs: "evicted" of the statistic misses_evicted.
std::string reason_key(uint32_t reason);

}  // namespace pinrail::tools

#endif
