// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/json.h"
#include "contrib/tools/info/print.h"

namespace pinrail::info {
namespace {

using tools::JsonWriter;

void put_machine(const Snapshot& snapshot, JsonWriter* json) {
  json->key("machine");
  json->begin_object();
  json->field("source", snapshot.machine.source);
  json->field("memory", snapshot.machine.memory);
  json->field("page_size", snapshot.machine.page_size);
  json->key("hugepage_sizes");
  json->begin_array();
  for (const uint64_t bytes : hugepage_sizes(snapshot.machine)) json->value(bytes);
  json->end_array();
  json->field("numa_nodes", snapshot.machine.numa_nodes);
  json->end_object();
}

void put_memory_kinds(const Snapshot& snapshot, JsonWriter* json) {
  json->field("monitors_at_work", snapshot.monitors);
  json->key("memory");
  json->begin_array();
  for (const pinrail_memory_kind_t& kind : snapshot.memory_kinds) {
    json->begin_object();
    json->field("kind", kind.name);
    json->field("kept", kind.is_kept != 0);
    json->field("why_not", kind.why_not);
    json->end_object();
  }
  json->end_array();
}

void put_general(const Snapshot& snapshot, JsonWriter* json) {
  json->key("build");
  json->begin_object();
  for (const auto& fact : snapshot.facts) json->field(fact.name, fact.value);
  json->end_object();
  put_machine(snapshot, json);
  put_memory_kinds(snapshot, json);
  json->key("param_files");
  json->begin_object();
  for (const ParamFile& file : param_files(snapshot)) json->field(file.role, file.path);
  json->end_object();
}

void put_component(const pinrail_component_info_t& component, JsonWriter* json) {
  json->begin_object();
  json->field("framework", component.framework);
  json->field("name", component.name);
  json->field("version", component.version);
  json->field("help", component.help);
  json->field("path", component.path);
  json->field("priority", component.priority);
  json->field("selected", component.selected != 0);
  json->field("status", pinrail_status_name(component.status));
  json->field("reason", component.reason);
  json->end_object();
}

void put_values(const pinrail_param_t& declaration, JsonWriter* json) {
  json->key("values");
  json->begin_array();
  for (const auto* v = declaration.values; v != nullptr && v->name != nullptr; ++v) {
    json->begin_object();
    json->field("name", v->name);
    json->field("value", v->value);
    json->end_object();
  }
  json->end_array();
}

void put_synonyms(const pinrail_param_t& declaration, JsonWriter* json) {
  json->key("synonyms");
  json->begin_array();
  for (const char* const* synonym = declaration.synonyms; synonym != nullptr && *synonym != nullptr; ++synonym) {
    json->value(*synonym);
  }
  json->end_array();
}

void put_param(const pinrail_param_info_t& param, JsonWriter* json) {
  const pinrail_param_t& declaration = *param.declaration;
  json->begin_object();
  json->field("name", param.name);
  json->field("framework", framework_of(param));
  json->field("component", component_of(param));
  json->field("short_name", short_name_of(param));
  json->field("value", param.value);
  json->field("source", pinrail_param_source_name(param.source));
  if (param.source_file[0] != '\0') {
    json->field("source_file", param.source_file);
    json->field("source_line", param.source_line);
  }
  json->field("default", declaration.fallback);
  json->field("type", type_name(declaration.type));
  json->field("scope", scope_name(declaration.scope));
  json->field("level", declaration.level);
  if (declaration.type == PINRAIL_TYPE_ENUM) put_values(declaration, json);
  put_synonyms(declaration, json);
  json->field("help", declaration.help);
  json->end_object();
}

void put_stats(const Snapshot& snapshot, JsonWriter* json) {
  json->key("performance_variables");
  json->begin_array();
  for (const pinrail_stat_info_t* stat : snapshot.stats) {
    json->begin_object();
    json->field("name", stat->name);
    json->field("unit", stat->unit);
    json->field("help", stat->help);
    json->end_object();
  }
  json->end_array();
}

}  // namespace

void print_json(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  JsonWriter json(out);
  json.begin_object();
  json.field("version", pinrail_version());
  if (options.params.empty()) put_general(snapshot, &json);
  json.key("components");
  json.begin_array();
  for (const auto& component : snapshot.components) {
    if (wants(options, component)) put_component(component, &json);
  }
  json.end_array();
  json.key("parameters");
  json.begin_array();
  for (const auto& param : snapshot.params) {
    if (wants(options, param)) put_param(param, &json);
  }
  json.end_array();
  if (options.all) put_stats(snapshot, &json);
  json.end_object();
}

}  // namespace pinrail::info
