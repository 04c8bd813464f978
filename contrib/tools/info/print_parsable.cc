// SPDX-License-Identifier: BSD-3-Clause
// The facts of the JSON document, one a line.
#include "contrib/tools/info/print.h"

namespace pinrail::info {
namespace {

using tools::Json;

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
