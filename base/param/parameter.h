// SPDX-License-Identifier: BSD-3-Clause
// parameter.h - one declared parameter: a copy of its declaration, and its value.
//
// Threads  The declaration does not change after it was made. The value is guarded by the registry's lock, except
//          `number`, which may be read without it.
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

// Keeps one copy of each distinct text, at a fixed address, as long as the object lives.
class Strings {
 public:
  const char* keep(std::string_view text) { return texts_.emplace(text).first->c_str(); }

 private:
  std::set<std::string> texts_;
};

// A value and its source.
struct Value {
  pinrail_param_value_t typed{};
  const char* text = "";
  pinrail_param_source_t source = PINRAIL_SOURCE_DEFAULT;
  const char* file = "";
  const char* from = "";  // what gave it, for settings of pinrail_init()
  int line = 0;
};

// How firmly a value was chosen. A parameter that follows another one takes the other's value if that was chosen more
// firmly; `own` counts as `chosen` in this comparison.
enum class Precedence : uint8_t { fallback = 0, callers_default = 1, chosen = 2, own = 3 };

struct Parameter {
  std::string name;  // the full name
  std::string framework, component;
  pinrail_param_t declaration{};  // the registry keeps everything that it points to
  std::vector<pinrail_enum_value_t> values;
  std::vector<std::string> synonyms;  // full names
  std::vector<const char*> synonym_pointers;

  // The parameter whose value this one takes as long as it is not set itself, or NULL.
  Parameter* followed = nullptr;
  Value own;    // the value that it was set to itself
  Value value;  // the effective value: own, or that of `followed`
  Precedence precedence = Precedence::fallback;
  std::atomic<int64_t> number{0};  // value.typed.i, for readers without the lock

  void take(const Value& effective) {
    value = effective;
    number.store(value.typed.i, std::memory_order_relaxed);  // relaxed: no other data is published with the number
  }
};

// The parts with which the names of a component's parameters begin.
struct Family {
  std::string framework, component;
  std::vector<std::string> synonym_prefixes;
};

// Returns what is wrong with a declaration, or NULL.
const char* fault_of(const pinrail_param_t& declaration);

// Copies a declaration and all that it points to. May throw bad_alloc.
std::unique_ptr<Parameter> copy_declaration(const Family& family, const pinrail_param_t& declaration, Strings* strings);

// Converts a text to a value; a STRING is kept in `strings`. BAD_PARAM and a reason if it is malformed.
Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_out,
                  std::string* why_out);

}  // namespace pinrail::param

#endif
