// SPDX-License-Identifier: BSD-3-Clause
// descriptor.h - is this a component that this library can call?
#ifndef PINRAIL_BASE_LOADER_DESCRIPTOR_H
#define PINRAIL_BASE_LOADER_DESCRIPTOR_H

#include <pinrail/component.h>

#include <string>
#include <string_view>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::loader {

// The name in a descriptor, which need not be terminated.
std::string framework_of(const pinrail_component_t& descriptor);
std::string name_of(const pinrail_component_t& descriptor);

// Compares what never moves in a descriptor, and the size of its table. VERSION: it was built against another border;
// ERROR: it is of another framework or name, or lacks something. In both cases one line of reason, with both sides of
// each difference.
Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out);

// The descriptor of a mapped DSO. ERROR: it exports none, or something too small to be one.
Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out);

}  // namespace pinrail::loader

#endif
