// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/options.h"

#include <getopt.h>

#include <cstdio>
#include <cstdlib>

#include "test/oracle/choice.h"

namespace pinrail::oracle {
namespace {

enum Code {
  kSeconds = 256,
  kMinutes,
  kThreads,
  kMonitor,
  kMutant,
  kSeed,
  kRegistrar,
  kEvents,
  kRaw,
  kLargest,
  kSizeLimit,
  kMca,
  kHelp
};

constexpr option kOptions[] = {{"seconds", required_argument, nullptr, kSeconds},
                               {"minutes", required_argument, nullptr, kMinutes},
                               {"threads", required_argument, nullptr, kThreads},
                               {"monitor", required_argument, nullptr, kMonitor},
                               {"mutant", required_argument, nullptr, kMutant},
                               {"seed", required_argument, nullptr, kSeed},
                               {"registrar", required_argument, nullptr, kRegistrar},
                               {"events", required_argument, nullptr, kEvents},
                               {"raw", no_argument, nullptr, kRaw},
                               {"largest", required_argument, nullptr, kLargest},
                               {"size-limit", required_argument, nullptr, kSizeLimit},
                               {"mca", required_argument, nullptr, kMca},
                               {"help", no_argument, nullptr, kHelp},
                               {nullptr, 0, nullptr, 0}};

std::string wrong(const char* name, const char* value, const char* wanted) {
  return std::string("--") + name + " \"" + value + "\": " + wanted;
}

// Seconds, from a number of some unit.
std::string take_time(const char* name, const char* value, double unit, Options* options) {
  constexpr double kWeek = 7 * 24 * 3600;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end) * unit;
  if (*value == '\0' || *end != '\0' || !(seconds > 0) || seconds > kWeek) {
    return wrong(name, value, "a number above 0 is wanted, a week at most");
  }
  options->seconds = seconds;
  return "";
}

std::string take_number(const char* name, const char* value, uint64_t least, uint64_t most, uint64_t* out) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(value, &end, 10);
  const bool is_number = *value >= '0' && *value <= '9' && *end == '\0';
  if (is_number && number >= least && number <= most) {
    *out = number;
    return "";
  }
  return wrong(name, value, ("a number from " + std::to_string(least) + " to " + std::to_string(most)).c_str());
}

// Kibibytes, for sizes of whole pages.
std::string take_kibibytes(const char* name, const char* value, uint64_t least, uint64_t most, size_t* bytes_out) {
  uint64_t number = 0;
  const std::string why = take_number(name, value, least, most, &number);
  if (why.empty()) *bytes_out = static_cast<size_t>(number) << 10;
  return why;
}

std::string take_mutant(const char* value, Options* options) {
  if (std::string(value) == "list") {
    options->action = Action::list_mutants;
    return "";
  }
  options->mutant = tools::find_memory_event(value);
  if (options->mutant != nullptr && is_mutant(*options->mutant)) return "";
  return wrong("mutant", value,
               options->mutant == nullptr ? "no such event; --mutant list names them"
                                          : "after this event registrations are good, dropped or not");
}

std::string take(int code, const char* name, int argc, char** argv, Options* options) {
  uint64_t number = 0;
  std::string why;
  switch (code) {
    case kSeconds: return take_time(name, optarg, 1, options);
    case kMinutes: return take_time(name, optarg, 60, options);
    case kThreads:
      why = take_number(name, optarg, 1, 64, &number);
      options->threads = static_cast<unsigned>(number);
      return why;
    case kMonitor: options->monitor = optarg; return *optarg == '\0' ? wrong(name, optarg, "is empty") : "";
    case kMutant: return take_mutant(optarg, options);
    case kSeed: return take_number(name, optarg, 1, UINT64_MAX, &options->seed);
    case kRegistrar: options->registrar = optarg; return "";
    case kEvents: options->events = optarg; return unknown_event(optarg);
    case kRaw: options->raw_calls = RawCalls::yes; return "";
    case kLargest: return take_kibibytes(name, optarg, 64, 16384, &options->largest);
    case kSizeLimit: return take_kibibytes(name, optarg, 1024, uint64_t{1} << 30, &options->size_limit);
    case kMca: return options->mca.take(optarg, argc, argv, &optind, &why) ? "" : why;
    case kHelp: options->action = Action::help; return "";
    default: return "";
  }
}

}  // namespace

std::string parse(int argc, char** argv, Options* options) {
  opterr = 0;
  for (;;) {
    const int before = optind;
    int index = 0;
    const int code = getopt_long(argc, argv, "+:", kOptions, &index);  // NOLINT(concurrency-mt-unsafe): no thread yet
    if (code == -1) break;
    if (code == ':') return std::string(argv[before]) + ": the value is missing";
    if (code == '?') return std::string("\"") + argv[before] + "\" is no option of the oracle";
    const std::string why = take(code, kOptions[index].name, argc, argv, options);
    if (!why.empty() || options->action == Action::help) return why;
  }
  return optind < argc ? std::string("\"") + argv[optind] + "\" is one word too many" : "";
}

}  // namespace pinrail::oracle
