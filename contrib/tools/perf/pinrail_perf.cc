// SPDX-License-Identifier: BSD-3-Clause
// pinrail_perf.cc - measures and checks a registration cache on this machine.
#include <cstdio>
#include <exception>
#include <iostream>
#include <vector>

#include "contrib/tools/perf/report.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

enum Exit { kGood = 0, kBad = 1 };

int complain(const std::string& what) {
  fprintf(stderr, "pinrail_perf: %s\n", what.c_str());
  return kBad;
}

// Reports a pool that cannot be destroyed as the last check.
int finish(Session* session, Errors* errors) {
  const bool keeps_nothing = !Session::why_not_kept().empty();
  const Result closed = session->close();
  if (!closed.ok()) errors->add(closed.why());
  return errors->count() == 0 && !keeps_nothing ? kGood : kBad;
}

int table(const Options& options) {
  Session session;
  const Result opened = session.open(options);
  if (!opened.ok()) return complain(opened.why());
  Errors errors;
  Table table(options, session, &errors);
  const std::vector<Row> rows = table.run();
  if (options.json)
    print_table_json(options, session, table, rows, errors);
  else
    print_table(options, session, table, rows, errors);
  return finish(&session, &errors);
}

int replay(const Options& options) {
  std::vector<ReplayedTrace> replayed;
  const Result ran = replay_all(options, &replayed);
  if (!ran.ok()) return complain(ran.why());
  if (replayed.empty()) return kBad;
  const bool is_one = options.traces.size() == 1 && !options.compare;
  if (options.json)
    is_one ? print_replay_json(options, replayed[0]) : print_replays_json(options, replayed);
  else
    is_one ? print_replay(options, replayed[0]) : print_replays(options, replayed);
  for (const ReplayedTrace& each : replayed)
    if (!each.is_good()) return kBad;
  return replayed.size() == options.traces.size() ? kGood : kBad;
}

int scenario(const Options& given) {
  Options options = given;
  if (options.pool.empty()) options.pool = pool_of_scenario(options.scenario);
  Session session;
  const Result opened = session.open(options);
  if (!opened.ok()) return complain(opened.why());
  if (!Session::why_not_kept().empty()) return complain("nothing is kept registered here: " + Session::why_not_kept());
  Figures figures;
  const Result ran = run_scenario(options, session, &figures);
  if (!ran.ok()) return complain("scenario " + options.scenario + ": " + ran.why());
  print_scenario(options, session, figures);
  Errors errors;
  const int status = finish(&session, &errors);
  return figures.are_reached() ? status : kBad;
}

int doctor(const Options& options) {
  const std::vector<Finding> findings = examine(options);
  print_findings(findings, std::cout);
  for (const Finding& finding : findings)
    if (finding.verdict == Verdict::wrong) return kBad;
  return kGood;
}

int run(int argc, char** argv) {
  Options options;
  if (const auto status = read_options(argc, argv, &options, std::cout, std::cerr)) return *status;
  if (options.doctor) return doctor(options);
  if (!options.scenario.empty()) return scenario(options);
  return options.traces.empty() ? table(options) : replay(options);
}

}  // namespace

}  // namespace pinrail::perf

int main(int argc, char** argv) {
  try {
    return pinrail::tools::close_output("pinrail_perf", pinrail::perf::run(argc, argv));
  } catch (const std::exception& failure) {  // out of memory
    fprintf(stderr, "pinrail_perf: %s\n", failure.what());
    return 1;
  }
}
