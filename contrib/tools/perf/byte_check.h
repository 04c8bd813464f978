// SPDX-License-Identifier: BSD-3-Clause
// byte_check.h - checks that the device sees through a registration what the processor sees.
//
// Threads  one at a time.
//
// A registration that is older than the last remapping of a page of its range is stale: an error, whatever bytes it
// shows.
#ifndef PINRAIL_TOOLS_PERF_BYTE_CHECK_H
#define PINRAIL_TOOLS_PERF_BYTE_CHECK_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

// The arguments of a register or find call.
struct Asked {
  const void* addr;
  size_t length;  // bytes
  uint32_t access;
  uint64_t changed_at;  // number of the last remapping of a page of the range; 0: none
  uint64_t changes;     // number of the last remapping in the whole program
};

class ByteCheck {
 public:
  ByteCheck(const std::string& registrar, Errors* errors);
  ByteCheck(const ByteCheck&) = delete;
  ByteCheck& operator=(const ByteCheck&) = delete;

  // Checks coverage, staleness and bytes of the registration; counts errors.
  void check(const Asked& asked, pinrail_handle_t handle);

  // The same without the bytes. False: an error was counted.
  bool check_coverage(const Asked& asked, pinrail_handle_t handle);

  // How bytes were checked: "device", "device, samples" or "unchecked", with the number of bytes of the
  // weaker ones.
  std::string said() const;
  uint64_t compared_bytes() const { return compared_; }
  uint64_t unchecked_bytes() const { return unchecked_; }

 private:
  // Of the first sight of a registration.
  struct Seen {
    uint64_t generation;
    uint64_t changes;
  };

  bool covers(const Asked& asked, const pinrail_registration_t& reg);
  bool is_stale(const Asked& asked, pinrail_handle_t handle);
  void compare(const Asked& asked, pinrail_handle_t handle);
  pinrail_status_t compare_device(const Asked& asked, pinrail_handle_t handle);
  pinrail_status_t compare_piece(const Asked& asked, pinrail_handle_t handle, size_t offset, size_t length);

  const bool samples_;  // compares samples only, because the device is slow
  Errors* const errors_;
  std::vector<char> buffer_;
  std::unordered_map<const pinrail_registration_t*, Seen> seen_;
  uint64_t device_bytes_ = 0, unchecked_ = 0, compared_ = 0;
  uint64_t random_ = 88172645463325252u;
};

}  // namespace pinrail::perf

#endif
