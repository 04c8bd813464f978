// SPDX-License-Identifier: BSD-3-Clause
// check.h - a scenario as a test case: every interleaving is right, and it says how many there were.
#ifndef PINRAIL_TEST_MODEL_CHECK_H
#define PINRAIL_TEST_MODEL_CHECK_H

#include "test/model/explorer.h"

namespace pinrail::model {

// Fails the running test case, with the execution that went wrong.
void expect_right(const Scenario& scenario);

}  // namespace pinrail::model

#endif
