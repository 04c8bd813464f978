// SPDX-License-Identifier: BSD-3-Clause
// Warns of settings that name no parameter. Start-up context. Registry::finish() takes the registry's lock; the
// functions of Registry::Impl are called with it held.
#include <algorithm>

#include "base/param/registry_impl.h"
#include "base/param/suggest.h"
#include "base/param/text.h"
#include "base/report/report.h"

namespace pinrail::param {
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
