// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/info/options.h"

#include <getopt.h>

#include <array>

namespace pinrail::info {
namespace {

enum Option : int {
  kAllOption = 'a',
  kHelp = 'h',
  kVersion = 'V',
  kLevel = 256,
  kParam,
  kParsable,
  kJson,
  kMca,
  kMonitors
};

constexpr std::array<option, 11> kOptions = {{{"all", no_argument, nullptr, kAllOption},
                                              {"help", no_argument, nullptr, kHelp},
                                              {"version", no_argument, nullptr, kVersion},
                                              {"level", required_argument, nullptr, kLevel},
                                              {"param", required_argument, nullptr, kParam},
                                              {"parsable", no_argument, nullptr, kParsable},
                                              {"parseable", no_argument, nullptr, kParsable},
                                              {"json", no_argument, nullptr, kJson},
                                              {"monitors", no_argument, nullptr, kMonitors},
                                              {"mca", required_argument, nullptr, kMca},
                                              {nullptr, 0, nullptr, 0}}};

bool take_level(const std::string& text, Options* options, std::string* why_out) {
  if (text.size() == 1 && text[0] >= '1' && text[0] <= '9') {
    options->level = text[0] - '0';
    return true;
  }
  *why_out = "--level " + text + ": give a number from 1 to 9";
  return false;
}

// getopt knows options of one argument: the second one is the word behind it.
bool take_param(const std::string& framework, int argc, char** argv, Options* options, std::string* why_out) {
  if (optind >= argc) {
    *why_out = "--param " + framework + ": the component is missing; give its name or all";
    return false;
  }
  options->params.push_back({framework, argv[optind++]});
  return true;
}

bool take_format(Format format, Options* options, std::string* why_out) {
  if (options->format != Format::text && options->format != format) {
    *why_out = "--parsable and --json exclude each other";
    return false;
  }
  options->format = format;
  return true;
}

// What getopt found wrong, in words that name the option as it was typed.
std::string complaint(int code, char** argv) {
  const std::string word = argv[optind - 1];
  const bool is_long = word.compare(0, 2, "--") == 0;
  const std::string typed = is_long ? word : std::string("-") + static_cast<char>(optopt);
  return code == ':' ? typed + ": its argument is missing" : typed + ": there is no such option";
}

bool take_option(int code, int argc, char** argv, Options* options, std::string* why_out) {
  switch (code) {
    case kAllOption: options->all = true; return true;
    case kHelp: options->action = Action::help; return true;
    case kVersion: options->action = Action::version; return true;
    case kLevel: return take_level(optarg, options, why_out);
    case kParam: return take_param(optarg, argc, argv, options, why_out);
    case kParsable: return take_format(Format::parsable, options, why_out);
    case kJson: return take_format(Format::json, options, why_out);
    case kMonitors: options->action = Action::monitors; return true;
    case kMca: return options->mca.take(optarg, argc, argv, &optind, why_out);
    default: *why_out = complaint(code, argv); return false;
  }
}

}  // namespace

bool parse_options(int argc, char** argv, Options* options_out, std::string* why_out) {
  // The leading + stops at the first word that is no option, the : tells a missing argument from an unknown option.
  int code = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before any thread.
  while ((code = getopt_long(argc, argv, "+:ahV", kOptions.data(), nullptr)) != -1) {
    if (!take_option(code, argc, argv, options_out, why_out)) return false;
    if (options_out->action == Action::help || options_out->action == Action::version) return true;
  }
  if (optind == argc && options_out->action == Action::monitors && options_out->lists_params()) {
    *why_out = "--monitors: it lists no parameters; leave --all, --param and --level out";
    return false;
  }
  if (optind == argc) return true;
  *why_out = std::string(argv[optind]) + ": only options are expected";
  return false;
}

}  // namespace pinrail::info
