// SPDX-License-Identifier: BSD-3-Clause
// The registry's functions, except declare(), set() and finish(). Each takes the registry's lock; Impl::lookup_locked()
// is called with it held. Start-up or API context.
#include <algorithm>
#include <cstring>

#include "base/core/struct_size.h"
#include "base/param/registry_impl.h"

namespace pinrail::param {
namespace {

// Describes a parameter. The registry's lock is held.
pinrail_param_info_t info_of(const Parameter& parameter) {
  pinrail_param_info_t info{};
  info.size = sizeof(info);
  info.name = parameter.name.c_str();
  info.framework = parameter.framework.c_str();
  info.component = parameter.component.c_str();
  info.value = parameter.value.text;
  info.typed = parameter.value.typed;
  info.source = parameter.value.source;
  info.source_file = parameter.value.file;
  info.source_line = parameter.value.line;
  info.declaration = &parameter.declaration;
  return info;
}

}  // namespace

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
  std::string where = std::string(value.file) + " line " + std::to_string(value.line);
  switch (value.source) {
    case PINRAIL_SOURCE_DEFAULT: return "the default";
    case PINRAIL_SOURCE_FILE: return where;
    case PINRAIL_SOURCE_ENVIRONMENT: return "the environment";
    case PINRAIL_SOURCE_COMMAND_LINE: return value.from;
    case PINRAIL_SOURCE_API: return "a call of the program";
    case PINRAIL_SOURCE_OVERRIDE: return "the override file " + where;
  }
  return "";
}

Status copy_info(const pinrail_param_info_t& info, pinrail_param_info_t* info_out) {
  if (info_out == nullptr || !ends_between_fields<pinrail_param_info_t>(info_out->size)) return PINRAIL_ERR_BAD_PARAM;
  const size_t size = std::min(info_out->size, sizeof(info));
  std::memcpy(info_out, &info, size);
  info_out->size = size;
  return success();
}

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

// The registry's lock is held. Returns the parameter of this name or synonym, or NULL.
Parameter* Registry::Impl::lookup_locked(std::string_view name) const {
  const auto found = names.find(name);
  if (found != names.end()) return found->second;
  const auto old = synonyms.find(name);
  return old != synonyms.end() ? old->second : nullptr;
}

Status Registry::find(std::string_view name, pinrail_param_info_t* info_out) const {
  Guard guard(impl_->mutex);
  const Parameter* parameter = impl_->lookup_locked(name);
  if (parameter == nullptr) return PINRAIL_ERR_NOT_FOUND;
  *info_out = info_of(*parameter);
  return success();
}

Status Registry::at(size_t index, pinrail_param_info_t* info_out) const {
  Guard guard(impl_->mutex);
  if (index >= impl_->parameters.size()) return PINRAIL_ERR_NOT_FOUND;
  *info_out = info_of(*impl_->parameters[index]);
  return success();
}

size_t Registry::count() const {
  Guard guard(impl_->mutex);
  return impl_->parameters.size();
}

pinrail_param_value_t Registry::value(std::string_view name) const {
  Guard guard(impl_->mutex);
  const Parameter* parameter = impl_->lookup_locked(name);
  return parameter != nullptr ? parameter->value.typed : pinrail_param_value_t{};
}

const std::atomic<int64_t>* Registry::watch(std::string_view name) const {
  Guard guard(impl_->mutex);
  const Parameter* parameter = impl_->lookup_locked(name);
  return parameter != nullptr ? &parameter->number : nullptr;
}

std::string Registry::describe(std::string_view name) const {
  pinrail_param_info_t info{};
  if (!find(name, &info).ok()) return "not declared";
  return (info.value[0] == '\0' ? "nothing" : std::string(info.value)) + ", from " + origin(name);
}

std::string Registry::origin(std::string_view name) const {
  Guard guard(impl_->mutex);
  const Parameter* parameter = impl_->lookup_locked(name);
  if (parameter == nullptr) return "nowhere";
  const std::string where = origin_of(parameter->value);
  const bool follows = parameter->followed != nullptr && parameter->value.source != parameter->own.source;
  return follows ? where + " (as " + parameter->followed->name + ")" : where;
}

}  // namespace pinrail::param
