// SPDX-License-Identifier: BSD-3-Clause
// parameter.h - one declared parameter: its declaration, copied, and its value.
//
// Threads  the declaration does not change once it is made; the value is guarded by its registry's lock, but for
//          number, which may be looked at without it.
#ifndef PINRAIL_BASE_PARAM_PARAMETER_H
#define PINRAIL_BASE_PARAM_PARAMETER_H

#include <pinrail/params.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"
#include "base/param/settings.h"

namespace pinrail::param {

// Keeps each distinct text once, at one address, for as long as it lives itself.
class Strings {
 public:
  const char* keep(std::string_view text) { return texts_.emplace(text).first->c_str(); }

 private:
  std::set<std::string> texts_;
};

// A value and where it came from.
struct Value {
  pinrail_param_value_t typed{};
  const char* text = "";
  pinrail_param_source_t source = PINRAIL_SOURCE_DEFAULT;
  const char* file = "";
  const char* from = "";  // who gave a setting of pinrail_init()
  int line = 0;
};

// How firmly a value was chosen: a parameter that follows another takes the other's value if that was chosen more
// firmly (not counting beyond `chosen`).
enum class Firmness : uint8_t { fallback = 0, callers_default = 1, chosen = 2, own = 3 };

struct Parameter {
  std::string name;  // in full
  std::string framework, component;
  pinrail_param_t declaration{};  // everything that it points to is kept by the registry
  std::vector<pinrail_enum_value_t> values;
  std::vector<std::string> synonyms;  // in full
  std::vector<const char*> synonym_pointers;

  Parameter* followed = nullptr;
  Value own;    // what it was set to itself
  Value value;  // own, or the followed one's
  Firmness firmness = Firmness::fallback;
  std::atomic<int64_t> number{0};  // value.typed.i
};

// The names of a component's parameters.
struct Family {
  std::string framework, component;
  std::vector<std::string> synonym_prefixes;
};

// Why the declaration cannot be right, or NULL.
const char* fault_of(const pinrail_param_t& declaration);

std::unique_ptr<Parameter> copy_declaration(const Family& family, const pinrail_param_t& declaration, Strings* strings);

// Text to value, with STRINGs kept. BAD_PARAM and a reason.
Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_out,
                  std::string* why_out);

}  // namespace pinrail::param

#endif
