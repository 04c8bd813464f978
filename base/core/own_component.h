// SPDX-License-Identifier: BSD-3-Clause
// own_component.h - what the components of Pinrail do alike: the descriptor that they export, and their messages.
//
// Threads  All functions may run together.
// Context  start-up or API.
#ifndef PINRAIL_BASE_CORE_OWN_COMPONENT_H
#define PINRAIL_BASE_CORE_OWN_COMPONENT_H

#include <pinrail/component.h>

#include <cstdio>
#include <initializer_list>
#include <iterator>

#include "base/core/errno_text.h"

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;

namespace pinrail {

// The descriptor of a component without parameters and messages.
template <size_t F, size_t N>
constexpr pinrail_component_t describe(uint32_t abi, int32_t priority, const char (&framework)[F],
                                       const char (&name)[N], const char* help,
                                       decltype(pinrail_component_t::open) open,
                                       decltype(pinrail_component_t::close) close, const void* ops) {
  pinrail_component_t component{};
  component.size = sizeof(component);
  component.abi = abi;
  component.priority = priority;
  for (size_t i = 0; i < F; ++i) component.framework[i] = framework[i];
  for (size_t i = 0; i < N; ++i) component.name[i] = name[i];
  component.version = "1.0.0";
  component.help = help;
  component.open = open;
  component.close = close;
  component.ops = ops;
  return component;
}

// The same component with parameters and messages.
template <size_t P>
constexpr pinrail_component_t with_params(pinrail_component_t component, const char* help_catalogue,
                                          const pinrail_param_t (&params)[P],
                                          const char* const* synonym_prefixes = nullptr) {
  component.help_catalogue = help_catalogue;
  component.params = params;
  component.param_count = P;
  component.synonym_prefixes = synonym_prefixes;
  return component;
}

// open and close of a component whose only state is the host.
inline pinrail_status_t keep_host(const pinrail_host_t* host, void** context_out) {
  *context_out = const_cast<pinrail_host_t*>(host);  // NOLINT(cppcoreguidelines-pro-type-const-cast): never written
  return PINRAIL_SUCCESS;
}
inline void forget_host(void* /*context*/) {}

// Shows a topic of the component's help catalogue, with a number of bytes and an errno if it names them.
inline void show(const pinrail_host_t* host, const char* topic, std::initializer_list<pinrail_help_arg_t> args = {}) {
  host->help(host, topic, args.begin(), args.size());
}
inline void show_errno(const pinrail_host_t* host, const char* topic, size_t bytes, int error) {
  show(host, topic, {{"bytes", NumberText(bytes).c_str()}, {"errno", ErrnoText(error).c_str()}});
}

// Logs why something is not there; the line is shown from verbosity 10 on.
inline void log_reason(const pinrail_host_t* host, const char* what, const char* why) {
  char line[256];
  std::snprintf(line, sizeof(line), "%s: %s", what, why);
  host->log(host, PINRAIL_LOG_INFO, line);
}

}  // namespace pinrail

#endif
