// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/json.h"
#include "contrib/tools/info/print.h"

namespace pinrail::info {
namespace {

using tools::Json;

Json machine_of(const Snapshot& snapshot) {
  const pinrail_machine_t& machine = snapshot.machine;
  return {{"source", machine.source},
          {"memory", machine.memory},
          {"page_size", machine.page_size},
          {"hugepage_sizes", hugepage_sizes(machine)},
          {"numa_nodes", machine.numa_nodes},
          {"default_limit", machine.default_limit},
          {"default_limit_from", machine.default_limit_from}};
}

Json choice_json(const Choice& choice) {
  Json passed = Json::array();
  for (const Passed& it : choice.passed) {
    passed.push_back({{"framework", it.framework}, {"name", it.name}, {"why", it.why}});
  }
  return {{"pool", choice.pool},
          {"registrar", choice.registrar},
          {"monitors", choice.monitors},
          {"why_none", choice.why_none},
          {"not_used", passed}};
}

void put_general(const Snapshot& snapshot, Json* json) {
  for (const auto& fact : snapshot.facts) (*json)["build"][fact.name] = fact.value;
  (*json)["machine"] = machine_of(snapshot);
  (*json)["program"] = choice_json(snapshot.choice);
  (*json)["monitors_at_work"] = snapshot.monitors;
  (*json)["memory"] = Json::array();
  for (const pinrail_memory_kind_t& kind : snapshot.memory_kinds) {
    (*json)["memory"].push_back({{"kind", kind.name}, {"kept", kind.is_kept != 0}, {"why_not", kind.why_not}});
  }
  for (const ParamFile& file : param_files(snapshot)) (*json)["param_files"][file.role] = file.path;
}

Json component_json(const pinrail_component_info_t& component) {
  return {{"framework", component.framework},
          {"name", component.name},
          {"version", component.version},
          {"help", component.help},
          {"path", component.path},
          {"priority", component.priority},
          {"selected", component.selected != 0},
          {"status", pinrail_status_name(component.status)},
          {"reason", component.reason}};
}

Json values_of(const pinrail_param_t& declaration) {
  Json values = Json::array();
  for (const auto* v = declaration.values; v != nullptr && v->name != nullptr; ++v) {
    values.push_back({{"name", v->name}, {"value", v->value}});
  }
  return values;
}

Json synonyms_of(const pinrail_param_t& declaration) {
  Json synonyms = Json::array();
  for (const char* const* it = declaration.synonyms; it != nullptr && *it != nullptr; ++it) synonyms.push_back(*it);
  return synonyms;
}

Json param_json(const pinrail_param_info_t& param) {
  const pinrail_param_t& declaration = *param.declaration;
  Json json = {{"name", param.name},
               {"framework", framework_of(param)},
               {"component", component_of(param)},
               {"short_name", short_name_of(param)},
               {"value", param.value},
               {"source", source_name(param)}};
  if (param.source_file[0] != '\0') {
    json["source_file"] = param.source_file;
    json["source_line"] = param.source_line;
  }
  json["default"] = declaration.fallback;
  json["type"] = type_name(declaration.type);
  json["scope"] = scope_name(declaration.scope);
  json["level"] = declaration.level;
  if (declaration.type == PINRAIL_TYPE_ENUM) json["values"] = values_of(declaration);
  json["synonyms"] = synonyms_of(declaration);
  json["help"] = declaration.help;
  return json;
}

}  // namespace

tools::Json document_of(const Options& options, const Snapshot& snapshot) {
  Json json = {{"version", pinrail_version()}};
  if (options.params.empty()) put_general(snapshot, &json);
  json["components"] = json["parameters"] = Json::array();
  for (const auto& component : snapshot.components) {
    if (wants(options, component)) json["components"].push_back(component_json(component));
  }
  for (const auto& param : snapshot.params) {
    if (wants(options, param)) json["parameters"].push_back(param_json(param));
  }
  for (const pinrail_stat_info_t* stat : snapshot.stats) {
    if (!options.all) break;
    json["performance_variables"].push_back({{"name", stat->name}, {"unit", stat->unit}, {"help", stat->help}});
  }
  return json;
}

}  // namespace pinrail::info
