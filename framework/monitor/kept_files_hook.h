// SPDX-License-Identifier: BSD-3-Clause
// kept_files_hook.h - the mappings of files and segments of which registrations may be kept, for events that name a
// file and not addresses.
//
// Owns     at most kRoom parts of mappings, in place.
// Threads  all functions may run together; mutex_ guards the parts.
// Hook     all functions; add() too, so that the lock is a leaf.
//
// kept_files_hook/F1  A registration of a mapping that shows a file is kept only if the registration's range is in the
//     table: add() precedes the verdict that permits it, and a part leaves the table only by an event that ends
//     the registrations of that part.
#ifndef PINRAIL_FRAMEWORK_MONITOR_KEPT_FILES_HOOK_H
#define PINRAIL_FRAMEWORK_MONITOR_KEPT_FILES_HOOK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/core/extensions.h"
#include "base/core/span.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/lock.h"

namespace pinrail::monitor {

class KeptFiles {
 public:
  static constexpr size_t kRoom = 1024;

  constexpr KeptFiles() = default;

  // offset: of the span's first byte in the file. False: there is no room, so nothing of the mapping may be kept.
  bool add(const Span& span, uint64_t inode, uint64_t offset);
  // Removes what the span holds of each part.
  void forget_hook(const Span& span);
  // Finds the lowest range at or above `from` that shows bytes of the file. False: there is none.
  bool find_hook(const pinrail_file_part_t& file, uintptr_t from, Span* span_out) const;
  // seq_cst: a hook that finds the table empty before its call looks again afterwards.
  bool is_empty_hook() const { return count_.load() == 0; }

 private:
  struct Part {
    Span span;
    uint64_t inode = 0, offset = 0;
  };

  void forget_locked(const Span& span) REQUIRES(mutex_);
  bool cut_locked(Part* part, const Span& span) REQUIRES(mutex_);
  void set_count_locked(size_t count) REQUIRES(mutex_) { count_.store(count); }

  mutable HookMutex mutex_{LockRank::mappings, deferred::kLocks};
  std::atomic<size_t> count_{0};  // changes under mutex_
  Part parts_[kRoom] GUARDED_BY(mutex_) = {};
};

}  // namespace pinrail::monitor

#endif
