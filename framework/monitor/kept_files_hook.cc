// SPDX-License-Identifier: BSD-3-Clause
// The table of kept mappings of files. Hook context: no allocation; mutex_ is a leaf.
#include "framework/monitor/kept_files_hook.h"

#include <algorithm>

namespace pinrail::monitor {
namespace {

// The addresses at which the part shows the bytes; empty: none.
Span shown_hook(const Span& span, uint64_t offset, const pinrail_file_part_t& file) {
  const uint64_t shown_end = offset + span.length();
  const uint64_t begin = std::max(file.begin, offset), end = std::min(file.end, shown_end);
  if (begin >= end) return {span.end, span.end};
  return {span.base + (begin - offset), span.base + (end - offset)};
}

}  // namespace

// Cuts the span out of the part. True: nothing is left. If both ends are left, the second one needs a place of its own;
// without one the part stays whole: an event then reports memory that is no longer the file's.
bool KeptFiles::cut_locked(Part* part, const Span& span) {
  const Part before = *part;
  const bool keeps_begin = before.span.base < span.base, keeps_end = span.end < before.span.end;
  const Part rest{{span.end, before.span.end}, before.inode, before.offset + (span.end - before.span.base)};
  if (keeps_begin && keeps_end) {
    const size_t count = count_.load();
    if (count == kRoom) return false;
    parts_[count] = rest;
    set_count_locked(count + 1);
  }
  if (keeps_begin) {
    part->span.end = span.base;
  } else if (keeps_end) {
    *part = rest;
  }
  return !keeps_begin && !keeps_end;
}

void KeptFiles::forget_locked(const Span& span) {
  size_t at = 0;
  while (at < count_.load()) {
    if (!parts_[at].span.overlaps(span) || !cut_locked(&parts_[at], span)) {
      ++at;
      continue;
    }
    const size_t last = count_.load() - 1;
    parts_[at] = parts_[last];
    set_count_locked(last);
  }
}

bool KeptFiles::add(const Span& span, uint64_t inode, uint64_t offset) {
  Guard guard(mutex_);
  forget_locked(span);
  const size_t count = count_.load();
  if (count == kRoom) return false;
  parts_[count] = {span, inode, offset};
  set_count_locked(count + 1);
  return true;
}

void KeptFiles::forget_hook(const Span& span) {
  if (is_empty_hook()) return;
  Guard guard(mutex_);
  forget_locked(span);
}

bool KeptFiles::find_hook(const pinrail_file_part_t& file, uintptr_t from, Span* span_out) const {
  if (is_empty_hook()) return false;
  Guard guard(mutex_);
  bool found = false;
  for (size_t i = 0; i < count_.load(); ++i) {
    const Part& part = parts_[i];
    const bool is_of_file = (file.inode == 0 || part.inode == file.inode) &&
                            (file.first_byte == 0 || part.span.base - part.offset == file.first_byte);
    const Span shown = shown_hook(part.span, part.offset, file);
    if (!is_of_file || shown.end <= std::max(from, shown.base)) continue;
    if (found && span_out->base <= shown.base) continue;
    *span_out = shown;
    found = true;
  }
  return found;
}

}  // namespace pinrail::monitor
