// SPDX-License-Identifier: BSD-3-Clause
// span.h - half-open ranges of addresses.
//
// Hook     All functions but union_length(): no other allocates, and none takes a lock.
#ifndef PINRAIL_BASE_CORE_SPAN_H
#define PINRAIL_BASE_CORE_SPAN_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pinrail {

struct Span {
  uintptr_t base = 0;
  uintptr_t end = 0;  // first address after the range

  static constexpr Span of(uintptr_t base, size_t length) { return {base, base + length}; }
  static Span of(const void* base, size_t length) { return of(reinterpret_cast<uintptr_t>(base), length); }

  constexpr size_t length() const { return end - base; }
  constexpr bool contains(const Span& other) const { return base <= other.base && other.end <= end; }
  constexpr bool overlaps(const Span& other) const { return base < other.end && other.base < end; }
};

// Spans are numbers, system calls and callers take pointers.
inline void* pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// The address without its tag, which the processor and the kernel ignore: top byte ignore of 64-bit Arm, LAM of x86-64.
constexpr uintptr_t without_tag(uintptr_t address) {
#if defined(__aarch64__)
  return address & ~(uintptr_t{0xff} << 56);
#elif defined(__x86_64__)
  return address & ~(uintptr_t{0x3f} << 57);
#else
  return address;
#endif
}

// Returns whether base + length does not overflow.
constexpr bool fits(uintptr_t base, size_t length) { return length <= UINTPTR_MAX - base; }

// Rounds both ends outwards to multiples of `granularity`, a power of two. False, and unchanged, if the end would
// overflow.
constexpr bool round_out(Span* span, size_t granularity) {
  const uintptr_t mask = granularity - 1;
  if (span->end > UINTPTR_MAX - mask) return false;
  span->base &= ~mask;
  span->end = (span->end + mask) & ~mask;
  return true;
}

// Rounds both ends inwards to multiples of `granularity`, a power of two. Returns false, and leaves it unchanged, if no
// whole multiple lies inside.
constexpr bool round_in(Span* span, size_t granularity) {
  const uintptr_t mask = granularity - 1;
  if (span->base > UINTPTR_MAX - mask || ((span->base + mask) & ~mask) >= (span->end & ~mask)) return false;
  *span = {(span->base + mask) & ~mask, span->end & ~mask};
  return true;
}

// Returns the number of bytes that at least one of the spans covers. Sorts the spans.
inline size_t union_length(std::vector<Span>* spans) {
  std::sort(spans->begin(), spans->end(), [](const Span& a, const Span& b) { return a.base < b.base; });
  size_t total = 0;
  uintptr_t covered_to = 0;
  for (const Span& span : *spans) {
    if (span.end <= covered_to) continue;
    total += span.end - std::max(span.base, covered_to);
    covered_to = span.end;
  }
  return total;
}

}  // namespace pinrail

#endif
