// SPDX-License-Identifier: BSD-3-Clause
// Loads components: checks the file, maps it, compares its descriptor and declares its parameters; opens the selected
// ones, and closes them. Start-up context.
#include <dlfcn.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/loader/loader.h"
#include "base/report/report.h"

namespace pinrail::loader {
namespace {

constexpr pinrail_param_t kVerbose = param::declaration(
    "verbose", "0",
    "What the component says: 0 only what is wrong, 10 also what it does not do and why, 50 every step. Unless it is "
    "set, that of the framework's base holds.",
    PINRAIL_TYPE_INT, PINRAIL_SCOPE_SETTABLE, 8, 100);

bool declares_verbose(const pinrail_component_t& descriptor) {
  return std::any_of(descriptor.params, descriptor.params + descriptor.param_count, [](const pinrail_param_t& param) {
    return param.name != nullptr && std::string_view(param.name) == "verbose";
  });
}

std::string why_not_selected(const Listed& listed, const param::Registry& params) {
  if (listed.priority < 0)
    return "its priority is below 0: it is used only when parameter " + listed.framework + " names it";
  return "not selected: " + listed.framework + " = " + params.describe(listed.framework);
}

// Returns the text of dlerror() without the path, which the message has already.
std::string loader_error(const std::string& path) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc keeps it per thread.
  const char* const text = dlerror();
  std::string_view why = text != nullptr ? text : "the dynamic loader refuses it";
  if (param::starts_with(why, path + ": ")) why.remove_prefix(path.size() + 2);
  return "cannot be loaded: " + std::string(why);
}

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

const Component& component_of(const pinrail_host_t* host) { return *static_cast<const Component*>(host->self); }

// The value of the component's own parameter `name`. NOT_FOUND: it has not declared it (C7).
pinrail_status_t host_param(const pinrail_host_t* host, const char* name, pinrail_param_value_t* value_out) {
  if (host == nullptr || name == nullptr || value_out == nullptr) return PINRAIL_ERR_BAD_PARAM;
  return guarded([=]() -> pinrail_status_t {
    const Listed& listed = component_of(host).listed;
    pinrail_param_info_t info{};
    const Status status = component_of(host).params->find(param::full_name(listed.framework, listed.name, name), &info);
    // Compares the parts as well: "y" of grdma_x and "x_y" of grdma have the same full name.
    if (!status.ok() || listed.framework != info.framework || listed.name != info.component) {
      const std::string component = param::full_name(listed.framework, listed.name, "");
      report::help("undeclared parameter", {{"component", component.c_str()}, {"name", name}});
      return PINRAIL_ERR_NOT_FOUND;
    }
    *value_out = info.typed;
    return PINRAIL_SUCCESS;
  });
}

// Describes any parameter by its full name. NOT_FOUND.
pinrail_status_t host_param_info(const pinrail_host_t* host, const char* name, pinrail_param_info_t* info_out) {
  if (host == nullptr || name == nullptr || info_out == nullptr) return PINRAIL_ERR_BAD_PARAM;
  return guarded([=]() -> pinrail_status_t {
    pinrail_param_info_t info{};
    const Status status = component_of(host).params->find(name, &info);
    return status.ok() ? param::copy_info(info, info_out).code() : status.code();
  });
}

void host_log(const pinrail_host_t* host, pinrail_log_level_t level, const char* line) {
  if (host == nullptr || line == nullptr) return;
  const Component& component = component_of(host);
  // relaxed: no other data depends on the number.
  const int verbosity =
      component.verbosity == nullptr ? 0 : static_cast<int>(component.verbosity->load(std::memory_order_relaxed));
  guarded([&] {
    record_last_log_line(line);
    report::log(component.listed.name, verbosity, level, line);
  });
}

void host_help(const pinrail_host_t* host, const char* topic, const pinrail_help_arg_t* args, size_t arg_count) {
  if (host == nullptr || topic == nullptr) return;
  const Component& component = component_of(host);
  const char* const catalogue = component.descriptor->help_catalogue;
  guarded([&] {
    report::help(component.listed.name, catalogue != nullptr ? catalogue : "", topic, args,
                 args == nullptr ? 0 : arg_count);
  });
}

}  // namespace

// Skips the component with one message. If the user asked for it by name, require_named() reports it instead.
void Loader::refuse(Component* component, Status status, const std::string& why) {
  Listed& listed = component->listed;
  listed.status = status;
  listed.reason = why;
  component->descriptor = nullptr;
  params_.expect(param::full_name(listed.framework, listed.name, ""));
  if (component->is_requested()) return;
  log(PINRAIL_LOG_WARN, "skipped " + listed.path + ": it " + why);
}

