// SPDX-License-Identifier: BSD-3-Clause
// plugin.h - a library that finds libibverbs' functions by other ways than the program does.
#ifndef PINRAIL_TEST_PINRUN_PLUGIN_H
#define PINRAIL_TEST_PINRUN_PLUGIN_H

#include <infiniband/verbs.h>

#undef ibv_reg_mr

namespace pinrail::test {

struct Door {
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_rereg_mr) rereg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
};

// What the plugin exports.
using GetDoor = Door (*)();

}  // namespace pinrail::test

#endif
