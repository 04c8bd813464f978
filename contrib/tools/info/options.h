// SPDX-License-Identifier: BSD-3-Clause
// options.h - the command line of pinrail_info.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_OPTIONS_H
#define PINRAIL_CONTRIB_TOOLS_INFO_OPTIONS_H

#include <string>
#include <vector>

#include "contrib/tools/common/mca_options.h"

namespace pinrail::info {

constexpr int kUsualLevel = 3;
constexpr int kHighestLevel = 9;
constexpr const char* kAll = "all";

enum class Format { text, parsable, json };
enum class Action { list, monitors, help, version };

// Parameters of one component; "all" stands for every framework or component.
struct ParamFilter {
  std::string framework, component;
};

struct Options {
  Action action = Action::list;
  Format format = Format::text;
  bool all = false;
  int level = 0;  // 0: as the command line is silent, all of --all and the usual ones otherwise
  std::vector<ParamFilter> params;
  tools::McaOptions mca;

  int highest_level() const { return level != 0 ? level : (all ? kHighestLevel : kUsualLevel); }
  // Whether anything but the overview was asked for.
  bool lists_params() const { return all || !params.empty() || level != 0; }
};

// False and a reason for a command line that is wrong.
bool parse_options(int argc, char** argv, Options* options_out, std::string* why_out);

}  // namespace pinrail::info

#endif
