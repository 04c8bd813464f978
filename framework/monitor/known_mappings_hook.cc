// SPDX-License-Identifier: BSD-3-Clause
// Verdicts on mappings in a sorted array under a seqlock. Hook context: no allocation; mutex_ is a leaf. Writers hold
// it; readers take it only if the entries are changing.
#include "framework/monitor/known_mappings_hook.h"

#include <algorithm>

namespace pinrail::monitor {
namespace {

constexpr uintptr_t kCovered = 1, kPrivate = 2, kFlags = 3;

// Entries, as readers without the lock access them. acquire: the second load of the version stays behind it. release:
// the version is odd before it. The two pair with each other.
uintptr_t load(const std::atomic<uintptr_t>& word) { return word.load(std::memory_order_acquire); }
void store(std::atomic<uintptr_t>* word, uintptr_t value) { word->store(value, std::memory_order_release); }

// The addresses at which the part shows the bytes; empty: none.
Span shown_hook(const Span& span, uint64_t offset, const pinrail_file_part_t& file) {
  const uint64_t shown_end = offset + span.length();
  const uint64_t begin = std::max(file.begin, offset), end = std::min(file.end, shown_end);
  if (begin >= end) return {span.end, span.end};
  return {span.base + (begin - offset), span.base + (end - offset)};
}

}  // namespace

// Between begin_change_locked() and end_change_locked() the version is odd and entries change: readers
// without the lock retry with it. The caller holds mutex_. seq_cst: a hook changes the version, and then looks for
// registrations that are under way; a thread that has announced such a registration then loads the version: one of the
// two sees the other.
void KnownMappings::begin_change_locked() {
  version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
}
// release: pairs with find_without_lock(). relaxed: only the holder of the lock writes the version.
void KnownMappings::end_change_locked() {
  version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// Returns the index of the first entry that ends above the address: a look at each block's last entry, then at all of
// one block. Such looks do not wait for each other, as the steps of a binary search do.
size_t KnownMappings::first_ending_above(uintptr_t at) const {
  constexpr size_t kBlock = 32;
  const auto is_below = [&](size_t place) { return (load(entries_[place].end) & ~kFlags) <= at; };
  const size_t count = std::min(count_.load(std::memory_order_acquire), kRoom);  // acquire: as load()
  size_t first = 0;
  for (size_t last = kBlock - 1; last < count; last += kBlock) first += is_below(last) ? kBlock : 0;
  const size_t end = std::min(first + kBlock, count);
  for (size_t place = first; place < end; ++place) first += is_below(place) ? 1 : 0;
  return first;
}

// The first verdict that ends above the address; where there is none, one far above. The caller holds mutex_, or checks
// the version before and after.
Verdict KnownMappings::first_above(uintptr_t at) const {
  const size_t place = first_ending_above(at);
  if (place >= std::min(count_.load(std::memory_order_acquire), kRoom))
    return {{UINTPTR_MAX, UINTPTR_MAX}};  // as load()
  const uintptr_t base = load(entries_[place].base);
  const uintptr_t end = load(entries_[place].end);
  return {{base, end & ~kFlags}, (end & kCovered) != 0, (end & kPrivate) != 0};
}

// The same without the lock. False: the entries were changing, and the output means nothing.
bool KnownMappings::look_above(uintptr_t at, Verdict* first_out) const {
  const uint64_t before =
      version_.load(std::memory_order_seq_cst);  // pairs with begin_change_locked(), and end_change_locked()
  *first_out = first_above(at);
  return (before & 1) == 0 && version_.load(std::memory_order_relaxed) == before;  // relaxed: behind acquires
}

// Looks up without the lock, and with it if the entries were changing.
bool KnownMappings::find(uintptr_t at, Verdict* verdict_out) const {
  Verdict first;
  if (!look_above(at, &first)) {
    const Guard guard(mutex_);
    first = first_above(at);
  }
  if (first.span.base > at) return false;
  *verdict_out = first;
  return true;
}

// seq_cst: an event that does not see this look happened before it, so the look sees the event's effect.
uint64_t KnownMappings::begin_lookup() {
  lookups_.fetch_add(1);
  const Guard guard(mutex_);
  return events_;
}

// Whether an event since the ticket touched the span, or more events came than are remembered.
bool KnownMappings::was_touched_locked(uint64_t ticket, const Span& span) const {
  bool touched = events_ - ticket > kEvents;
  for (uint64_t event = ticket; !touched && event != events_; ++event) {
    touched = recent_events_[event % kEvents].overlaps(span);
  }
  return touched;
}

// Stores a verdict unless an event touched its span since begin_lookup() (known_mappings_hook/K2). Takes mutex_.
bool KnownMappings::keep(uint64_t ticket, const Verdict& verdict) {
  const Guard guard(mutex_);
  if (was_touched_locked(ticket, verdict.span)) return false;
  begin_change_locked();
  cut_locked(verdict.span);
  insert_locked(verdict);
  end_change_locked();
  return true;
}

// write_entry_locked() writes an entry, move_entry_locked() copies one; between begin_change_locked()
// and end_change_locked(), under mutex_.
void KnownMappings::write_entry_locked(size_t at, uintptr_t base, uintptr_t end) {
  store(&entries_[at].base, base);
  store(&entries_[at].end, end);
}

void KnownMappings::move_entry_locked(size_t to, size_t from) {
  write_entry_locked(to, load(entries_[from].base), load(entries_[from].end));
}

// Takes the span out of the entries: what they hold beside it stays. In a full table, what lies behind a span in the
// midst of an entry is lost. The caller holds mutex_.
void KnownMappings::cut_locked(const Span& span) {
  const size_t count = count_.load(std::memory_order_relaxed);  // relaxed: under the lock
  size_t first = first_ending_above(span.base);
  if (first == count || load(entries_[first].base) >= span.end) return;
  const uintptr_t end = load(entries_[first].end);
  if (load(entries_[first].base) < span.base) {
    write_entry_locked(first, load(entries_[first].base), span.base | (end & kFlags));
    ++first;
    if ((end & ~kFlags) > span.end) return count < kRoom ? insert_at_locked(first, span.end, end) : void();
  }
  size_t behind = first;
  while (behind < count && (load(entries_[behind].end) & ~kFlags) <= span.end) ++behind;
  if (behind < count && load(entries_[behind].base) < span.end) store(&entries_[behind].base, span.end);
  for (size_t from = behind; from < count; ++from) move_entry_locked(first + (from - behind), from);
  count_.store(count - (behind - first), std::memory_order_release);  // release: as store()
}

// The table is not full. The caller holds mutex_.
void KnownMappings::insert_at_locked(size_t place, uintptr_t base, uintptr_t end) {
  const size_t count = count_.load(std::memory_order_relaxed);  // relaxed: under the lock
  for (size_t from = count; from > place; --from) move_entry_locked(from, from - 1);
  write_entry_locked(place, base, end);
  count_.store(count + 1, std::memory_order_release);  // release: as store()
}

// No entry overlaps the verdict. The caller holds mutex_.
void KnownMappings::insert_locked(const Verdict& verdict) {
  const uintptr_t end = verdict.span.end | (verdict.covered ? kCovered : 0) | (verdict.is_private ? kPrivate : 0);
  const size_t place = first_ending_above(verdict.span.base);
  if (count_.load(std::memory_order_relaxed) < kRoom) return insert_at_locked(place, verdict.span.base, end);
  write_entry_locked(std::min(place, kRoom - 1), verdict.span.base, end);
}

// Takes no lock if no look is under way and it can be told without it that no verdict overlaps the span.
void KnownMappings::forget_if_known_hook(const Span& span) {
  Verdict first;
  if (lookups_.load() == 0 && look_above(span.base, &first) && first.span.base >= span.end) return;
  const Guard guard(mutex_);
  recent_events_[events_++ % kEvents] = span;
  begin_change_locked();
  cut_locked(span);
  end_change_locked();
}

// The table of kept mappings of files. Hook context: no allocation; mutex_ is a leaf.

// Cuts the span out of the parts, from the last one on, because the last one moves to where one ends. If both ends of a
// part are left, the second one needs a place of its own; without one the part stays whole: an event then reports
// memory that is no longer the file's.
void KeptFiles::forget_hook(const Span& span) {
  if (is_empty_hook()) return;
  Guard guard(mutex_);
  for (size_t at = count_.load(); at-- > 0;) {
    Part& part = parts_[at];
    if (!part.span.overlaps(span)) continue;
    const size_t count = count_.load();
    const bool keeps_begin = part.span.base < span.base, keeps_end = span.end < part.span.end;
    if (keeps_begin && keeps_end && count == kRoom) continue;
    const Part rest{{span.end, part.span.end}, part.inode, part.offset + (span.end - part.span.base)};
    if (keeps_begin) part.span.end = span.base;
    if (keeps_end) (keeps_begin ? parts_[count] : part) = rest;
    if (keeps_begin && keeps_end) count_.store(count + 1);
    if (keeps_begin || keeps_end) continue;
    part = parts_[count - 1];
    count_.store(count - 1);
  }
}

// Merges it with what overlaps it and shows the file at the same addresses. No other part changes: what that says of
// the span may be newer than what the caller has read (known_mappings_hook/F1).
bool KeptFiles::add(const Span& span, uint64_t inode, uint64_t offset) {
  Guard guard(mutex_);
  size_t count = count_.load();
  Part whole{span, inode, offset};
  for (size_t at = count; at-- > 0;) {
    const Part& part = parts_[at];
    const bool is_same = part.inode == inode && part.span.base - part.offset == span.base - offset;
    if (!is_same || !part.span.overlaps(span)) continue;
    whole.offset = std::min(whole.offset, part.offset);
    whole.span = {std::min(whole.span.base, part.span.base), std::max(whole.span.end, part.span.end)};
    parts_[at] = parts_[--count];
  }
  if (count == kRoom) return false;
  parts_[count] = whole;
  count_.store(count + 1);
  return true;
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
