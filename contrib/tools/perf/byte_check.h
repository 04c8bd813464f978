// SPDX-License-Identifier: BSD-3-Clause
// byte_check.h - is what a registration says what the device sees?
//
// Threads  one at a time.
//
// byte_check/B1  A registration that was made before a page of the range was mapped again is stale: an error, whatever
//     it shows.
// byte_check/B2  A page frame that changed although nobody mapped the page again was moved by the kernel: no error.
#ifndef PINRAIL_TOOLS_PERF_BYTE_CHECK_H
#define PINRAIL_TOOLS_PERF_BYTE_CHECK_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "contrib/tools/perf/errors.h"

namespace pinrail::perf {

// What was asked of a register or find call.
struct Asked {
  const void* addr;
  size_t length;  // bytes
  uint32_t access;
  uint64_t changed_at;  // the last change of mapping that a page of the range went through; 0: none
  uint64_t changes;     // how many there were until now, in the whole program
};

class ByteCheck {
 public:
  ByteCheck(const std::string& registrar, Errors* errors);
  ~ByteCheck();
  ByteCheck(const ByteCheck&) = delete;
  ByteCheck& operator=(const ByteCheck&) = delete;

  // What the registration covers, whether it is stale, and what the device sees. Counts errors.
  void check(const Asked& asked, pinrail_handle_t handle);

  // The same without a look at the bytes. False: an error was counted.
  bool check_coverage(const Asked& asked, pinrail_handle_t handle);

  // "device", "device, samples", "page frames" or "unchecked", with the bytes of the weaker ones said.
  std::string said() const;
  uint64_t compared_bytes() const { return compared_; }
  uint64_t unchecked_bytes() const { return unchecked_; }

 private:
  // What was known when a registration was seen for the first time.
  struct Seen {
    uint64_t generation;
    uint64_t changes;
    std::vector<uint64_t> frames;  // of all its pages, if they are needed
  };

  bool covers(const Asked& asked, const pinrail_registration_t& reg);
  bool stale(const Asked& asked, const Seen& known);
  void compare(const Asked& asked, pinrail_handle_t handle, const Seen& seen);
  pinrail_status_t compare_device(const Asked& asked, pinrail_handle_t handle);
  pinrail_status_t compare_piece(const Asked& asked, pinrail_handle_t handle, size_t offset, size_t length);
  void compare_frames(const Asked& asked, const pinrail_registration_t& reg, const Seen& seen);
  const Seen& seen(const Asked& asked, pinrail_handle_t handle);
  std::vector<uint64_t> frames(const void* base, size_t length) const;

  const bool samples_;  // the device is slow
  const bool needs_frames_;
  Errors* const errors_;
  const int pagemap_;
  std::vector<char> buffer_;
  std::unordered_map<const pinrail_registration_t*, Seen> seen_;
  uint64_t device_bytes_ = 0, frame_bytes_ = 0, unchecked_ = 0, compared_ = 0, moved_pages_ = 0;
  uint64_t random_ = 88172645463325252u;
};

}  // namespace pinrail::perf

#endif
