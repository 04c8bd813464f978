// SPDX-License-Identifier: BSD-3-Clause
// hit_check.h - compares what the device sees of a hit with what the process has there (parameter mpool_grdma_check).
//
// By page frames, where the kernel shows them: the device has pinned those that the pages had when the registration was
// new. Where frames are not known, by bytes: device_read of the registrar beside the memory of the process.
//
// Owns     the page frames of the registrations of one pool.
// Threads  all functions may run together. API context, inside a deferred::Call; the caller holds no lock, because the
//          registrar is called.
//
// hit_check/W1  A difference is a page that is another one than the pinned one, or a byte in which both sides stay as
//     they are while they are looked at several times: a program that writes meanwhile is no difference.
// hit_check/W2  While hits are watched, no request is remembered (base/hit), so each hit passes by here.
#ifndef PINRAIL_FRAMEWORK_MPOOL_HIT_CHECK_H
#define PINRAIL_FRAMEWORK_MPOOL_HIT_CHECK_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/core/span.h"
#include "base/sync/lock.h"
#include "framework/registrar/registrar.h"

namespace pinrail::mpool {

// A recording, and each pool that checks its hits. So the path of a hit looks at one word for both.
extern std::atomic<uint32_t> watchers;
// relaxed: a thread that sees it later begins to watch later.
inline bool are_hits_watched() { return watchers.load(std::memory_order_relaxed) != 0; }

// The values of the parameter.
enum class Check : int64_t { off = 0, sample = 1, all = 2 };

class HitCheck {
 public:
  HitCheck(Check check, pinrail_bound_registrar_t* registrar);
  ~HitCheck();

  // False: the kernel shows no page frames that count, and the registrar has no device_read.
  bool can_compare() const;
  // Notes the frames of a registration that it has not seen before. Of another one, returns in words how the device and
  // the process differ in that part; empty: not, as far as can be seen. The caller has a reference. May throw
  // bad_alloc.
  std::string difference(pinrail_thread_t* thread, pinrail_handle_t handle, const Span& asked) EXCLUDES(mutex_);

  // "12 hits were compared with what the device sees, and 0 differed"
  std::string result() const;

  std::atomic<int64_t> said_in{0};  // the second in which a difference was told last

 private:
  using Frames = std::vector<uint64_t>;  // of neighbouring pages; 0: not known
  struct Known {
    uint64_t generation;
    Frames frames;
  };
  // What both sides have in some bytes.
  struct Look {
    std::vector<unsigned char> process, device;
  };

  bool find_or_note(pinrail_handle_t handle, const Span& pages, Frames* frames_out) EXCLUDES(mutex_);
  Span part_of(const Span& asked, size_t most) const;
  std::string other_frame(const Span& pages, const Frames& then, bool* is_known_out) const;
  bool look(pinrail_thread_t* thread, pinrail_handle_t handle, const Span& at, Look* look_out) const;
  std::optional<std::string> other_byte(pinrail_thread_t* thread, pinrail_handle_t handle, const Span& at) const;
  std::string counted(std::string difference);

  const Check check_;
  pinrail_bound_registrar_t* const registrar_;
  mutable std::atomic<uint64_t> draws_{0};
  std::atomic<uint64_t> compared_{0}, differed_{0};  // hits
  Mutex mutex_{LockRank::leaf};
  std::unordered_map<const pinrail_registration_t*, Known> known_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::mpool

#endif
