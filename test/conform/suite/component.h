// SPDX-License-Identifier: BSD-3-Clause
// component.h - one check of a conformance suite: which rules it tests, its claim, its function; and what it found.
//
// pinrail_conform runs each check in a process of its own. The tests of our own registrars run the same checks under
// GoogleTest (test/conform/registrar_conformance.h).
//
// Threads  one check at a time in a process.
#ifndef PINRAIL_TEST_CONFORM_SUITE_COMPONENT_H
#define PINRAIL_TEST_CONFORM_SUITE_COMPONENT_H

#include <pinrail/component_mpool.h>
#include <pinrail/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace pinrail::conform {

// What a check found. The first rule that is broken is kept.
struct Verdict {
  std::string rule;                      // "R2", of framework/RULES; empty: every rule was kept
  std::string words;                     // what is not so
  std::string skipped;                   // why the check does not apply here
  std::string at;                        // the case that the check has reached; a part of the words
  std::chrono::milliseconds trial{500};  // of a check that tries something again and again

  void breaks(const char* broken_rule, const std::string& what) {
    if (!rule.empty()) return;
    rule = broken_rule;
    words = at.empty() ? what : what + " (" + at + ")";
  }
  bool kept() const { return rule.empty(); }
};

// Ends the check if the condition does not hold: then the rule is broken. what: what is not so, for the author of the
// component.
#define KEEPS(rule, condition, what) \
  do {                               \
    if (!(condition)) {              \
      verdict->breaks(rule, what);   \
      return;                        \
    }                                \
  } while (false)

// Ends the check where it does not apply.
#define APPLIES_IF(condition, why) \
  do {                             \
    if (!(condition)) {            \
      verdict->skipped = why;      \
      return;                      \
    }                              \
  } while (false)

// A check of subjects of one framework.
template <typename Subject>
struct Check {
  const char* rule;   // the rule that a crash or a hang of this check breaks
  const char* claim;  // words joined by "_", as the names of test cases
  void (*run)(const Subject& subject, Verdict* verdict);
};

// C5.
inline bool is_status(int code) { return code <= PINRAIL_SUCCESS && code >= PINRAIL_ERR_VERSION; }

// A component file under test, of any framework, and what each framework's suite checks.
//
// Owns     nothing: what is loaded stays loaded until the process ends.
// Threads  one check at a time in a process.

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
