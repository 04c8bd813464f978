// SPDX-License-Identifier: BSD-3-Clause
// choice.h - what a program gets that asks for a pool and names nothing, and why it gets nothing else. It is found out
// by making pools.
#ifndef PINRAIL_CONTRIB_TOOLS_INFO_CHOICE_H
#define PINRAIL_CONTRIB_TOOLS_INFO_CHOICE_H

#include <pinrail/listing.h>

#include <string>
#include <vector>

namespace pinrail::info {

struct Passed {  // a component that is not used
  std::string framework, name, why;
};

struct Choice {
  std::string pool, registrar;  // empty: no pool can be made
  std::string why_none;
  std::string monitors;  // with commas between them; empty: none is at work
  std::vector<Passed> passed;
};

// Between init and finalize, without other pools.
Choice find_choice(const std::vector<pinrail_component_info_t>& components);

}  // namespace pinrail::info

#endif
