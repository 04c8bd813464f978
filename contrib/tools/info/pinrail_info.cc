// SPDX-License-Identifier: BSD-3-Clause
// pinrail_info - shows how this Pinrail was built, what it found, and how it is configured.
#include <pinrail/pinrail.h>

#include <exception>
#include <iostream>

#include "contrib/tools/info/monitors.h"
#include "contrib/tools/info/snapshot.h"

namespace {

using pinrail::info::Format;
using pinrail::info::Options;
using pinrail::info::Snapshot;

constexpr int kCannotStart = 1;
constexpr int kWrongUsage = 2;

int wrong_usage(const std::string& why) {
  std::cerr << "pinrail_info: " << why << "\nTry pinrail_info --help.\n";
  return kWrongUsage;
}

void print(const Options& options, const Snapshot& snapshot) {
  switch (options.format()) {
    case Format::text: print_text(options, snapshot, std::cout); break;
    case Format::parsable: print_parsable(options, snapshot, std::cout); break;
    case Format::json: print_json(options, snapshot, std::cout); break;
  }
}

int list(const Options& options) {
  const pinrail_status_t status = pinrail::tools::init(pinrail::tools::settings_of(options.mca));
  if (status != PINRAIL_SUCCESS) {
    std::cerr << "pinrail_info: Pinrail does not start: " << pinrail_status_name(status) << '\n';
    return kCannotStart;
  }
  const Snapshot snapshot = pinrail::info::take_snapshot();
  std::string why;
  const bool right = check_filters(options, snapshot, &why);
  if (right) print(options, snapshot);
  const bool failed = pinrail_finalize() != PINRAIL_SUCCESS;
  if (!right) return wrong_usage(why);
  return failed ? kCannotStart : 0;
}

int show_monitors(const Options& options) {
  pinrail::info::MonitorTable table;
  std::string why;
  if (!measure_monitors(pinrail::tools::settings_of(options.mca), &table, &why)) {
    std::cerr << why << "pinrail_info: Pinrail does not start\n";
    return kCannotStart;
  }
  print_monitors(options.format(), table, std::cout);
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  if (const auto status = read_options(argc, argv, &options, std::cout, std::cerr)) return *status;
  return options.monitors ? show_monitors(options) : list(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return pinrail::tools::close_output("pinrail_info", run(argc, argv));
  } catch (const std::exception& failure) {
    std::cerr << "pinrail_info: " << failure.what() << '\n';
    return kCannotStart;
  }
}
