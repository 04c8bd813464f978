// SPDX-License-Identifier: BSD-3-Clause
// mca_options.h - collects `--mca NAME VALUE` pairs of a command line for pinrail_init().
//
//   case kMca:
//     if (!mca.take(optarg, argc, argv, &optind, &why)) return usage_error(why);
//   ...
//   pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
//   options.settings = mca.settings().data();
//   options.setting_count = mca.settings().size();
//
// Threads  one at a time.
//
// mca_options/M1  The strings of settings() live as long as the object, whatever is added later; the array until the
//     next add.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_MCA_OPTIONS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_MCA_OPTIONS_H

#include <pinrail/pinrail.h>

#include <deque>
#include <string>
#include <vector>

namespace pinrail::tools {

class McaOptions {
 public:
  McaOptions() = default;
  McaOptions(const McaOptions&) = delete;
  McaOptions& operator=(const McaOptions&) = delete;

  // False and a reason for a name that no parameter can have. Values are checked by pinrail_init().
  bool add(const std::string& name, const std::string& value, std::string* why_out);

  // With getopt_long, whose options have one argument: name is that one, the value is the next word of the command
  // line, which next (getopt's optind) is moved behind.
  bool take(const char* name, int argc, char* const* argv, int* next, std::string* why_out);

  const std::vector<pinrail_setting_t>& settings() const { return settings_; }

 private:
  std::deque<std::string> texts_;
  std::vector<pinrail_setting_t> settings_;
};

}  // namespace pinrail::tools

#endif
