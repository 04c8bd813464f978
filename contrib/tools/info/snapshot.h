// SPDX-License-Identifier: BSD-3-Clause
// snapshot.h - what the library tells of itself, and the words to show it in.
//
// Strings belong to the library and live until pinrail_finalize().
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_SNAPSHOT_H
#define PINRAIL_CONTRIB_TOOLS_INFO_SNAPSHOT_H

#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <string>
#include <vector>

#include "contrib/tools/info/options.h"

namespace pinrail::info {

struct Snapshot {
  std::vector<pinrail_build_fact_t> facts;
  pinrail_machine_t machine{};
  std::vector<pinrail_component_info_t> components;
  std::vector<pinrail_param_info_t> params;
  std::vector<const pinrail_stat_info_t*> stats;
  std::string monitors;                             // of host memory that see something, with commas
  std::vector<pinrail_memory_kind_t> memory_kinds;  // what is kept with them
};

// Between init and finalize.
Snapshot take_snapshot();

// Sizes of hugepages, in bytes.
std::vector<uint64_t> hugepage_sizes(const pinrail_machine_t& machine);

// A parameter file and what it is for.
struct ParamFile {
  const char* role;
  std::string path;
};
// Weakest first; "" for one that this user has not.
std::vector<ParamFile> param_files(const Snapshot& snapshot);

// The names under which a parameter is filed: those of the base are of framework "mca", those of a framework of
// component "base".
std::string framework_of(const pinrail_param_info_t& param);
std::string component_of(const pinrail_param_info_t& param);
std::string short_name_of(const pinrail_param_info_t& param);

const char* type_name(pinrail_param_type_t type);
const char* scope_name(pinrail_param_scope_t scope);
// "environment", "file /etc/x.conf line 3"
const char* source_name(const pinrail_param_info_t& param);
std::string source_text(const pinrail_param_info_t& param);
// "open", "not selected", "NOT_AVAILABLE: does not open: ..."
std::string state_text(const pinrail_component_info_t& component);

// Whether the options ask for it. What a filter names is shown with the framework's and component's own words.
bool wants(const Options& options, const pinrail_param_info_t& param);
bool wants(const Options& options, const pinrail_component_info_t& component);

// A filter that nothing answers to: "there is no framework ...".
bool check_filters(const Options& options, const Snapshot& snapshot, std::string* why_out);

// Frameworks in the order of the library.
std::vector<std::string> frameworks(const Snapshot& snapshot);

}  // namespace pinrail::info

#endif
