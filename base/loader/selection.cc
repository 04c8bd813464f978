// SPDX-License-Identifier: BSD-3-Clause
// Any thread; start-up context.
#include <algorithm>

#include "base/loader/loader.h"
#include "base/param/text.h"

namespace pinrail::loader {
namespace {

constexpr char kNone[] = "none";  // no component has this name

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

// Parses a selection list. BAD_PARAM, and a reason in *why_out, if it is malformed.
Status Selection::parse(std::string_view text, Selection* selection_out, std::string* why_out) {
  Selection selection;
  text = param::trim(text);
  selection.exclude = !text.empty() && text[0] == '^';
  if (selection.exclude) text.remove_prefix(1);
  for (const std::string_view name : param::split(text, ",")) {
    if (!param::is_name(name)) {
      *why_out = name[0] == '^' ? "^ must be the first character, and leaves out the whole list"
                                : "\"" + std::string(name) + "\" is not a component's name";
      return PINRAIL_ERR_BAD_PARAM;
    }
    if (!contains(selection.names, name)) selection.names.emplace_back(name);
  }
  if (selection.exclude && selection.names.empty()) {
    *why_out = "^ leaves out nothing";
    return PINRAIL_ERR_BAD_PARAM;
  }
  if (contains(selection.names, kNone) && (selection.exclude || selection.names.size() != 1)) {
    *why_out = "none stands alone";
    return PINRAIL_ERR_BAD_PARAM;
  }
  *selection_out = std::move(selection);
  return success();
}

// Returns whether the selection permits a component of this name and priority.
bool Selection::allows(std::string_view name, int priority) const {
  if (requests(name)) return true;
  const bool all_but_names = exclude || names.empty();
  return all_but_names && priority >= 0 && !contains(names, name);
}

bool Selection::is_none() const { return !exclude && contains(names, kNone); }

bool Selection::requests(std::string_view name) const { return !exclude && contains(names, name); }

}  // namespace pinrail::loader
