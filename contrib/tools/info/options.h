// SPDX-License-Identifier: BSD-3-Clause
// options.h - the command line of pinrail_info.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_OPTIONS_H
#define PINRAIL_CONTRIB_TOOLS_INFO_OPTIONS_H

#include "contrib/tools/common/command_line.h"

namespace pinrail::info {

constexpr int kUsualLevel = 3;
constexpr int kHighestLevel = 9;
constexpr const char* kAll = "all";

enum class Format { text, parsable, json };

struct Options {
  bool monitors = false;
  bool parsable = false;
  bool json = false;
  bool all = false;
  int level = 0;        // 0: kHighestLevel with --all, else kUsualLevel
  tools::Pairs params;  // (framework, component); "all" matches every name
  tools::Pairs mca;

  Format format() const { return json ? Format::json : parsable ? Format::parsable : Format::text; }
  int highest_level() const { return level != 0 ? level : (all ? kHighestLevel : kUsualLevel); }
  // Whether parameters are to be listed.
  bool lists_params() const { return all || !params.empty() || level != 0; }
};

// Reads the command line; returns as CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

}  // namespace pinrail::info

#endif
