// SPDX-License-Identifier: BSD-3-Clause
// pinrail_advise.cc - reads recorded traces and says what to set, and what that saves.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/common/program.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

namespace {

constexpr char kPurpose[] =
    "Reads recorded traces (mpool_base_record, pinrun --record) and says in words why requests miss the cache, what to "
    "set, and what that saves. Each figure of a setting comes from a replay through a real pool, whose registrar only "
    "counts: pinrail_perf --trace FILE --registrar none with the settings of its header prints the same.";

constexpr char kNotes[] =
    "Exit status: 0 all is well; 1 a trace was left out, for it cannot be read or replayed, or the page cannot be "
    "written: a line says why; 2 the command line is wrong.\n";

struct Options {
  perf::Options replay;
  std::string page;
};

std::optional<int> read_options(int argc, const char* const* argv, Options* o) {
  tools::CommandLine line("pinrail_advise", kPurpose, kNotes, &o->replay.mca);
  line.texts("FILE", "", "Recorded traces, plain or .xz.", &o->replay.traces);
  line.text("--html", "FILE", "Write a page with pictures, which loads nothing else.", &o->page);
  line.value("--cost", "CALL,PAGE",
             "What a device takes, in nanoseconds: for a register call, and for each of its pages. Default: 8000,69.5.",
             [o](const std::string& typed) { return perf::take_cost(typed, &o->replay.cost); });
  return line.read(argc, argv, std::cout, std::cerr);
}

int complain(const std::string& why) {
  fprintf(stderr, "pinrail_advise: %s\n", why.c_str());
  return 1;
}

// False: the file has other contents than a page, as where the page's name was left out before the traces.
bool may_become_page(const std::string& file) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) return true;  // /dev/stdout
  std::string line;
  std::ifstream there(file);
  return !std::getline(there, line) || line == "<!DOCTYPE html>";
}

void print(const std::vector<Advised>& all, const perf::CostModel& cost) {
  for (const Advised& each : all) {
    printf("%s%s%s%s\n", tools::name_of_trace(each.file).c_str(), each.program.empty() ? "" : " (",
           each.program.c_str(), each.program.empty() ? "" : ")");
    for (const std::string& sentence : sentences_of(each, cost)) printf("  - %s\n", sentence.c_str());
    printf("\n");
  }
  printf("For $HOME/.pinrail/mca-params.conf:\n\n%s", parameters_of(all, cost).c_str());
}

int run(int argc, char** argv) {
  Options options;
  options.replay.registrar = perf::Device::kNone;
  if (const auto status = read_options(argc, argv, &options)) return *status;
  if (options.replay.traces.empty()) return complain("no trace is named (pinrail_advise --help)") + 1;
  if (!may_become_page(options.page))
    return complain(options.page + " exists and is no page: --html is followed by the page's name") + 1;
  // A limit that refuses requests is reported by the pool that is tried with it; that is a figure here.
  const perf::Messages messages({"grdma never fits", "grdma no room"});
  std::vector<Advised> all;
  int status = 0;
  for (const std::string& file : options.replay.traces) {
    const perf::Result tried = try_all(options.replay, file, &all.emplace_back());
    if (tried.ok()) continue;
    status = complain(tried.why());
    all.pop_back();
  }
  if (all.empty()) return status;
  print(all, options.replay.cost);
  if (options.page.empty()) return status;
  std::ofstream page(options.page);
  page << page_of(all, options.replay.cost);
  page.close();
  return page ? status : complain(options.page + " cannot be written: " + perf::errno_text());
}

}  // namespace

}  // namespace pinrail::advise

int main(int argc, char** argv) {
  try {
    return pinrail::tools::close_output("pinrail_advise", pinrail::advise::run(argc, argv));
  } catch (const std::exception& failure) {  // out of memory
    fprintf(stderr, "pinrail_advise: %s\n", failure.what());
    return 1;
  }
}
