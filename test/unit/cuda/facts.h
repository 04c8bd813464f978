// SPDX-License-Identifier: BSD-3-Clause
// facts.h - what a header says of the CUDA driver's binary interface, as text, so that two headers can be compared.
#ifndef PINRAIL_TEST_UNIT_CUDA_FACTS_H
#define PINRAIL_TEST_UNIT_CUDA_FACTS_H

#include <map>
#include <string>

namespace pinrail::test {

using Facts = std::map<std::string, std::string>;  // by name

Facts facts_of_ours();     // base/cuda/cuda_driver.h and test/fake/cuda/cuda_for_tests.h
Facts facts_of_toolkit();  // cuda.h; empty: configure found none

}  // namespace pinrail::test

#endif
