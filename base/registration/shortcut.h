// SPDX-License-Identifier: BSD-3-Clause
// shortcut.h - the in-tree services that the library has for its own components: the memory of registrations by number,
// and when monitors report.
//
// It is not installed. A component asks for it by extension(name, version) of the host table and refuses a library of
// another version. Raise kVersion with every change of this header or of base/core/thread_record.h.
#ifndef PINRAIL_BASE_REGISTRATION_SHORTCUT_H
#define PINRAIL_BASE_REGISTRATION_SHORTCUT_H

#include <pinrail/component_rcache.h>

#include <cstring>

#include "base/core/thread_record.h"

struct pinrail_host_shortcut_t {
  size_t size;
  char* const* chunks;                                  // base/registration/registration_arena.h
  bool (*is_told_afterwards)(void);                     // framework/monitor/monitor.h
  bool (*was_reported)(uintptr_t base, size_t length);  // the same
};

namespace pinrail::shortcut {
constexpr const char* kName = "shortcut";
constexpr uint32_t kVersion = 8;
inline bool is_asked_for(const char* name, uint32_t version) {
  return version == kVersion && std::strcmp(name, kName) == 0;
}
// NULL if the library is of another version.
inline const pinrail_host_shortcut_t* of(const pinrail_host_t* host) {
  return host->extension == nullptr
             ? nullptr
             : static_cast<const pinrail_host_shortcut_t*>(host->extension(host, kName, kVersion));
}
}  // namespace pinrail::shortcut

#endif
