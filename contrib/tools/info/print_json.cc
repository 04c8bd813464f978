// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/json.h"
#include "contrib/tools/info/snapshot.h"

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

Json document_of(const Options& options, const Snapshot& snapshot) {
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

// The facts of the JSON document, one a line.

std::string text_of(const Json& value) {
  if (value.is_boolean()) return value ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// A line for each value. A list has its name in the singular.
void put(const std::string& beginning, const Json& value, std::ostream& out) {
  if (value.is_array()) {
    for (const Json& each : value) put(beginning, each, out);
  } else if (value.is_object()) {
    for (const auto& [name, each] : value.items()) put(beginning + ":" + name, each, out);
  } else {
    out << beginning << ':' << parsable_field(text_of(value)) << '\n';
  }
}

// Takes a value out of the object.
Json taken(Json* object, const char* name) {
  Json value = std::move((*object)[name]);
  object->erase(name);
  return value;
}
std::string taken_text(Json* object, const char* name) { return taken(object, name).get<std::string>(); }

void put_general(Json document, std::ostream& out) {
  put("build", document["build"], out);
  Json program = document["program"], machine = document["machine"];
  const Json passed = taken(&program, "not_used"), sizes = taken(&machine, "hugepage_sizes");
  put("program", program, out);
  for (const Json& it : passed)
    put("program:not_used:" + text_of(it["framework"]) + ":" + text_of(it["name"]), it["why"], out);
  put("machine", machine, out);
  put("machine:hugepage_size", sizes, out);
  put("monitors:at_work", document["monitors_at_work"], out);
  for (Json& kind : document["memory"]) {
    if (kind["kept"]) kind.erase("why_not");
    put("memory:" + taken_text(&kind, "kind"), kind, out);
  }
  put("params", document["param_files"], out);
}

void put_param(Json param, std::ostream& out) {
  const std::string group = taken_text(&param, "framework") + ":" + taken_text(&param, "component");
  const std::string beginning = "mca:" + group + ":param:" + taken_text(&param, "short_name");
  const Json synonyms = taken(&param, "synonyms"), values = taken(&param, "values");
  param["full_name"] = taken(&param, "name");
  put(beginning, param, out);
  for (const Json& each : values) put(beginning + ":enumerator:value:" + text_of(each["value"]), each["name"], out);
  put(beginning + ":synonym", synonyms, out);
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

void print_json(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  tools::print(document_of(options, snapshot), out);
}

void print_parsable(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  Json document = document_of(options, snapshot);
  if (options.params.empty()) put_general(document, out);
  for (Json& component : document["components"]) {
    const std::string framework = taken_text(&component, "framework");
    put("mca:" + framework + ":" + taken_text(&component, "name"), component, out);
  }
  for (const Json& param : document["parameters"]) put_param(param, out);
  for (Json& stat : document["performance_variables"]) put("pvar:" + taken_text(&stat, "name"), stat, out);
}

}  // namespace pinrail::info
