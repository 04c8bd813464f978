// SPDX-License-Identifier: BSD-3-Clause
// Copies and checks declarations. Start-up or API context. A caller that passes a registry's Strings holds its lock.
#include "base/param/parameter.h"

#include "base/param/text.h"

namespace pinrail::param {
namespace {

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
  for (const char* const* synonym = from.synonyms; synonym != nullptr && *synonym != nullptr; ++synonym) {
    parameter->synonyms.emplace_back(*synonym);
  }
  for (const std::string& prefix : family.synonym_prefixes) parameter->synonyms.push_back(prefix + from.name);
  for (const std::string& synonym : parameter->synonyms) {
    parameter->synonym_pointers.push_back(strings->keep(synonym));
  }
  parameter->synonym_pointers.push_back(nullptr);
  const bool any = !parameter->synonyms.empty();
  parameter->declaration.synonyms = any ? parameter->synonym_pointers.data() : nullptr;
}

bool is_known_type(const pinrail_param_t& declaration) {
  return declaration.type >= PINRAIL_TYPE_BOOL && declaration.type <= PINRAIL_TYPE_ENUM;
}

bool is_known_scope(const pinrail_param_t& declaration) {
  return declaration.scope >= PINRAIL_SCOPE_CONSTANT && declaration.scope <= PINRAIL_SCOPE_SETTABLE;
}

}  // namespace

// Returns what is wrong with a declaration, or NULL.
const char* fault_of(const pinrail_param_t& declaration) {
  if (!is_known_type(declaration)) return "its type is unknown";
  if (!is_known_scope(declaration)) return "its scope is unknown";
  if (declaration.level < 1 || declaration.level > 9) return "its level is not from 1 to 9";
  if (declaration.minimum > declaration.maximum) return "its minimum is above its maximum";
  const pinrail_enum_value_t* const values = declaration.values;
  if (is_enum(declaration) && (values == nullptr || values->name == nullptr)) return "it has no values to choose from";
  return nullptr;
}

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

Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_out,
                  std::string* why_out) {
  Value value;
  // strings->keep() terminates the text and keeps it.
  if (declaration.type == PINRAIL_TYPE_STRING) text = strings->keep(text);
  const Status status = parse(declaration, text, &value.typed, why_out);
  if (!status.ok()) return status;
  value.text = strings->keep(format(declaration, value.typed));
  *value_out = value;
  return success();
}

}  // namespace pinrail::param
