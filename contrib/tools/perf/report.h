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
void print_replay(const Options& options, const Session& session, const Trace& trace, const Replay& replay,
                  const Errors& errors);

// The same as JSON.
void print_table_json(const Options& options, const Session& session, const Table& table, const std::vector<Row>& rows,
                      const Errors& errors);
void print_replay_json(const Options& options, const Session& session, const Replay& replay, const Errors& errors);

}  // namespace pinrail::perf

#endif