// Checks and maps the component's file and finds its descriptor. After an error the component is refused.
Status Loader::map(Component* component) {
  const std::string& path = component->listed.path;
  std::string why;
  Status status = check_file(path, path_named(), &why);
  if (status.ok()) {
    component->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (component->handle == nullptr) {
      why = loader_error(path);
      status = PINRAIL_ERR_ERROR;
    }
  }
  if (status.ok()) status = find_descriptor(component->handle, &component->descriptor, &why);
  if (!status.ok()) refuse(component, status, why);
  return status;
}

// BAD_PARAM: the user gave a malformed value. A component whose declarations are wrong is skipped.
Status Loader::declare_params(Component* component) {
  const Listed& listed = component->listed;
  const pinrail_component_t& descriptor = *component->descriptor;
  Status status = params_.declare(listed.framework, listed.name, descriptor.params, descriptor.param_count,
                                  descriptor.synonym_prefixes);
  if (status.ok() && !declares_verbose(descriptor)) {
    status = params_.declare(listed.framework, listed.name, &kVerbose, 1, descriptor.synonym_prefixes);
  }
  if (status.ok() || status.is(PINRAIL_ERR_BAD_PARAM)) return status;
  refuse(component, status, "declares its parameters wrongly");
  return success();
}

// Loads one selected component. Returns an error only for a malformed parameter; a component with another fault is
// refused, and the result is SUCCESS.
Status Loader::load(Component* component) {
  Listed& listed = component->listed;
  const Chosen& chosen = *component->chosen;
  const bool is_file = component->descriptor == nullptr;
  if (is_file && !map(component).ok()) return success();
  std::string why;
  const Status status = check_descriptor(*component->descriptor, chosen.framework, listed.name, &why);
  if (!status.ok()) {
    refuse(component, status, why);
    return success();
  }
  const pinrail_component_t& descriptor = *component->descriptor;
  listed.version = descriptor.version != nullptr ? descriptor.version : "";
  listed.help = descriptor.help != nullptr ? descriptor.help : "";
  listed.priority = descriptor.priority;
  listed.selected = chosen.selection.allows(listed.name, descriptor.priority);
  return declare_params(component);
}

// Loads all selected components. Returns BAD_PARAM if a parameter is malformed.
Status Loader::load_all() {
  Status result = success();
  for (const auto& component : components_) {
    Listed& listed = component->listed;
    if (listed.selected) {
      result.keep_first(load(component.get()));  // it may find a priority with which the selection leaves it out
    } else {
      params_.expect(param::full_name(listed.framework, listed.name, ""));
    }
    if (!listed.selected) listed.reason = why_not_selected(listed, params_);
  }
  return result;
}

// Calls the component's open() and records the result. If it fails, a message says so, unless the component was asked
// for by name: then require_named() reports it.
void Loader::open_one(Component* component) {
  Listed& listed = component->listed;
  std::vector<Opened>& opened = component->chosen->opened;
  const pinrail_component_t* const descriptor = component->descriptor;
  void* context = nullptr;
  fill_host(component);
  if (listed.framework == kHookFramework && component->handle != nullptr) pin(listed.path);
  opened.reserve(components_.size());  // before open(), because close_all() must find every opened component
  const LastLogLine words;
  listed.status = answer_of_component([&] { return descriptor->open(&component->host, &context); });
  if (listed.status.ok()) {
    component->opened = true;
    opened.push_back({descriptor, context, &component->host, component->is_requested()});
    log(PINRAIL_LOG_DEBUG, "opened " + listed.framework + " component " + listed.name + " (" + listed.path + ")");
    return;
  }
  listed.reason = "does not open: " + words.with(listed.status);
  if (component->is_requested()) return;
  const bool usual = listed.status.is(PINRAIL_ERR_NOT_AVAILABLE);
  log(usual ? PINRAIL_LOG_INFO : PINRAIL_LOG_WARN, "skipped " + listed.path + ": it " + listed.reason);
}

// Reports a component that was asked for and not found. Returns NOT_FOUND.
Status Loader::report_missing(const Chosen& chosen, const std::string& name) {
  const std::string framework = chosen.framework.name;
  const std::string advice =
      param::did_you_mean(name, names_of(framework),
                          "see what there is with pinrail_info, or set mca_base_component_path") +
      (framework == "rcache" ? "; which index a pool uses is mpool_grdma_rcache_name" : "");
  report::help("no such component", {{"source", params_.origin(framework).c_str()},
                                     {"framework", framework.c_str()},
                                     {"name", name.c_str()},
                                     {"path", params_.value("mca_base_component_path").s},
                                     {"advice", advice.c_str()}});
  return PINRAIL_ERR_NOT_FOUND;
}

