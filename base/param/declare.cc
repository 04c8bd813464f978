// SPDX-License-Identifier: BSD-3-Clause
// Registers declarations: checks and copies each one, gives it its value, and adds it to the registry. Start-up
// context; Registry::declare() takes the registry's lock; functions whose names end in _locked
// are called with it held.
#include <algorithm>
#include <tuple>

#include "base/param/param.h"
#include "base/report/report.h"

namespace pinrail::param {
namespace {

constexpr const char* kNotStarted = "Pinrail does not start (BAD_PARAM).";

void report_fault(const Family& family, const char* name, const char* why) {
  const std::string component = full_name(family.framework, family.component, "");
  report::help("wrong declaration", {{"component", component.c_str()}, {"name", name}, {"why", why}});
}

// Reports a malformed value with its source and what would be accepted.
void report_malformed(const Parameter& parameter, const Given& given, const std::string& why) {
  const bool old = given.name != parameter.name;
  const std::string name = old ? parameter.name + " (by its old name " + given.name + ")" : parameter.name;
  report::help("malformed value", {{"value", given.value.c_str()},
                                   {"name", name.c_str()},
                                   {"source", given.origin().c_str()},
                                   {"why", why.c_str()},
                                   {"follows", kNotStarted},
                                   {"accepted", accepted(parameter.declaration).c_str()}});
}

// Reports settings that use an old name of the parameter.
void note_old_names(const Parameter& parameter, const Settings& settings) {
  for_texts(parameter.declaration.synonyms, [&](const char* old) {
    const std::list<Given>* const given = settings.all_of(old);
    if (given == nullptr) return;
    const std::string source = given->back().origin();
    report::help("old name", {{"old", old}, {"source", source.c_str()}, {"new", parameter.name.c_str()}});
  });
}

// Reports a malformed value although a stronger source hides it: without that source it would decide.
void note_hidden_values(const Parameter& parameter, const Given* decides, const Settings& settings) {
  std::string why;
  const std::list<Given>* const all = settings.all_of(parameter.name);
  if (all == nullptr) return;
  for (const Given& given : *all) {
    pinrail_param_value_t value{};
    if (&given == decides || parse(parameter.declaration, given.value, &value, &why).ok()) continue;
    report::help("hidden malformed value", {{"value", given.value.c_str()},
                                            {"name", parameter.name.c_str()},
                                            {"source", given.origin().c_str()},
                                            {"why", why.c_str()},
                                            {"stronger", decides->origin().c_str()},
                                            {"accepted", accepted(parameter.declaration).c_str()}});
  }
}

bool is_number(const Parameter& parameter) {
  const pinrail_param_type_t type = parameter.declaration.type;
  return type == PINRAIL_TYPE_BOOL || type == PINRAIL_TYPE_INT || type == PINRAIL_TYPE_ENUM;
}

// Returns VERSION if the declarations have another size. In such a table only the first element's size can be read.
Status check_size(const Family& family, const pinrail_param_t* params, size_t count) {
  if (count == 0 || params[0].size == sizeof(pinrail_param_t)) return success();
  const std::string why = "it has " + std::to_string(params[0].size) + " bytes, this library's declarations have " +
                          std::to_string(sizeof(pinrail_param_t));
  report_fault(family, "(the first)", why.c_str());
  return PINRAIL_ERR_VERSION;
}

bool has_name(const std::vector<std::unique_ptr<Parameter>>& parameters, const std::string& name) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&name](const auto& parameter) { return parameter->name == name; });
}

bool is_ordered_before(const std::unique_ptr<Parameter>& a, const std::unique_ptr<Parameter>& b) {
  return std::tie(a->framework, a->component, a->name) < std::tie(b->framework, b->component, b->name);
}

const char* or_empty(const char* text) { return text != nullptr ? text : ""; }

bool is_enum(const pinrail_param_t& declaration) { return declaration.type == PINRAIL_TYPE_ENUM; }

void copy_values(const pinrail_enum_value_t* from, Strings* strings, Parameter* parameter) {
  for (; from != nullptr && from->name != nullptr; ++from) {
    parameter->values.push_back({from->value, strings->keep(from->name)});
  }
  parameter->values.push_back({0, nullptr});
  parameter->declaration.values = parameter->values.data();
}

