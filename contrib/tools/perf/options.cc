// SPDX-License-Identifier: BSD-3-Clause
// options.cc - the command line of pinrail_perf.
#include "contrib/tools/perf/options.h"

#include <getopt.h>

#include "contrib/tools/perf/text.h"

namespace pinrail::perf {

const char kHelp[] =
#include "contrib/tools/perf/perf_help.txt"
    ;

namespace {

constexpr uint64_t kMostRegions = 1u << 24, kMostThreads = 1024, kMostIterations = uint64_t{1} << 40;

enum Code { kMca = 256, kPool, kRegistrar, kSize, kRegions, kThreads, kIterations, kTrace, kJson, kHelpCode, kVersion };

const option kOptions[] = {{"mca", required_argument, nullptr, kMca},
                           {"pool", required_argument, nullptr, kPool},
                           {"registrar", required_argument, nullptr, kRegistrar},
                           {"size", required_argument, nullptr, kSize},
                           {"regions", required_argument, nullptr, kRegions},
                           {"threads", required_argument, nullptr, kThreads},
                           {"iterations", required_argument, nullptr, kIterations},
                           {"trace", required_argument, nullptr, kTrace},
                           {"json", no_argument, nullptr, kJson},
                           {"help", no_argument, nullptr, kHelpCode},
                           {"version", no_argument, nullptr, kVersion},
                           {nullptr, 0, nullptr, 0}};

Result wrong(const char* name, const char* value, const std::string& why) {
  return Result::bad(text("--%s: '%s' %s", name, value, why.c_str()));
}

Result name_option(const char* name, const char* value, std::string* into) {
  if (*value == '\0') return wrong(name, value, "is empty");
  *into = value;
  return Result::good();
}

template <typename Number>
Result number_option(const char* name, const char* value, uint64_t most, Number* into) {
  uint64_t number = 0;
  Result parsed = parse_number(value, 1, most, &number);
  if (!parsed.ok()) return wrong(name, value, parsed.why());
  *into = static_cast<Number>(number);
  return Result::good();
}

Result mca_option(int argc, char* const* argv, Options* options) {
  std::string why;
  return options->mca.take(optarg, argc, argv, &optind, &why) ? Result::good() : Result::bad(why);
}

Result size_option(const char* value, Options* options) {
  Result parsed = parse_size_list(value, &options->sizes);
  return parsed.ok() ? Result::good() : Result::bad(text("--size '%s': %s", value, parsed.why().c_str()));
}

Result take(int code, int argc, char* const* argv, Options* options) {
  switch (code) {
    case kMca: return mca_option(argc, argv, options);
    case kPool: return name_option("pool", optarg, &options->pool);
    case kRegistrar: return name_option("registrar", optarg, &options->registrar);
    case kSize: return size_option(optarg, options);
    case kRegions: return number_option("regions", optarg, kMostRegions, &options->regions);
    case kThreads: return number_option("threads", optarg, kMostThreads, &options->threads);
    case kIterations: return number_option("iterations", optarg, kMostIterations, &options->iterations);
    case kTrace: options->action = Action::replay; return name_option("trace", optarg, &options->trace);
    case kJson: options->json = true; return Result::good();
    default: return Result::bad("");
  }
}

// getopt's own messages name the program by argv[0]; ours say what is wrong with which word.
Result unusable(int code, const char* word) {
  if (code == ':') return Result::bad(text("%s: the value is missing", word));
  return Result::bad(text("'%s' is no option of pinrail_perf, or not used in this way", word));
}

}  // namespace

Result parse_options(int argc, char* const* argv, Options* options_out) {
  opterr = 0;
  optind = 0;  // glibc: begin anew, also in a process that has parsed before
  std::string table_only;
  for (;;) {
    const int before = optind == 0 ? 1 : optind;
    int index = 0;
    const int code = getopt_long(argc, argv, "+:h", kOptions, &index);  // NOLINT(concurrency-mt-unsafe): one thread
    if (code == -1) break;
    if (code == kHelpCode || code == 'h' || code == kVersion) {
      options_out->action = code == kVersion ? Action::version : Action::help;
      return Result::good();
    }
    if (code == '?' || code == ':') return unusable(code, argv[before]);
    Result taken = take(code, argc, argv, options_out);
    if (!taken.ok()) return taken;
    if (code == kSize || code == kRegions || code == kThreads || code == kIterations) table_only = kOptions[index].name;
  }
  if (optind < argc) return Result::bad(text("'%s' is one word too many", argv[optind]));
  if (options_out->action == Action::replay && !table_only.empty())
    return Result::bad(text("--%s has no meaning with --trace: the trace says what is done", table_only.c_str()));
  return Result::good();
}

}  // namespace pinrail::perf
