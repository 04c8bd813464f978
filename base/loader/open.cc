// SPDX-License-Identifier: BSD-3-Clause
// Opens the selected components, and closes them. Start-up context.
#include <dlfcn.h>

#include <algorithm>
#include <tuple>

#include "base/loader/component_call.h"
#include "base/loader/loader_impl.h"
#include "base/param/text.h"
#include "base/report/report.h"

namespace pinrail::loader {
namespace {

constexpr const char* kHookFramework = "monitor";

bool opens_before(const Component* a, const Component* b) {
  return std::make_tuple(-static_cast<int64_t>(a->listed.priority), std::string_view(a->listed.name)) <
         std::make_tuple(-static_cast<int64_t>(b->listed.priority), std::string_view(b->listed.name));
}

// Keeps a shared object that hooks may run in mapped until the process ends, even if this copy of the library is
// unloaded.
void pin(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle != nullptr) dlclose(handle);
}

}  // namespace

// Calls the component's open() and records the result. If it fails, a message says so, unless the component was asked
// for by name: then require_named() reports it.
Status Loader::Impl::open_one(Component* component) {
  Listed& listed = component->listed;
  fill_host(component);
  if (listed.framework == kHookFramework && component->handle != nullptr) pin(listed.path);
  open_order.reserve(components.size());  // before open(), because close_all() must find every opened component
  const LastLogLine words;
  listed.status =
      answer_of_component([=] { return component->descriptor->open(&component->host, &component->context); });
  if (listed.status.ok()) {
    component->opened = true;
    open_order.push_back(component);
    log(PINRAIL_LOG_DEBUG, "opened " + listed.framework + " component " + listed.name + " (" + listed.path + ")");
    return listed.status;
  }
  listed.reason = "does not open: " + words.with(listed.status);
  if (chosen(listed.framework)->selection.requests(listed.name)) return listed.status;
  const bool usual = listed.status.is(PINRAIL_ERR_NOT_AVAILABLE);
  log(usual ? PINRAIL_LOG_INFO : PINRAIL_LOG_WARN, "skipped " + listed.path + ": it " + listed.reason);
  return listed.status;
}

// Reports a component that was asked for and not found. Returns NOT_FOUND.
Status Loader::Impl::report_missing(const Chosen& chosen, const std::string& name) {
  const std::string framework = chosen.framework.name;
  const std::string advice = param::did_you_mean(name, names_of(framework),
                                                 "see what there is with pinrail_info, or set mca_base_component_path");
  report::help("no such component", {{"source", params.origin(framework).c_str()},
                                     {"framework", framework.c_str()},
                                     {"name", name.c_str()},
                                     {"path", params.value("mca_base_component_path").s},
                                     {"advice", advice.c_str()}});
  return PINRAIL_ERR_NOT_FOUND;
}

// Reports a component that was asked for and is not open. Returns the status of its checks or its open().
Status Loader::Impl::report_unusable(const Component& component) {
  const Listed& listed = component.listed;
  const std::string why = listed.path + " " + listed.reason;
  report::help("component unusable", {{"framework", listed.framework.c_str()},
                                      {"name", listed.name.c_str()},
                                      {"source", params.origin(listed.framework).c_str()},
                                      {"why", why.c_str()},
                                      {"status", status_name(listed.status.code())}});
  return listed.status;
}

std::vector<std::string_view> Loader::Impl::names_of(std::string_view framework) const {
  std::vector<std::string_view> names;
  for (const auto& component : components) {
    if (component->listed.framework == framework) names.emplace_back(component->listed.name);
  }
  return names;
}

