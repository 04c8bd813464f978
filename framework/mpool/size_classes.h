// SPDX-License-Identifier: BSD-3-Clause
// size_classes.h - the sizes of small allocations: multiples of 64 bytes, four per doubling from 256 bytes on.
//
// Threads  all functions may run together.
//
// The smallest class that holds a length wastes at most a fifth of it, or 63 bytes.
#ifndef PINRAIL_FRAMEWORK_MPOOL_SIZE_CLASSES_H
#define PINRAIL_FRAMEWORK_MPOOL_SIZE_CLASSES_H

#include <cstddef>
#include <cstdint>

namespace pinrail::mpool::size_classes {

constexpr size_t kUnit = 64;
constexpr size_t kLargest = size_t{1} << 20;

constexpr unsigned log2_of(size_t number) { return 63U - static_cast<unsigned>(__builtin_clzll(number)); }

// The class of a length from 1 to kLargest.
constexpr unsigned class_of(size_t length) {
  const size_t units = (length + kUnit - 1) / kUnit;
  if (units <= 4) return static_cast<unsigned>(units - 1);
  const unsigned power = log2_of(units - 1);  // units is in (2^power, 2^(power+1)]
  return 4 + (power - 2) * 4 + static_cast<unsigned>((units - 1 - (size_t{1} << power)) >> (power - 2));
}

constexpr size_t size_of(unsigned cls) {
  if (cls < 4) return (cls + 1) * kUnit;
  const unsigned power = 2 + (cls - 4) / 4;
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): no class is above kClasses
  return ((size_t{1} << power) + (size_t{(cls - 4) % 4} + 1) * (size_t{1} << (power - 2))) * kUnit;
}

constexpr unsigned kClasses = class_of(kLargest) + 1;
static_assert(size_of(kClasses - 1) == kLargest, "the last class is the largest");
static_assert(size_of(class_of(257)) == 320 && size_of(class_of(320)) == 320 && size_of(class_of(321)) == 384, "");

// The class of an aligned length: its objects lie at multiples of their size in a slab of 2 MiB.
constexpr unsigned class_of(size_t length, size_t alignment) {
  unsigned cls = class_of(length);
  while (cls < kClasses && size_of(cls) % alignment != 0) ++cls;
  return cls;
}

}  // namespace pinrail::mpool::size_classes

#endif
