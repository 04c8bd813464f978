// SPDX-License-Identifier: BSD-3-Clause
// facts.h - what a header says of the CUDA driver's binary interface, as text, so that two headers can be compared.
#ifndef PINRAIL_TEST_UNIT_CUDA_FACTS_H
#define PINRAIL_TEST_UNIT_CUDA_FACTS_H

#include <cstddef>
#include <map>
#include <string>
#include <type_traits>

namespace pinrail::test {

using Facts = std::map<std::string, std::string>;  // by name

Facts facts_of_ours();     // base/cuda/cuda_driver.h and test/fake/cuda/cuda_for_tests.h
Facts facts_of_toolkit();  // cuda.h; empty: configure found none

// The macros of facts.inc. Included by the two files that tell facts, each of another header.

namespace {  // two files tell of types of the same names

// The type in the compiler's words, with all names of types resolved.
template <typename T>
std::string words_of() {
  return __PRETTY_FUNCTION__;
}

template <typename T>
std::string layout_of() {
  return "size " + std::to_string(sizeof(T)) + ", alignment " + std::to_string(alignof(T)) + ": " + words_of<T>();
}

template <typename Field>
std::string field_at(size_t offset) {
  return "at " + std::to_string(offset) + ", size " + std::to_string(sizeof(Field)) + ": " + words_of<Field>();
}

}  // namespace
}  // namespace pinrail::test

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define VALUE(name) facts[#name] = std::to_string(static_cast<long long>(name));
#define TYPE(name) facts[#name] = layout_of<name>();
#define FIELD(type, name) \
  facts[#type "." #name] = field_at<std::remove_reference_t<decltype(type{}.name)>>(offsetof(type, name));
#define FUNCTION(name) facts[#name] = TEXT(name) " is " + words_of<decltype(name)>();

#endif
