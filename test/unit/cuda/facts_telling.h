// SPDX-License-Identifier: BSD-3-Clause
// facts_telling.h - the macros of facts.inc. Included by the two files that tell facts, each of another header.
#ifndef PINRAIL_TEST_UNIT_CUDA_FACTS_TELLING_H
#define PINRAIL_TEST_UNIT_CUDA_FACTS_TELLING_H

#include <cstddef>
#include <string>
#include <type_traits>

#include "test/unit/cuda/facts.h"

namespace pinrail::test {
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
