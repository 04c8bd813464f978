// SPDX-License-Identifier: BSD-3-Clause
// Sets parameters while the program runs (API context), and warns of settings that name none (start-up). set() and
// finish() take the registry's lock; the functions of Registry::Impl are called with it held.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/core/guarded.h"
#include "base/param/registry_impl.h"
#include "base/param/text.h"
#include "base/report/report.h"

namespace pinrail::param {
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
  if (parameter.declaration.scope == PINRAIL_SCOPE_CONSTANT) {
    return {PINRAIL_ERR_PERM, "it is a constant", now, "nothing: it shows something and cannot be chosen"};
  }
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

}  // namespace

// OUT_OF_RESOURCE: nothing has changed.
Status Registry::Impl::set_own_value_locked(Parameter* parameter, const Value& own) {
  const Value own_before = parameter->own;
  const Precedence precedence_before = parameter->precedence;
  std::vector<std::pair<Parameter*, Value>> before = {{parameter, parameter->value}};
  for (const auto& each : parameters) {
    if (each->followed == parameter) before.emplace_back(each.get(), each->value);
  }
  parameter->own = own;
  parameter->precedence = Precedence::own;
  const Status status = guarded([&]() NO_THREAD_SAFETY_ANALYSIS {  // runs inside the call, under the mutex
    for (const auto& [changed, value] : before) update_effective_value_locked(changed);
    return success();
  });
  if (status.ok()) return status;
  parameter->own = own_before;
  parameter->precedence = precedence_before;
  for (const auto& [changed, value] : before) changed->take(value);
  return status;
}

// Any thread. Takes the registry's lock and reports a refusal after releasing it. NOT_FOUND, PERM or BAD_PARAM.
Status Registry::set(std::string_view name, std::string_view value) {
  Refusal refusal;
  {
    Guard guard(impl_->mutex);
    Parameter* const parameter = impl_->lookup_locked(name);
    refusal = parameter == nullptr ? not_found(name, impl_->all_names_locked()) : check_settable(*parameter);
    Value set_value;
    std::string why;
    if (refusal.status.ok() && !read_value(parameter->declaration, value, &impl_->strings, &set_value, &why).ok()) {
      refusal = {PINRAIL_ERR_BAD_PARAM, "that " + why, value_now(*parameter),
                 "give " + accepted(parameter->declaration)};
    }
    if (refusal.status.ok()) {
      set_value.source = PINRAIL_SOURCE_API;
      const Status status = impl_->set_own_value_locked(parameter, set_value);
      if (!status.ok()) return status;
    }
  }
  if (!refusal.status.ok()) say(name, value, refusal);
  return refusal.status;
}

namespace {

constexpr std::string_view kEnvironmentPrefix = "PINRAIL_MCA_";

bool belongs_to(std::string_view name, const std::string& family) {
  return name == family || starts_with(name, family + "_");
}

template <typename Families>
bool belongs_to_any(std::string_view name, const Families& families) {
  return std::any_of(families.begin(), families.end(),
                     [name](const std::string& family) { return belongs_to(name, family); });
}

// "a", "a or b", "a, b or c" of the names that end with _ and this one, at most three of them. Empty: there is none.
std::string endings(const std::string& name, const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 3;
  const std::string ending = "_" + name;
  std::vector<std::string_view> found;
  for (const std::string_view each : names) {
    const bool ends = each.size() > ending.size() && each.substr(each.size() - ending.size()) == ending;
    if (ends && found.size() < kMost) found.push_back(each);
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

std::vector<std::string_view> Registry::Impl::all_names_locked() const {
  std::vector<std::string_view> all;
  for (const auto& entry : names) all.emplace_back(entry.first);
  for (const auto& entry : synonyms) all.emplace_back(entry.first);
  return all;
}

std::set<std::string> Registry::Impl::components_locked() const {
  std::set<std::string> all;
  for (const auto& parameter : parameters) all.insert(full_name(parameter->framework, parameter->component, ""));
  return all;
}

std::set<std::string> Registry::Impl::frameworks_locked() const {
  std::set<std::string> all = {"mca"};
  for (const auto& parameter : parameters) {
    if (!parameter->framework.empty()) all.insert(parameter->framework);
  }
  return all;
}

// Start-up context, no lock. Settings of this component's parameters get no warning.
void Registry::expect(std::string_view component) { impl_->expected.emplace(component); }

// Start-up context. Takes the registry's lock. Warns of each setting that names no parameter.
void Registry::finish(const std::vector<std::string>& shipped) {
  Guard guard(impl_->mutex);
  const std::vector<std::string_view> names = impl_->all_names_locked();
  const std::set<std::string> loaded = impl_->components_locked();
  const std::set<std::string> frameworks = impl_->frameworks_locked();
  std::set<std::string> absent = impl_->expected;
  absent.insert(shipped.begin(), shipped.end());
  for (const std::string& component : loaded) absent.erase(component);

  for (const Given* given : impl_->settings.unused()) {
    if (belongs_to_any(given->name, absent)) continue;
    const std::string_view near = suggest(given->name, names);
    const std::string longer = near.empty() ? endings(given->name, names) : "";
    if (!near.empty()) {
      warn(*given, "did you mean " + impl_->lookup_locked(near)->name + "?");
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