// A misspelled name in a list of exclusions excludes nothing, so it is reported.
void Loader::check_exclusions(const std::vector<std::string>& shipped) {
  const auto has = [](const auto& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const Chosen& chosen : impl_->frameworks) {
    if (!chosen.selection.exclude) continue;
    const std::string framework = chosen.framework.name;
    const std::vector<std::string_view> names = impl_->names_of(framework);
    for (const std::string& name : chosen.selection.names) {
      std::string component = framework;
      component += '_';
      component += name;
      if (has(names, name) || has(shipped, component)) continue;
      const std::string advice = param::did_you_mean(name, names, "see what there is with pinrail_info");
      report::help("nothing left out", {{"source", impl_->params.origin(framework).c_str()},
                                        {"framework", framework.c_str()},
                                        {"name", name.c_str()},
                                        {"advice", advice.c_str()}});
    }
  }
}

// Returns an error if a component that was asked for by name is not open.
Status Loader::Impl::require_named(const Chosen& chosen) {
  Status result = success();
  if (chosen.selection.exclude || chosen.selection.is_none()) return result;
  for (const std::string& name : chosen.selection.names) {
    const Component* found = component(chosen.framework.name, name);
    if (found != nullptr && found->opened) continue;
    const Status status = found == nullptr ? report_missing(chosen, name) : report_unusable(*found);
    if (result.ok()) result = status;
  }
  return result;
}

// Opens the selected components of a framework; an error if one that was asked for by name is not open.
Status Loader::open(std::string_view framework) {
  const Chosen* chosen = impl_->chosen(framework);
  if (chosen == nullptr) return PINRAIL_ERR_BAD_PARAM;
  std::vector<Component*> wanted;
  for (const auto& component : impl_->components) {
    const bool usable = component->descriptor != nullptr && component->listed.selected && !component->opened;
    if (usable && component->listed.framework == framework) wanted.push_back(component.get());
  }
  std::sort(wanted.begin(), wanted.end(), opens_before);
  for (Component* component : wanted) impl_->open_one(component).ignore();
  const Status result = impl_->require_named(*chosen);
  impl_->write_list();
  return result;
}

Opened Loader::Impl::opened_of(const Component& component) const {
  const bool named = chosen(component.listed.framework)->selection.requests(component.listed.name);
  return {component.descriptor, component.context, &component.host, named};
}

void Loader::for_each_opened(std::string_view framework, void (*visit)(const Opened& opened)) const {
  for (const Component* component : impl_->open_order) {
    if (component->listed.framework == framework) visit(impl_->opened_of(*component));
  }
}

// Returns the open components, the highest priority first.
std::vector<Opened> Loader::opened(std::string_view framework) const {
  std::vector<const Component*> found;
  for (const Component* component : impl_->open_order) {
    if (component->listed.framework == framework) found.push_back(component);
  }
  std::sort(found.begin(), found.end(), opens_before);
  std::vector<Opened> opened;
  for (const Component* it : found) opened.push_back(impl_->opened_of(*it));
  return opened;
}

void Loader::Impl::close_one(Component* component) {
  if (component->descriptor->close != nullptr) {
    const Listed& listed = component->listed;
    end_by_component(listed.framework.c_str(), listed.name.c_str(), "close",
                     [=] { component->descriptor->close(component->context); });
  }
  component->opened = false;
}

// Closes the components in reverse order of opening, and unmaps them.
void Loader::close_all() {
  Impl& impl = *impl_;
  for (auto next = impl.open_order.rbegin(); next != impl.open_order.rend(); ++next) impl.close_one(*next);
  impl.open_order.clear();
  for (auto next = impl.mapped.rbegin(); next != impl.mapped.rend(); ++next) {
    (*next)->descriptor = nullptr;
    dlclose((*next)->handle);
    (*next)->handle = nullptr;
  }
  impl.mapped.clear();
}

// Copies what is known of all components to `list`, for listed().
void Loader::Impl::write_list() {
  list.clear();
  for (const Chosen& chosen : frameworks) {
    const size_t first = list.size();
    for (const auto& component : components) {
      if (component->listed.framework == chosen.framework.name) list.push_back(component->listed);
    }
    std::sort(list.begin() + static_cast<ptrdiff_t>(first), list.end(),
              [](const Listed& a, const Listed& b) { return a.name < b.name; });
  }
}

}  // namespace pinrail::loader
