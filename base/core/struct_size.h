// SPDX-License-Identifier: BSD-3-Clause
// struct_size.h - sizes of structs that cross the C interface; each begins with its own (C1).
//
// Threads  all functions may run together, in any context.
#ifndef PINRAIL_BASE_CORE_STRUCT_SIZE_H
#define PINRAIL_BASE_CORE_STRUCT_SIZE_H

#include <cstddef>
#include <cstring>

namespace pinrail {

// Whether a struct of an older header, which has the first fields of Struct, may have this size. Other sizes end inside
// a field, half of which would be read or written. No field is longer than the alignment of its struct, but for texts
// and arrays, which their callers must check.
template <typename Struct>
constexpr bool ends_between_fields(size_t size) {
  return size >= sizeof(size_t) && size % alignof(Struct) == 0;
}

// Copies as much of a struct as to_out->size, which ends between fields, allows. It becomes the size of the copy.
template <typename Struct>
void copy_sized(const Struct& from, Struct* to_out) {
  const size_t size = to_out->size < sizeof(from) ? to_out->size : sizeof(from);
  std::memcpy(to_out, &from, size);
  to_out->size = size;
}

}  // namespace pinrail

#endif
