// SPDX-License-Identifier: BSD-3-Clause
// Sets parameters while the program runs. API context; set() takes the registry's lock.
#include <utility>
#include <vector>

#include "base/core/guarded.h"
#include "base/param/registry_impl.h"
#include "base/param/suggest.h"
#include "base/report/report.h"

namespace pinrail::param {
namespace {

// A refusal, which is reported after the lock was released.
struct Refusal {
  Status status = PINRAIL_SUCCESS;
  std::string why, now, advice;
};

Refusal not_found(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string_view near = suggest(name, names);
  const std::string advice =
      near.empty() ? "see what there is with pinrail_info --all --level 9" : "did you mean " + std::string(near) + "?";
  return {PINRAIL_ERR_NOT_FOUND, "there is no parameter of that name", "", advice};
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

}  // namespace pinrail::param
