// SPDX-License-Identifier: BSD-3-Clause
// report.h - prints the results, as text or as JSON, to standard output.
#ifndef PINRAIL_TOOLS_PERF_REPORT_H
#define PINRAIL_TOOLS_PERF_REPORT_H

#include <vector>

#include "contrib/tools/perf/replay.h"
#include "contrib/tools/perf/table.h"

namespace pinrail::perf {

void print_table(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                 const Errors& errors);
void print_replay(const Options& options, const ReplayedTrace& replayed);
// Several traces, or each beside its exact replay: a line each.
void print_replays(const Options& options, const std::vector<ReplayedTrace>& replayed);

// The same as JSON.
void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors);
void print_replay_json(const Options& options, const ReplayedTrace& replayed);
void print_replays_json(const Options& options, const std::vector<ReplayedTrace>& replayed);

// The first line of the text, and a line that says why no program on this machine can keep registrations, if so.
void print_facts(const PoolFacts& facts);
bool print_nothing_kept(const PoolFacts& facts);

}  // namespace pinrail::perf

#endif
