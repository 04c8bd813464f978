// SPDX-License-Identifier: BSD-3-Clause
// snapshot.h - what the library reports about itself, the words to show it, and the three ways to show it.
//
// The strings belong to the library and live until pinrail_finalize().
// And the command line, which says what of it is shown.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_SNAPSHOT_H
#define PINRAIL_CONTRIB_TOOLS_INFO_SNAPSHOT_H

#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "contrib/tools/common/program.h"

namespace pinrail::info {

constexpr int kUsualLevel = 3;
constexpr int kHighestLevel = 9;
constexpr const char* kAll = "all";

enum class Format { text, parsable, json };

struct Options {
  bool monitors = false;
  bool parsable = false;
  bool json = false;
  bool all = false;
  int level = 0;        // 0: kHighestLevel with --all, else kUsualLevel
  tools::Pairs params;  // (framework, component); "all" matches every name
  tools::Pairs mca;

  Format format() const { return json ? Format::json : parsable ? Format::parsable : Format::text; }
  int highest_level() const { return level != 0 ? level : (all ? kHighestLevel : kUsualLevel); }
  // Whether parameters are to be listed.
  bool lists_params() const { return all || !params.empty() || level != 0; }
};

// Reads the command line; returns as CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

struct Passed {  // a component that is not used
  std::string framework, name, why;
};

struct Choice {
  std::string pool, registrar;  // empty: no pool can be created
  std::string why_none;
  std::string monitors;  // names separated by commas; empty: none is at work
  std::vector<Passed> passed;
};

// Finds the choice by trial; between init and finalize, while no other pool exists.
Choice find_choice(const std::vector<pinrail_component_info_t>& components);

struct Snapshot {
  Choice choice;
  std::vector<pinrail_build_fact_t> facts;
  pinrail_machine_t machine{};
  std::vector<pinrail_component_info_t> components;
  std::vector<pinrail_param_info_t> params;
  std::vector<const pinrail_stat_info_t*> stats;
  std::string monitors;                             // names of the working monitors of host memory, with commas
  std::vector<pinrail_memory_kind_t> memory_kinds;  // which kinds are kept with these monitors
};

// Reads everything from the library; between init and finalize.
Snapshot take_snapshot();

// The sizes of huge pages, in bytes.
std::vector<uint64_t> hugepage_sizes(const pinrail_machine_t& machine);

// A parameter file and its role.
struct ParamFile {
  const char* role;
  std::string path;
};
// The parameter files in rising precedence; the path is "" if this user has no such file.
std::vector<ParamFile> param_files(const Snapshot& snapshot);

// The framework, component and short name under which a parameter is shown: parameters of the base have framework
// "mca", those of a framework have component "base".
std::string framework_of(const pinrail_param_info_t& param);
std::string component_of(const pinrail_param_info_t& param);
std::string short_name_of(const pinrail_param_info_t& param);

const char* type_name(pinrail_param_type_t type);
const char* scope_name(pinrail_param_scope_t scope);
// "environment", "file /etc/x.conf line 3"
const char* source_name(const pinrail_param_info_t& param);
std::string source_text(const pinrail_param_info_t& param);
// "open", "not selected", "does not open: NOT_AVAILABLE (...)"
std::string state_text(const pinrail_component_info_t& component);

// Whether the options select the parameter or the component.
bool wants(const Options& options, const pinrail_param_info_t& param);
bool wants(const Options& options, const pinrail_component_info_t& component);

// False if a filter matches nothing; why_out receives "... no such framework ...".
bool check_filters(const Options& options, const Snapshot& snapshot, std::string* why_out);

// The frameworks, in the library's order.
std::vector<std::string> frameworks(const Snapshot& snapshot);

// The three ways to show a snapshot.

// Prints text for people.
void print_text(const Options& options, const Snapshot& snapshot, std::ostream& out);

// Prints one fact per line, its fields separated by colons: mca:mpool:grdma:param:size_limit:value:8M. A field with a
// colon, a quote, a backslash or a line break is quoted, with \ before quotes and backslashes.
void print_parsable(const Options& options, const Snapshot& snapshot, std::ostream& out);
std::string parsable_field(std::string_view text);

void print_json(const Options& options, const Snapshot& snapshot, std::ostream& out);

}  // namespace pinrail::info

#endif
