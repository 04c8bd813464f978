// SPDX-License-Identifier: BSD-3-Clause
// The registry's functions, except declare() and read_sources(). Each takes the registry's lock, and those whose
// names end in _locked are called with it held. finish(), which warns of settings that name no parameter, runs at
// start-up; the others in start-up or API context.
#include <algorithm>
#include <utility>

#include "base/param/param.h"
#include "base/report/report.h"

namespace pinrail::param {

// Describes a parameter. The registry's lock is held.
static pinrail_param_info_t info_of(const Parameter& parameter) {
  auto info = sized<pinrail_param_info_t>();
  info.source_file = "";
  info.name = parameter.name.c_str();
  info.framework = parameter.framework.c_str();
  info.component = parameter.component.c_str();
  info.value = parameter.value.text;
  info.typed = parameter.value.typed;
  info.source = parameter.value.source;
  if (parameter.value.given != nullptr) {
    info.source_file = parameter.value.given->file.c_str();
    info.source_line = parameter.value.given->line;
  }
  info.declaration = &parameter.declaration;
  return info;
}

// Returns "<framework>_<component>_<name>", without empty parts.
std::string full_name(std::string_view framework, std::string_view component, std::string_view name) {
  std::string full;
  for (const std::string_view part : {framework, component, name}) {
    if (part.empty()) continue;
    if (!full.empty()) full += '_';
    full += part;
  }
  return full;
}

std::string origin_of(const Value& value) {
  if (value.source == PINRAIL_SOURCE_DEFAULT) return "the default";
  if (value.source == PINRAIL_SOURCE_API) return "a call of the program";
  return (value.source == PINRAIL_SOURCE_OVERRIDE ? "the override file " : "") + value.given->origin();
}

Status copy_info(const pinrail_param_info_t& info, pinrail_param_info_t* info_out) {
  if (info_out == nullptr || !ends_between_fields<pinrail_param_info_t>(info_out->size)) return PINRAIL_ERR_BAD_PARAM;
  copy_sized(info, info_out);
  return success();
}

// The registry's lock is held. Returns the parameter of this name or synonym, or NULL.
Parameter* Registry::lookup_locked(std::string_view name) const {
  const auto found = names_.find(name);
  return found != names_.end() ? found->second : nullptr;
}

Status Registry::find(std::string_view name, pinrail_param_info_t* info_out) const {
  Guard guard(mutex_);
  const Parameter* parameter = lookup_locked(name);
  if (parameter == nullptr) return PINRAIL_ERR_NOT_FOUND;
  *info_out = info_of(*parameter);
  return success();
}

Status Registry::at(size_t index, pinrail_param_info_t* info_out) const {
  Guard guard(mutex_);
  if (index >= parameters_.size()) return PINRAIL_ERR_NOT_FOUND;
  *info_out = info_of(*parameters_[index]);
  return success();
}

size_t Registry::count() const {
  Guard guard(mutex_);
  return parameters_.size();
}

pinrail_param_value_t Registry::value(std::string_view name) const {
  Guard guard(mutex_);
  const Parameter* parameter = lookup_locked(name);
  return parameter != nullptr ? parameter->value.typed : pinrail_param_value_t{};
}

const std::atomic<int64_t>* Registry::watch(std::string_view name) const {
  Guard guard(mutex_);
  const Parameter* parameter = lookup_locked(name);
  return parameter != nullptr ? &parameter->number : nullptr;
}

std::string Registry::describe(std::string_view name) const {
  pinrail_param_info_t info{};
  if (!find(name, &info).ok()) return "not declared";
  return (info.value[0] == '\0' ? "nothing" : std::string(info.value)) + ", from " + origin(name);
}

std::string Registry::origin(std::string_view name) const {
  Guard guard(mutex_);
  const Parameter* parameter = lookup_locked(name);
  if (parameter == nullptr) return "nowhere";
  const std::string where = origin_of(parameter->value);
  const bool follows = parameter->followed != nullptr && parameter->value.source != parameter->own.source;
  return follows ? where + " (as " + parameter->followed->name + ")" : where;
}

namespace {

// A refusal, which is reported after the lock was released.
struct Refusal {
  Status status = PINRAIL_SUCCESS;
  std::string why, now, advice;
};

Refusal not_found(std::string_view name, const std::vector<std::string_view>& names) {
  return {PINRAIL_ERR_NOT_FOUND, "there is no parameter of that name", "",
          did_you_mean(name, names, "see what there is with pinrail_info --all --level 9")};
}

std::string value_now(const Parameter& parameter) {
  return *parameter.value.text == '\0' ? "; its value is empty" : std::string("; its value is ") + parameter.value.text;
}

// Returns the reason why the parameter may not be set now, or SUCCESS.
Refusal check_settable(const Parameter& parameter) {
  const std::string now = value_now(parameter);
  if (parameter.declaration.scope != PINRAIL_SCOPE_SETTABLE) {
    return {PINRAIL_ERR_PERM, "it is read only once Pinrail has started", now, "set it before the program starts"};
  }
  if (parameter.own.source == PINRAIL_SOURCE_OVERRIDE) {
    return {PINRAIL_ERR_PERM, origin_of(parameter.own) + " holds it", now, "ask the administrator of this machine"};
  }
  return {};
}

void say(std::string_view name, std::string_view value, const Refusal& refusal) {
  report::help("cannot set", {{"name", std::string(name).c_str()},
                              {"value", std::string(value).c_str()},
                              {"why", refusal.why.c_str()},
                              {"now", refusal.now.c_str()},
                              {"advice", refusal.advice.c_str()}});
}

constexpr std::string_view kEnvironmentPrefix = "PINRAIL_MCA_";

bool belongs_to_any(std::string_view name, const std::set<std::string>& families) {
  return std::any_of(families.begin(), families.end(),
                     [name](const std::string& family) { return name == family || starts_with(name, family + "_"); });
}

// "a", "a or b", "a, b or c" of the names that end with _ and this one, at most three of them. Empty: there is none.
std::string endings(const std::string& name, const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 3;
  const std::string ending = "_" + name;
  std::vector<std::string_view> found;
  for (const std::string_view each : names) {
    if (found.size() < kMost && ends_with(each, ending)) found.push_back(each);
  }
  std::string text;
  for (size_t i = 0; i < found.size(); ++i) {
    if (i != 0) text += i + 1 == found.size() ? " or " : ", ";
    text += found[i];
  }
  return text;
}

void warn(const Given& given, const std::string& advice) {
  report::help("unknown parameter",
               {{"source", given.origin().c_str()}, {"name", given.name.c_str()}, {"advice", advice.c_str()}});
}

}  // namespace

void Registry::set_own_value_locked(Parameter* parameter, const Value& own) {
  std::vector<std::pair<Parameter*, Value>> changes = {{parameter, own}};
  for (const auto& each : parameters_) {
    const bool follows = each->followed == parameter && each->own.precedence() < Precedence::set;
    if (follows) changes.emplace_back(each.get(), followed_value_locked(*each, own));
  }
  parameter->own = own;
  for (const auto& [changed, value] : changes) changed->take(value);
}

// Any thread. Takes the registry's lock and reports a refusal after releasing it. NOT_FOUND, PERM or BAD_PARAM.
Status Registry::set(std::string_view name, std::string_view value) {
  Refusal refusal;
  {
    Guard guard(mutex_);
    Parameter* const parameter = lookup_locked(name);
    refusal = parameter == nullptr ? not_found(name, all_names_locked()) : check_settable(*parameter);
    Value set_value;
    std::string why;
    if (refusal.status.ok() && !read_value(parameter->declaration, value, &strings_, &set_value, &why).ok()) {
      refusal = {PINRAIL_ERR_BAD_PARAM, "that " + why, value_now(*parameter),
                 "give " + accepted(parameter->declaration)};
    }
    if (refusal.status.ok()) {
      set_value.source = PINRAIL_SOURCE_API;
      set_own_value_locked(parameter, set_value);
    }
  }
  if (!refusal.status.ok()) say(name, value, refusal);
  return refusal.status;
}

std::vector<std::string_view> Registry::all_names_locked() const {
  std::vector<std::string_view> all;
  for (const auto& entry : names_) all.emplace_back(entry.first);
  return all;
}

// Start-up context, no lock. Settings of this component's parameters get no warning.
void Registry::expect(std::string_view component) { expected_.emplace(component); }

// Start-up context. Takes the registry's lock. Warns of each setting that names no parameter.
void Registry::finish(const std::vector<std::string>& shipped) {
  Guard guard(mutex_);
  const std::vector<std::string_view> names = all_names_locked();
  std::set<std::string> frameworks = {"mca"};
  std::set<std::string> absent = expected_;
  absent.insert(shipped.begin(), shipped.end());
  for (const auto& parameter : parameters_) {
    absent.erase(full_name(parameter->framework, parameter->component, ""));
    if (!parameter->framework.empty()) frameworks.insert(parameter->framework);
  }

  for (const Given* given : settings_.unused()) {
    if (belongs_to_any(given->name, absent)) continue;
    const std::string_view near = suggest(given->name, names);
    const std::string longer = near.empty() ? endings(given->name, names) : "";
    if (!near.empty()) {
      warn(*given, "did you mean " + lookup_locked(near)->name + "?");
    } else if (!longer.empty()) {
      warn(*given, "did you mean " + longer + "?");
    } else if (starts_with(given->name, kEnvironmentPrefix)) {
      warn(*given, "leave " + std::string(kEnvironmentPrefix) + " away: it belongs to names of environment variables");
    } else if (belongs_to_any(given->name, frameworks)) {
      warn(*given, "see what there is with pinrail_info --all --level 9");
    }
  }
}

}  // namespace pinrail::param
