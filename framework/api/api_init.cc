// SPDX-License-Identifier: BSD-3-Clause
// Init and finalize: load parameters, components and monitors, in that order, and unload them in reverse.
//
// Context  start-up, except the host services: each runs in the context that component.h gives for its entry.
// Locks    pinrail_init() and pinrail_finalize() exclude all other calls; they hold the lock of rank "fork" (NoFork).
// References  the program may hold references; the last pinrail_finalize() then returns BUSY.
#include "config.h"

#include <cstring>

#include "base/report/report.h"
#include "base/sync/fork_reinit.h"
#include "framework/api/api.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/gc_thread.h"
#include "framework/registrar/registrar.h"

namespace pinrail::api {
namespace {

// State of init and finalize. No lock guards it: by contract these calls exclude each other.
Library* the_library = nullptr;
unsigned entries = 0;
unsigned inherited_entries = 0;  // in a forked child: calls of init in the parent, which the child may still finalize

// The frameworks and their ABI numbers. Not a static object: a fork on another thread could find it half constructed.
std::vector<loader::Framework> frameworks() {
  return {
      {"mpool", PINRAIL_MPOOL_ABI, sizeof(pinrail_mpool_ops_t)},
      {"rcache", PINRAIL_RCACHE_ABI, sizeof(pinrail_rcache_ops_t)},
      {"registrar", PINRAIL_REGISTRAR_ABI, sizeof(pinrail_registrar_ops_t), registrar::is_complete},
      {"monitor", PINRAIL_MONITOR_ABI, sizeof(pinrail_monitor_ops_t), monitor::is_complete},
  };
}

// Components of this distribution. Their parameters are not reported as unknown where the component is not loaded.
std::vector<std::string> shipped() {
  return {
      "mpool_grdma",        "mpool_gpusm",     "mpool_rgpusm",      "mpool_mrall",
      "mpool_odp",          "rcache_vma",      "rcache_grdma",      "rcache_rgpusm",
      "registrar_verbs",    "registrar_mlock", "registrar_iouring", "monitor_patcher",
      "registrar_cuda_ipc", "monitor_uffd",    "monitor_cuda",      "monitor_external",
  };
}

// Whether the array exists and each setting has a name and a value.
bool are_named(const pinrail_setting_t* settings, size_t count) {
  if (count != 0 && settings == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    if (settings[i].name == nullptr || settings[i].value == nullptr) return false;
  }
  return true;
}

// The shortest options that are accepted: those of programs that were built with an older header.
constexpr size_t kLeastOptions = offsetof(pinrail_init_options_t, settings_from);

// Copies the caller's options and sets missing fields to their defaults. BAD_PARAM: their size or a setting is wrong.
Status copy_options(const pinrail_init_options_t& given, pinrail_init_options_t* options_out) {
  constexpr const char* kCall = "pinrail_init";
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  if (given.size < kLeastOptions || given.size > sizeof(given) || !ends_between_fields<decltype(options)>(given.size)) {
    return refuse(kCall, "options->size is not sizeof(pinrail_init_options_t)");
  }
  std::memcpy(&options, &given, given.size);
  if (!are_named(options.defaults, options.default_count) || !are_named(options.settings, options.setting_count)) {
    return refuse(kCall, "a setting of options has no name or no value, or the array is NULL");
  }
  *options_out = options;
  return success();
}

void append(const pinrail_setting_t* settings, size_t count, std::vector<param::Setting>* out) {
  for (size_t i = 0; i < count; ++i) out->push_back({settings[i].name, settings[i].value});
}

// Reads the parameters, loads and opens the components, starts the monitors. On an error the caller unloads the
// library.
Status load_library(Library* library, const pinrail_init_options_t& options) {
  param::Sources sources = param::process_sources();
  append(options.defaults, options.default_count, &sources.defaults);
  append(options.settings, options.setting_count, &sources.settings);
  if (options.settings_from != nullptr) sources.settings_from = options.settings_from;
  Status status = library->params.read_sources(sources);
  if (status.ok()) status = mpool::declare(&library->params);
  if (!status.ok()) return status;
  library->loader = std::make_unique<loader::Loader>(library->params, make_services());
  status = library->loader->discover(frameworks());
  if (!status.ok()) return status;
  for (const auto declare : {record::declare, monitor::declare, fork_marks::declare}) {
    status = declare(&library->params);
    if (!status.ok()) return status;
  }
  library->params.finish(shipped());
  library->loader->check_exclusions(shipped());
  fork_marks::start(library->params);
  for (const loader::Framework& framework : frameworks()) {
    status = library->loader->open(framework.name);
    if (!status.ok()) return status;
  }
  status = monitor::start(*library->loader, library->params);
  if (status.ok()) record::start(library->params);
  return status;
}

// Stops the gc thread and the monitors, closes the components, then deletes the library: components read parameters
// until they are closed.
void unload_library(Library* library) {
  record::stop();
  gc::stop();
  if (library->loader != nullptr) {
    // This also runs after a failed init, where memory may have been exhausted.
    (void)guarded([library] { monitor::stop(*library->loader); });
    library->loader->close_all();
  }
  the_library = nullptr;
  delete library;
}

// The first pinrail_init(): loads the library.
Status first_init(const pinrail_init_options_t& options) {
  gate::open();  // first, so that a child forked by another thread from now on is recognised
  report::forget();
  std::unique_ptr<Library, decltype(&unload_library)> library(
      new Library, unload_library);  // also unloads when load_library() fails or throws
  the_library = library.get();       // components may call host services while they open
  const Status status = load_library(library.get(), options);
  if (status.ok()) static_cast<void>(library.release());  // the_library owns it
  return status;
}

// Whether a later setting is of the same parameter, perhaps by another name. The last one decides.
bool is_set_later(const pinrail_init_options_t& options, size_t at, const pinrail_param_info_t& param) {
  pinrail_param_info_t other{};
  for (size_t i = at + 1; i < options.setting_count; ++i) {
    const bool is_known = the_library->params.find(options.settings[i].name, &other).ok();
    if (is_known && std::strcmp(other.name, param.name) == 0) return true;
  }
  return false;
}

// A nested pinrail_init(): its settings must equal the values in force. BAD_PARAM: one differs.
Status nested_init(const pinrail_init_options_t& options) {
  for (size_t i = 0; i < options.setting_count; ++i) {
    const pinrail_setting_t& setting = options.settings[i];
    pinrail_param_info_t info{};
    pinrail_param_value_t value{};
    std::string why;
    Status status = the_library->params.find(setting.name, &info);
    if (!status.ok()) continue;  // unknown names are no error in the first init either
    if (info.source == PINRAIL_SOURCE_OVERRIDE || is_set_later(options, i, info)) continue;  // as in the first init
    status = param::parse(*info.declaration, setting.value, &value, &why);
    if (status.ok() && param::format(*info.declaration, value) == param::format(*info.declaration, info.typed))
      continue;
    help("already initialised", {{"name", setting.name}, {"value", setting.value}, {"now", info.value}});
    return PINRAIL_ERR_BAD_PARAM;
  }
  return success();
}

// pinrail_init(): copies the options and counts the call. Forks on other threads wait meanwhile.
Status enter(const pinrail_init_options_t& given) {
  handle_fork();
  const NoFork no_fork;
  if (!no_fork) return PINRAIL_ERR_BUSY;
  pinrail_init_options_t options{};
  Status status = copy_options(given, &options);
  if (!status.ok()) return status;
  status = entries == 0 ? first_init(options) : nested_init(options);
  if (status.ok()) ++entries;
  return status;
}

// pinrail_finalize(): uncounts the call; the last one destroys the pools and unloads the library. BUSY: a registration
// is referenced, and nothing has changed. A child may also finalize as often as its parent called init.
Status leave() {
  handle_fork();
  const NoFork no_fork;
  if (!no_fork) return PINRAIL_ERR_BUSY;
  if (entries == 0 && inherited_entries == 0) return refuse("pinrail_finalize", kBeforeInit);
  if (entries != 1) {
    --(entries == 0 ? inherited_entries : entries);
    return success();
  }
  const Status status = close_pools(the_library);
  if (!status.ok()) return status;
  unload_library(the_library);
  entries = 0;
  return success();
}

}  // namespace

Library* library() {
  handle_fork();
  return the_library;
}
param::Registry* the_registry() { return library() == nullptr ? nullptr : &the_library->params; }
loader::Loader* the_loader() { return library() == nullptr ? nullptr : the_library->loader.get(); }

void fork_reinit_library() {
  replace_in_child(&the_library, nullptr);
  inherited_entries += entries;
  entries = 0;
}

}  // namespace pinrail::api

pinrail_status_t pinrail_init(const pinrail_init_options_t* options) {
  const pinrail_init_options_t none = PINRAIL_INIT_OPTIONS_INIT;
  return pinrail::api::guarded_call([&] { return pinrail::api::enter(options != nullptr ? *options : none); });
}

pinrail_status_t pinrail_finalize(void) { return pinrail::api::guarded_call(pinrail::api::leave); }

const char* pinrail_status_name(pinrail_status_t status) { return pinrail::status_name(status); }

const char* pinrail_status_text(pinrail_status_t status) { return pinrail::status_text(status); }

void pinrail_set_message_function(pinrail_message_t function, void* arg) {
  pinrail::api::handle_fork();
  pinrail::report::divert(function, arg);
}

const char* pinrail_version(void) { return PACKAGE_VERSION; }