// Reports a component that was asked for and is not open. Returns the status of its checks or its open().
Status Loader::report_unusable(const Component& component) {
  const Listed& listed = component.listed;
  const std::string why = listed.path + " " + listed.reason;
  report::help("component unusable", {{"framework", listed.framework.c_str()},
                                      {"name", listed.name.c_str()},
                                      {"source", params_.origin(listed.framework).c_str()},
                                      {"why", why.c_str()},
                                      {"status", status_name(listed.status.code())}});
  return listed.status;
}

std::vector<std::string_view> Loader::names_of(std::string_view framework) const {
  std::vector<std::string_view> names;
  for (const auto& component : components_) {
    if (component->listed.framework == framework) names.emplace_back(component->listed.name);
  }
  return names;
}

// A misspelled name in a list of exclusions excludes nothing, so it is reported.
void Loader::check_exclusions(const std::vector<std::string>& shipped) {
  const auto has = [](const auto& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const Chosen& chosen : frameworks_) {
    if (!chosen.selection.exclude) continue;
    const std::string framework = chosen.framework.name;
    const std::vector<std::string_view> names = names_of(framework);
    for (const std::string& name : chosen.selection.names) {
      if (has(names, name) || has(shipped, param::full_name(framework, name, ""))) continue;
      const std::string advice = param::did_you_mean(name, names, "see what there is with pinrail_info");
      report::help("nothing left out", {{"source", params_.origin(framework).c_str()},
                                        {"framework", framework.c_str()},
                                        {"name", name.c_str()},
                                        {"advice", advice.c_str()}});
    }
  }
}

// Returns an error if a component that was asked for by name is not open.
Status Loader::require_named(const Chosen& chosen) {
  Status result = success();
  if (chosen.selection.exclude || chosen.selection.is_none()) return result;
  for (const std::string& name : chosen.selection.names) {
    const Component* found = component(chosen.framework.name, name);
    if (found != nullptr && found->opened) continue;
    result.keep_first(found == nullptr ? report_missing(chosen, name) : report_unusable(*found));
  }
  return result;
}

// Opens the selected components of a framework; an error if one that was asked for by name is not open.
Status Loader::open(std::string_view framework) {
  const Chosen* const selected = chosen(framework);
  if (selected == nullptr) return PINRAIL_ERR_BAD_PARAM;
  std::vector<Component*> wanted;
  for (const auto& component : components_) {
    const bool usable = component->descriptor != nullptr && component->listed.selected && !component->opened;
    if (usable && component->listed.framework == framework) wanted.push_back(component.get());
  }
  std::sort(wanted.begin(), wanted.end(), opens_before);
  for (Component* component : wanted) open_one(component);
  return require_named(*selected);
}

const std::vector<Opened>& Loader::opened(std::string_view framework) const {
  const Chosen* const selected = chosen(framework);
  return selected != nullptr ? selected->opened : none_;
}

// Closes the components in reverse order of opening, and unmaps them.
void Loader::close_all() {
  for (auto chosen = frameworks_.rbegin(); chosen != frameworks_.rend(); ++chosen) {
    for (; !chosen->opened.empty(); chosen->opened.pop_back()) {
      const Opened& last = chosen->opened.back();
      if (last.descriptor->close == nullptr) continue;
      end_by_component(chosen->framework.name, last.descriptor->name, "close",
                       [&] { last.descriptor->close(last.context); });
    }
  }
  for (auto next = components_.rbegin(); next != components_.rend(); ++next) {
    if ((*next)->handle == nullptr) continue;
    (*next)->descriptor = nullptr;
    dlclose(std::exchange((*next)->handle, nullptr));
  }
}

// The services of base for a component: its parameters, its log and its help texts. This is a C interface: no exception
// leaves it. Components call these functions in start-up or API context.

static thread_local LastLogLine* listening = nullptr;

LastLogLine::LastLogLine() : outer_(listening) { listening = this; }
LastLogLine::~LastLogLine() { listening = outer_; }

std::string LastLogLine::with(Status status) const {
  return status_name(status.code()) + (line_.empty() ? "" : " (" + line_ + ")");
}

void record_last_log_line(const char* line) {
  if (listening != nullptr) listening->line_ = line;
}

void report_thrown(const char* framework, const char* name, const char* function) {
  (void)guarded([&] {
    const std::string component = param::full_name(framework, name, "");
    report::help("component throws", {{"component", component.c_str()}, {"function", function}});
  });
}

// Start-up context. Fills the component's host table before its open().
void Loader::fill_host(Component* component) {
  const Listed& listed = component->listed;
  component->params = &params_;
  component->verbosity = params_.watch(param::full_name(listed.framework, listed.name, "verbose"));
  component->host = services_;
  component->host.size = sizeof(pinrail_host_t);
  component->host.abi = PINRAIL_HOST_ABI;
  component->host.self = component;
  component->host.param = host_param;
  component->host.param_info = host_param_info;
  component->host.log = host_log;
  component->host.help = host_help;
}

}  // namespace pinrail::loader
