// SPDX-License-Identifier: BSD-3-Clause
// descriptor.h - checks whether this library can call a component.
//
// Context  start-up.
#ifndef PINRAIL_BASE_LOADER_DESCRIPTOR_H
#define PINRAIL_BASE_LOADER_DESCRIPTOR_H

#include <pinrail/component.h>

#include <string>
#include <string_view>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::loader {

// Return the names in a descriptor, which need not be terminated.
std::string framework_of(const pinrail_component_t& descriptor);
std::string name_of(const pinrail_component_t& descriptor);

// Compares the part of a descriptor that never moves, and the size of its table. VERSION: it was built against another
// interface. ERROR: it has another framework or name, or lacks something. In both cases *why_out gets one line with
// both sides of each difference.
Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out);

// Finds the descriptor of a mapped shared object. ERROR: it exports none. VERSION: the exported object is too small.
Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out);

}  // namespace pinrail::loader

#endif
