// SPDX-License-Identifier: BSD-3-Clause
// Loads components: checks the file, maps it, compares its descriptor and declares its parameters. Start-up context.
#include <dlfcn.h>

#include <algorithm>

#include "base/core/trust.h"
#include "base/loader/descriptor.h"
#include "base/loader/loader_impl.h"
#include "base/param/text.h"

namespace pinrail::loader {
namespace {

const pinrail_param_t kVerbose = {
    sizeof(pinrail_param_t),
    "verbose",
    "0",
    "What the component says: 0 only what is wrong, 10 also what it does not do and why, 50 every step. Unless it is "
    "set, that of the framework's base holds.",
    PINRAIL_TYPE_INT,
    PINRAIL_SCOPE_SETTABLE,
    8,
    nullptr,
    0,
    100,
    nullptr};

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

}  // namespace

// Skips the component with one message. If the user asked for it by name, require_named() reports it instead.
void Loader::Impl::refuse(Component* component, Status status, const std::string& why) {
  Listed& listed = component->listed;
  listed.status = status;
  listed.reason = why;
  component->descriptor = nullptr;
  params.expect(param::full_name(listed.framework, listed.name, ""));
  if (chosen(listed.framework)->selection.requests(listed.name)) return;
  log(PINRAIL_LOG_WARN, "skipped " + listed.path + ": it " + why);
}

// Checks and maps the component's file and finds its descriptor. After an error the component is refused.
Status Loader::Impl::map(Component* component) {
  const std::string& path = component->listed.path;
  std::string why = trust::why_untrusted_path(path);
  Status status = why.empty() ? check_elf(path, &why) : Status(PINRAIL_ERR_PERM);
  if (status.ok()) {
    component->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (component->handle == nullptr) {
      why = loader_error(path);
      status = PINRAIL_ERR_ERROR;
    }
  }
  if (status.ok()) {
    mapped.push_back(component);
    status = find_descriptor(component->handle, &component->descriptor, &why);
  }
  if (!status.ok()) refuse(component, status, why);
  return status;
}

// BAD_PARAM: the user gave a malformed value. A component whose declarations are wrong is skipped.
Status Loader::Impl::declare_params(Component* component) {
  const Listed& listed = component->listed;
  const pinrail_component_t& descriptor = *component->descriptor;
  Status status = params.declare(listed.framework, listed.name, descriptor.params, descriptor.param_count,
                                 descriptor.synonym_prefixes);
  if (status.ok() && !declares_verbose(descriptor)) {
    status = params.declare(listed.framework, listed.name, &kVerbose, 1, descriptor.synonym_prefixes);
  }
  if (status.ok() || status.is(PINRAIL_ERR_BAD_PARAM)) return status;
  refuse(component, status, "declares its parameters wrongly");
  return success();
}

// Loads one selected component. Returns an error only for a malformed parameter; a component with another fault is
// refused, and the result is SUCCESS.
Status Loader::Impl::load(Component* component) {
  Listed& listed = component->listed;
  const Chosen& framework = *chosen(listed.framework);
  const bool is_file = component->descriptor == nullptr;
  if (is_file && !map(component).ok()) return success();
  std::string why;
  const Status status = check_descriptor(*component->descriptor, framework.framework, listed.name, &why);
  if (!status.ok()) {
    refuse(component, status, why);
    return success();
  }
  const pinrail_component_t& descriptor = *component->descriptor;
  listed.version = descriptor.version != nullptr ? descriptor.version : "";
  listed.help = descriptor.help != nullptr ? descriptor.help : "";
  listed.priority = descriptor.priority;
  listed.selected = framework.selection.allows(listed.name, descriptor.priority);
  return declare_params(component);
}

// Loads all selected components. Returns BAD_PARAM if a parameter is malformed.
Status Loader::Impl::load_all() {
  Status result = success();
  for (const auto& component : components) {
    Listed& listed = component->listed;
    if (!listed.selected) {
      params.expect(param::full_name(listed.framework, listed.name, ""));
      continue;
    }
    const Status status = load(component.get());
    if (!status.ok()) result = status;
  }
  for (const auto& component : components) {
    if (!component->listed.selected) component->listed.reason = why_not_selected(component->listed, params);
  }
  return result;
}

}  // namespace pinrail::loader
