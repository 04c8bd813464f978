// SPDX-License-Identifier: BSD-3-Clause
// The services of base for a component: its parameters, its log and its help texts. This is a C interface: no exception
// leaves it. Components call these functions in start-up or API context.
#include "base/loader/loader.h"
#include "base/loader/loader_impl.h"
#include "base/report/report.h"

namespace pinrail::loader {

namespace {
thread_local LastLogLine* listening = nullptr;
}  // namespace

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

namespace {

const HostRecord& record_of(const pinrail_host_t* host) { return *static_cast<const HostRecord*>(host->self); }

// C7.
void report_undeclared(const HostRecord& record, const char* name) {
  const std::string component = param::full_name(record.framework, record.name, "");
  report::help("undeclared parameter", {{"component", component.c_str()}, {"name", name}});
}

// The value of the component's own parameter `name`. NOT_FOUND: it has not declared it.
pinrail_status_t host_param(const pinrail_host_t* host, const char* name, pinrail_param_value_t* value_out) {
  if (host == nullptr || name == nullptr || value_out == nullptr) return PINRAIL_ERR_BAD_PARAM;
  return guarded([=]() -> pinrail_status_t {
    const HostRecord& record = record_of(host);
    pinrail_param_info_t info{};
    const Status status = record.params->find(param::full_name(record.framework, record.name, name), &info);
    // Compares the parts as well: "y" of grdma_x and "x_y" of grdma have the same full name.
    if (!status.ok() || record.framework != info.framework || record.name != info.component) {
      report_undeclared(record, name);
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
    const Status status = record_of(host).params->find(name, &info);
    return status.ok() ? param::copy_info(info, info_out).code() : status.code();
  });
}

void host_log(const pinrail_host_t* host, pinrail_log_level_t level, const char* line) {
  if (host == nullptr || line == nullptr) return;
  const HostRecord& record = record_of(host);
  // relaxed: no other data depends on the number.
  const int verbosity =
      record.verbosity == nullptr ? 0 : static_cast<int>(record.verbosity->load(std::memory_order_relaxed));
  guarded([&] {
    record_last_log_line(line);
    report::log(record.name, verbosity, level, line);
    return PINRAIL_SUCCESS;
  });
}

void host_help(const pinrail_host_t* host, const char* topic, const pinrail_help_arg_t* args, size_t arg_count) {
  if (host == nullptr || topic == nullptr) return;
  const HostRecord& record = record_of(host);
  guarded([&] {
    report::help(record.name, record.catalogue, topic, args, args == nullptr ? 0 : arg_count);
    return PINRAIL_SUCCESS;
  });
}

}  // namespace

const void* services_self(const pinrail_host_t* host) { return record_of(host).services_self; }

// Start-up context. Fills the component's host table before its open().
void Loader::Impl::fill_host(Component* component) {
  HostRecord& record = component->record;
  const char* const catalogue = component->descriptor->help_catalogue;
  record.services_self = services.self;
  record.params = &params;
  record.framework = component->listed.framework;
  record.name = component->listed.name;
  record.catalogue = catalogue != nullptr ? catalogue : "";
  record.verbosity = params.watch(param::full_name(record.framework, record.name, "verbose"));
  component->host = services;
  component->host.size = sizeof(pinrail_host_t);
  component->host.abi = PINRAIL_HOST_ABI;
  component->host.self = &record;
  component->host.param = host_param;
  component->host.param_info = host_param_info;
  component->host.log = host_log;
  component->host.help = host_help;
}

}  // namespace pinrail::loader
