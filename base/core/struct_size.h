// SPDX-License-Identifier: BSD-3-Clause
// struct_size.h - sizes of structs that cross the C interface; each begins with its own (C1).
//
// Threads  all functions may run together, in any context.
#ifndef PINRAIL_BASE_CORE_STRUCT_SIZE_H
#define PINRAIL_BASE_CORE_STRUCT_SIZE_H

#include <cstddef>

namespace pinrail {

// Whether a struct of an older header, which has the first fields of Struct, may have this size. Other sizes end inside
// a field, half of which would be read or written. No field is longer than the alignment of its struct, but for texts
// and arrays, which their callers must check.
template <typename Struct>
constexpr bool ends_between_fields(size_t size) {
  return size >= sizeof(size_t) && size % alignof(Struct) == 0;
}

}  // namespace pinrail

#endif
