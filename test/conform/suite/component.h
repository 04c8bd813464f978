// SPDX-License-Identifier: BSD-3-Clause
// component.h - a component file under test, of any framework, and what each framework's suite checks.
//
// Owns     nothing: what is loaded stays loaded until the process ends.
// Threads  one check at a time in a process.
#ifndef PINRAIL_TEST_CONFORM_SUITE_COMPONENT_H
#define PINRAIL_TEST_CONFORM_SUITE_COMPONENT_H

#include <pinrail/component_mpool.h>

#include <string>
#include <vector>

#include "test/conform/suite/check.h"

namespace pinrail::conform {

struct File {
  std::string framework;
  std::string path;
  std::string other_components;  // folders for the other components that a pool needs; "": the installed ones
};

// Loads the file and compares its descriptor, as the library does. NULL: it broke a rule.
const pinrail_component_t* load(const File& file, Verdict* verdict);

using FileCheck = Check<File>;
const std::vector<FileCheck>& component_checks();  // of every framework
const std::vector<FileCheck>& rcache_checks();
const std::vector<FileCheck>& mpool_checks();
const std::vector<FileCheck>& monitor_checks();

// The number of allocations and frees by this thread since the last call; -1 if this build cannot count them. Linked
// into programs whose allocator is the C library's.
long allocations_of_thread();

}  // namespace pinrail::conform

#endif
