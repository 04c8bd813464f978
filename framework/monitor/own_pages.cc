// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc/self/pagemap, which every kernel since 4.2 shows without page numbers to unprivileged processes. API
// context, inside of a call, in which cancellation is disabled; takes no lock.
#include "framework/monitor/own_pages.h"

#include <unistd.h>

#include <algorithm>

#include "framework/monitor/proc_file.h"

namespace pinrail::monitor {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

namespace {

constexpr uint64_t kFrame = (uint64_t{1} << 55) - 1;
constexpr uint64_t kPresent = uint64_t{1} << 63, kOfFile = uint64_t{1} << 61, kExclusive = uint64_t{1} << 56;
// Pages that are read at first on each side, where often none counts, and then at once.
constexpr size_t kFirst = 8, kMost = 512;

ProcFile page_map("/proc/self/pagemap");

// Reads the entries of so many pages from the address on; false: the kernel does not tell.
bool read_entries(int file, uintptr_t at, size_t count, uint64_t* entries_out) {
  const size_t bytes = count * sizeof(uint64_t);
  const auto offset = static_cast<off_t>(at / page_size() * sizeof(uint64_t));
  return ::pread(file, entries_out, bytes, offset) == static_cast<ssize_t>(bytes);
}

// The end of the pages that count from `at` on, at most `end`.
uintptr_t end_of_own(int file, uintptr_t at, uintptr_t end) {
  uint64_t entries[kMost];
  while (at < end) {
    const size_t count = std::min(kMost, (end - at) / page_size());
    if (count == 0 || !read_entries(file, at, count, entries)) break;
    const uint64_t* const other = std::find_if_not(entries, entries + count, is_own_page);
    at += static_cast<size_t>(other - entries) * page_size();
    if (other != entries + count) break;
  }
  return at;
}

// The same downwards: the start of the pages that count below `at`, at least `start`.
uintptr_t start_of_own(int file, uintptr_t at, uintptr_t start) {
  uint64_t entries[kMost];
  while (at > start) {
    const size_t count = std::min(kMost, (at - start) / page_size());
    if (count == 0 || !read_entries(file, at - count * page_size(), count, entries)) break;
    size_t own = 0;
    while (own < count && is_own_page(entries[count - 1 - own])) ++own;
    at -= own * page_size();
    if (own != count) break;
  }
  return at;
}

// The few pages next to the span on both sides, by one question: those that count, together with the span.
Span own_near(int file, const Span& span, const Span& near) {
  uint64_t entries[kMost];
  const size_t page = page_size(), count = near.length() / page;
  if (!read_entries(file, near.base, count, entries)) return span;
  Span own = span;
  while (own.base > near.base && is_own_page(entries[(own.base - near.base) / page - 1])) own.base -= page;
  while (own.end < near.end && is_own_page(entries[(own.end - near.base) / page])) own.end += page;
  return own;
}

}  // namespace

bool is_own_page(uint64_t entry) { return (entry & (kPresent | kOfFile | kExclusive)) == (kPresent | kExclusive); }

Span own_pages_around(const Span& span, const Span& most) {
  const bool is_whole = ((span.base | span.end) & (page_size() - 1)) == 0;
  const int file = is_whole ? page_map.number() : -1;
  if (file < 0) return span;
  const size_t first = kFirst * page_size();
  const Span near{span.base - std::min(span.base - most.base, first), span.end + std::min(most.end - span.end, first)};
  const bool is_short = near.length() / page_size() <= kMost;
  const Span own = is_short ? own_near(file, span, near) : span;
  return {is_short && own.base != near.base ? own.base : start_of_own(file, own.base, most.base),
          is_short && own.end != near.end ? own.end : end_of_own(file, own.end, most.end)};
}

bool read_frames(const Span& pages, uint64_t* frames_out) {
  const int file = page_map.number();
  const size_t count = pages.length() / page_size();
  if (file < 0 || !read_entries(file, pages.base, count, frames_out)) return false;
  for (size_t i = 0; i < count; ++i) frames_out[i] = (frames_out[i] & kPresent) != 0 ? frames_out[i] & kFrame : 0;
  return true;
}

void open_page_map() { page_map.open(); }
void close_page_map() { page_map.close(); }

}  // namespace pinrail::monitor
