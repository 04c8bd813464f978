// SPDX-License-Identifier: BSD-3-Clause
// soak_options.h - what soak was asked to do.
#ifndef PINRAIL_TEST_GPU_SOAK_OPTIONS_H
#define PINRAIL_TEST_GPU_SOAK_OPTIONS_H

#include <cstddef>
#include <cstdint>

#include "test/gpu/memory.h"

namespace pinrail::gpu_test {

struct SoakOptions {
  bool is_double = false;
  int mode = 3;
  Kind kind = Kind::ipc;
  const char* kind_name = "ipc";
  uint64_t rounds = 100000;
  size_t unit = size_t{16} << 10;  // bytes that lengths are multiples of; physical memory comes in larger pieces
  const char* monitor = "external";
  const char* free = "notify";
  bool defers() const { return *free == 'd'; }
};

// 0: go on; else, with exit_out, the program ends: help was asked for, or an option is wrong (said on stderr).
bool read_options(int argc, char** argv, SoakOptions* options_out, int* exit_out);

}  // namespace pinrail::gpu_test

#endif
