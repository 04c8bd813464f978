// SPDX-License-Identifier: BSD-3-Clause
// choice.h - which pool and registrar a program gets that names none, and why it does not get the others. Found out by
// creating pools.
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
  std::string pool, registrar;  // empty: no pool can be created
  std::string why_none;
  std::string monitors;  // names separated by commas; empty: none is at work
  std::vector<Passed> passed;
};

// Finds the choice by trial; between init and finalize, while no other pool exists.
Choice find_choice(const std::vector<pinrail_component_info_t>& components);

}  // namespace pinrail::info

#endif
