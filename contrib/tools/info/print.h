// SPDX-License-Identifier: BSD-3-Clause
// print.h - the three ways to show a snapshot.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_PRINT_H
#define PINRAIL_CONTRIB_TOOLS_INFO_PRINT_H

#include <ostream>
#include <string>
#include <string_view>

#include "contrib/tools/common/json.h"
#include "contrib/tools/info/options.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {

// Prints text for people.
void print_text(const Options& options, const Snapshot& snapshot, std::ostream& out);

// Prints one fact per line, its fields separated by colons: mca:mpool:grdma:param:size_limit:value:8M. A field with a
// colon, a quote, a backslash or a line break is quoted, with \ before quotes and backslashes.
void print_parsable(const Options& options, const Snapshot& snapshot, std::ostream& out);
std::string parsable_field(std::string_view text);

tools::Json document_of(const Options& options, const Snapshot& snapshot);

}  // namespace pinrail::info

#endif