// Copies the declaration's synonyms and adds those that the family's old name prefixes make.
void copy_synonyms(const Family& family, const pinrail_param_t& from, Strings* strings, Parameter* parameter) {
  std::vector<const char*>& synonyms = parameter->synonyms;
  for_texts(from.synonyms, [&](const char* synonym) { synonyms.push_back(strings->keep(synonym)); });
  for_texts(family.synonym_prefixes,
            [&](const char* prefix) { synonyms.push_back(strings->keep(std::string(prefix) + from.name)); });
  synonyms.push_back(nullptr);
  parameter->declaration.synonyms = synonyms.size() > 1 ? synonyms.data() : nullptr;
}

// Returns what is wrong with a declaration, or NULL.
const char* fault_of(const pinrail_param_t& declaration) {
  const pinrail_param_type_t type = declaration.type;
  const pinrail_param_scope_t scope = declaration.scope;
  if (type < PINRAIL_TYPE_BOOL || type > PINRAIL_TYPE_ENUM) return "its type is unknown";
  if (scope < PINRAIL_SCOPE_READONLY || scope > PINRAIL_SCOPE_SETTABLE) return "its scope is unknown";
  if (declaration.level < 1 || declaration.level > 9) return "its level is not from 1 to 9";
  if (declaration.minimum > declaration.maximum) return "its minimum is above its maximum";
  const pinrail_enum_value_t* const values = declaration.values;
  if (is_enum(declaration) && (values == nullptr || values->name == nullptr)) return "it has no values to choose from";
  return nullptr;
}

// Copies a declaration and all that it points to. May throw bad_alloc.
std::unique_ptr<Parameter> copy_declaration(const Family& family, const pinrail_param_t& declaration,
                                            Strings* strings) {
  auto parameter = std::make_unique<Parameter>();
  parameter->framework = family.framework;
  parameter->component = family.component;
  parameter->declaration = declaration;
  parameter->declaration.name = strings->keep(or_empty(declaration.name));
  parameter->declaration.fallback = strings->keep(or_empty(declaration.fallback));
  parameter->declaration.help = strings->keep(or_empty(declaration.help));
  parameter->declaration.values = nullptr;
  parameter->name = full_name(family.framework, family.component, parameter->declaration.name);
  if (is_enum(declaration)) copy_values(declaration.values, strings, parameter.get());
  copy_synonyms(family, parameter->declaration, strings, parameter.get());
  return parameter;
}

}  // namespace

// Returns the parameter whose value this one takes as long as it is not set itself, or NULL.
Parameter* Registry::followed_by_locked(const Parameter& parameter) const {
  const bool of_component =
      !parameter.framework.empty() && !parameter.component.empty() && parameter.component != "base";
  if (!of_component || !is_number(parameter)) return nullptr;
  const std::string_view name = parameter.declaration.name;
  if (name == "verbose") return lookup_locked(full_name(parameter.framework, "base", "verbose"));
  return name == "leave_pinned" ? lookup_locked("leave_pinned") : nullptr;
}

// The value is passed on as a number: the follower may have other names for its values, or may lack this one.
Value Registry::followed_value_locked(const Parameter& parameter, const Value& followed) {
  Value taken = followed;
  std::string why;
  const std::string number = std::to_string(followed.typed.i);
  return read_value(parameter.declaration, number, &strings_, &taken, &why).ok() ? taken : parameter.own;
}

// Where replace_default() gave the parameter another default, that one is listed as its default.
static void list_replaced_default(const Settings& settings, Strings* strings, Parameter* parameter) {
  const std::list<Given>* const given = settings.all_of(parameter->name);
  if (given == nullptr || given->front().strength != kDerivedDefault) return;
  Value value{};
  std::string why;
  const Status status = read_value(parameter->declaration, given->front().value, strings, &value, &why);
  if (status.ok()) parameter->declaration.fallback = value.text;
}

