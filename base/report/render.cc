// SPDX-License-Identifier: BSD-3-Clause
// Fills help texts. Start-up or API context, no lock.
#include "base/report/report.h"

namespace pinrail::report {
namespace {

// Continues a value in the column where a help line's text begins, after "What happened  ".
constexpr std::string_view kContinuation = "\n               ";

std::string_view take_line(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

bool is_heading(std::string_view line) { return line.size() >= 2 && line.front() == '[' && line.back() == ']'; }

// Returns the lines below [topic], without blank lines at the end; empty if there is no such topic.
std::string_view body_of(std::string_view catalogue, std::string_view topic) {
  while (!catalogue.empty()) {
    const std::string_view line = take_line(&catalogue);
    if (!is_heading(line) || line.substr(1, line.size() - 2) != topic) continue;
    std::string_view rest = catalogue;
    size_t length = 0;
    while (!rest.empty()) {
      const std::string_view next = take_line(&rest);
      if (is_heading(next)) break;
      if (!next.empty()) length = static_cast<size_t>(next.data() + next.size() - catalogue.data());
    }
    return catalogue.substr(0, length);
  }
  return {};
}

void append_value(std::string* out, std::string_view value) {
  for (const char c : value) {
    if (c == '\n') {
      *out += kContinuation;
    } else {
      *out += c;
    }
  }
}

// Returns the argument of this name, or NULL.
const pinrail_help_arg_t* find_arg(const pinrail_help_arg_t* args, size_t arg_count, std::string_view name) {
  for (size_t i = 0; i < arg_count; ++i) {
    if (args[i].name != nullptr && name == args[i].name) return &args[i];
  }
  return nullptr;
}

}  // namespace

std::string render(std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
                   size_t arg_count) {
  std::string_view body = body_of(catalogue, topic);
  std::string out;
  while (!body.empty()) {
    const size_t open = body.find('{');
    const size_t close = open == std::string_view::npos ? open : body.find('}', open);
    out += body.substr(0, open);
    if (close == std::string_view::npos) {
      if (open != std::string_view::npos) out += body.substr(open);
      break;
    }
    const pinrail_help_arg_t* arg = find_arg(args, arg_count, body.substr(open + 1, close - open - 1));
    if (arg != nullptr) {
      append_value(&out, arg->value != nullptr ? arg->value : "");
    } else {
      out += body.substr(open, close + 1 - open);
    }
    body.remove_prefix(close + 1);
    // If a value that ends in '?' was filled in, the line's own full stop is dropped.
    if (!out.empty() && out.back() == '?' && !body.empty() && body.front() == '.') body.remove_prefix(1);
  }
  return out;
}

}  // namespace pinrail::report
