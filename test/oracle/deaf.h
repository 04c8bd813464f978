// SPDX-License-Identifier: BSD-3-Clause
// deaf.h - for mutants: ranges whose events do not reach the pools, whatever reports them.
//
// deaf_wrap.cc takes the place of the one function through which all monitors' reports reach the pools, at link time,
// so that the library needs no door for it; deaf_none.cc is for the program that runs with the library as it is.
//
// Threads  each with a Deaf of its own, any number together; one at a time per thread.
// Hook     the filter itself.
#ifndef PINRAIL_TEST_ORACLE_DEAF_H
#define PINRAIL_TEST_ORACLE_DEAF_H

#include <cstddef>
#include <cstdint>

namespace pinrail::oracle {

bool can_be_deaf();

// Where the components are that this program uses; NULL: where the library looks.
const char* component_folder();

// While it lives, what is reported of these pages is dropped, and of ranges that reach beyond them the rest is passed
// on.
class Deaf {
 public:
  Deaf(const void* base, size_t length);
  ~Deaf();
  Deaf(const Deaf&) = delete;
  Deaf& operator=(const Deaf&) = delete;

 private:
  size_t slot_;
};

}  // namespace pinrail::oracle

#endif