// Gives the parameter its own value: the default, or the one of the strongest source that sets it.
Status Registry::take_value_locked(Parameter* parameter) {
  const pinrail_param_t& declaration = parameter->declaration;
  std::string why;
  if (!read_value(declaration, declaration.fallback, &strings_, &parameter->own, &why).ok()) {
    why = "its default \"" + std::string(declaration.fallback) + "\" " + why;
    report_fault({parameter->framework, parameter->component, nullptr}, declaration.name, why.c_str());
    return PINRAIL_ERR_ERROR;
  }
  list_replaced_default(settings_, &strings_, parameter);
  const Given* given = settings_.decide(parameter->name, declaration.synonyms);
  note_hidden_values(*parameter, given, settings_);
  if (given == nullptr) return success();
  if (!read_value(declaration, given->value, &strings_, &parameter->own, &why).ok()) {
    report_malformed(*parameter, *given, why);
    return PINRAIL_ERR_BAD_PARAM;
  }
  parameter->own.source = given->source();
  parameter->own.given = given;
  note_old_names(*parameter, settings_);
  return success();
}

// Checks and copies a declaration and gives it its value. ERROR: the declaration is wrong. BAD_PARAM: a setting of it
// is wrong. Both are reported.
Status Registry::prepare_locked(const Family& family, const pinrail_param_t& declaration,
                                std::unique_ptr<Parameter>* parameter_out) {
  auto parameter = copy_declaration(family, declaration, &strings_);
  const char* fault = fault_of(declaration);
  // Only a framework's selection list is a parameter without a name of its own.
  const bool nameless = parameter->declaration.name[0] == '\0' && !family.component.empty();
  if (fault == nullptr && (nameless || !is_name(parameter->name))) {
    fault = "its name is not made of letters, digits and _";
  }
  const Parameter* const same = lookup_locked(parameter->name);
  if (fault == nullptr && same != nullptr && same->name == parameter->name) fault = "the name is declared already";
  if (fault != nullptr) {
    report_fault(family, parameter->declaration.name, fault);
    return PINRAIL_ERR_ERROR;
  }
  const Status status = take_value_locked(parameter.get());
  if (!status.ok()) return status;
  *parameter_out = std::move(parameter);
  return success();
}

// Adds checked declarations to the registry.
void Registry::commit_locked(std::vector<std::unique_ptr<Parameter>> declared) {
  for (std::unique_ptr<Parameter>& owner : declared) {
    Parameter* const parameter = owner.get();
    names_[parameter->name] = parameter;
    for_texts(parameter->declaration.synonyms,
              [&](const char* synonym) NO_THREAD_SAFETY_ANALYSIS { names_.emplace(synonym, parameter); });
    parameters_.insert(std::upper_bound(parameters_.begin(), parameters_.end(), owner, is_ordered_before),
                       std::move(owner));
    parameter->followed = followed_by_locked(*parameter);
    const Parameter* const followed = parameter->followed;
    const bool follows = followed != nullptr && followed->own.precedence() > parameter->own.precedence();
    parameter->take(follows ? followed_value_locked(*parameter, followed->value) : parameter->own);
  }
}

// Start-up context. Takes the registry's lock. Declares all parameters or, after an error, none.
Status Registry::declare(std::string_view framework, std::string_view component, const pinrail_param_t* params,
                         size_t count, const char* const* synonym_prefixes) {
  const Family family{framework, component, synonym_prefixes};
  Status result = check_size(family, params, count);
  if (!result.ok()) return result;

  // All declarations are checked, so that all malformed values are reported at once.
  Guard guard(mutex_);
  std::vector<std::unique_ptr<Parameter>> declared;
  for (size_t i = 0; i < count; ++i) {
    std::unique_ptr<Parameter> parameter;
    Status status = prepare_locked(family, params[i], &parameter);
    if (status.ok() && has_name(declared, parameter->name)) {
      report_fault(family, params[i].name, "it is declared twice");
      status = PINRAIL_ERR_ERROR;
    }
    if (status.ok()) declared.push_back(std::move(parameter));
    result.keep_first(status);
  }
  if (result.ok()) commit_locked(std::move(declared));
  return result;
}

Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_inout,
                  std::string* why_out) {
  // strings->keep() terminates the text and keeps it.
  if (declaration.type == PINRAIL_TYPE_STRING) text = strings->keep(text);
  const Status status = parse(declaration, text, &value_inout->typed, why_out);
  if (status.ok()) value_inout->text = strings->keep(format(declaration, value_inout->typed));
  return status;
}

}  // namespace pinrail::param
