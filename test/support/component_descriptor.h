// SPDX-License-Identifier: BSD-3-Clause
// component_descriptor.h - the descriptor of a component of this build, linked in or from its DSO.
//
// Threads  all functions may run together.
#ifndef PINRAIL_TEST_SUPPORT_COMPONENT_DESCRIPTOR_H
#define PINRAIL_TEST_SUPPORT_COMPONENT_DESCRIPTOR_H

#include <pinrail/component.h>

#include <string>

namespace pinrail::test {

// NULL and the reason if this build has none of that name. What is found stays loaded.
const pinrail_component_t* component_under_test(const char* framework, const char* name, std::string* why_out);

}  // namespace pinrail::test

#endif
