// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/info/print.h"

namespace pinrail::info {
namespace {

// Writes lines with a common prefix.
class Lines {
 public:
  Lines(std::ostream& out, std::string beginning) : out_(out), beginning_(std::move(beginning)) {}
  void put(const char* name, std::string_view value) {
    out_ << beginning_ << ':' << name << ':' << parsable_field(value) << '\n';
  }

 private:
  std::ostream& out_;
  const std::string beginning_;
};

void print_component(const pinrail_component_info_t& component, std::ostream& out) {
  Lines lines(out, std::string("mca:") + component.framework + ":" + component.name);
  lines.put("version", component.version);
  lines.put("priority", std::to_string(component.priority));
  lines.put("path", component.path);
  lines.put("selected", component.selected != 0 ? "yes" : "no");
  lines.put("status", pinrail_status_name(component.status));
  lines.put("reason", component.reason);
  lines.put("help", component.help);
}

void print_param(const pinrail_param_info_t& param, std::ostream& out) {
  const pinrail_param_t& declaration = *param.declaration;
  const std::string group = "mca:" + framework_of(param) + ":" + component_of(param);
  Lines lines(out, group + ":param:" + short_name_of(param));
  lines.put("value", param.value);
  lines.put("source", source_name(param));
  if (param.source_file[0] != '\0') {
    lines.put("source_file", param.source_file);
    lines.put("source_line", std::to_string(param.source_line));
  }
  lines.put("default", declaration.fallback);
  lines.put("full_name", param.name);
  lines.put("type", type_name(declaration.type));
  lines.put("scope", scope_name(declaration.scope));
  lines.put("level", std::to_string(declaration.level));
  for (const auto* v = declaration.values; v != nullptr && v->name != nullptr; ++v) {
    lines.put(("enumerator:value:" + std::to_string(v->value)).c_str(), v->name);
  }
  for (const char* const* synonym = declaration.synonyms; synonym != nullptr && *synonym != nullptr; ++synonym) {
    lines.put("synonym", *synonym);
  }
  lines.put("help", declaration.help);
}

void print_general(const Snapshot& snapshot, std::ostream& out) {
  Lines build(out, "build");
  for (const auto& fact : snapshot.facts) build.put(fact.name, fact.value);
  Lines program(out, "program");
  program.put("pool", snapshot.choice.pool);
  program.put("registrar", snapshot.choice.registrar);
  program.put("monitors", snapshot.choice.monitors);
  program.put("why_none", snapshot.choice.why_none);
  for (const Passed& it : snapshot.choice.passed) {
    program.put(("not_used:" + it.framework + ":" + it.name).c_str(), it.why);
  }
  Lines machine(out, "machine");
  machine.put("source", snapshot.machine.source);
  machine.put("memory", std::to_string(snapshot.machine.memory));
  machine.put("page_size", std::to_string(snapshot.machine.page_size));
  for (const uint64_t bytes : hugepage_sizes(snapshot.machine)) machine.put("hugepage_size", std::to_string(bytes));
  machine.put("numa_nodes", std::to_string(snapshot.machine.numa_nodes));
  machine.put("default_limit", std::to_string(snapshot.machine.default_limit));
  machine.put("default_limit_from", snapshot.machine.default_limit_from);
  Lines monitors(out, "monitors");
  monitors.put("at_work", snapshot.monitors);
  for (const pinrail_memory_kind_t& kind : snapshot.memory_kinds) {
    Lines lines(out, std::string("memory:") + kind.name);
    lines.put("kept", kind.is_kept != 0 ? "yes" : "no");
    if (kind.is_kept == 0) lines.put("why_not", kind.why_not);
  }
  Lines files(out, "params");
  for (const ParamFile& file : param_files(snapshot)) files.put(file.role, file.path);
}

void print_stats(const Snapshot& snapshot, std::ostream& out) {
  for (const pinrail_stat_info_t* stat : snapshot.stats) {
    Lines lines(out, std::string("pvar:") + stat->name);
    lines.put("unit", stat->unit);
    lines.put("help", stat->help);
  }
}

}  // namespace

std::string parsable_field(std::string_view text) {
  if (text.find_first_of(":\"\\\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "\"";
}

void print_parsable(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  if (options.params.empty()) print_general(snapshot, out);
  for (const auto& component : snapshot.components) {
    if (wants(options, component)) print_component(component, out);
  }
  for (const auto& param : snapshot.params) {
    if (wants(options, param)) print_param(param, out);
  }
  if (options.all) print_stats(snapshot, out);
}

}  // namespace pinrail::info
