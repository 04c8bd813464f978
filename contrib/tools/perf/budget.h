// SPDX-License-Identifier: BSD-3-Clause
// budget.h - checks that what Pinrail registers stays within its limit and equals what the kernel counts;
// and that the device sees through a registration what the processor sees.
//
// Threads  one at a time, while no other thread uses the pool.
#ifndef PINRAIL_CONTRIB_TOOLS_PERF_BUDGET_H
#define PINRAIL_CONTRIB_TOOLS_PERF_BUDGET_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

// Growth in bytes since begin().
struct Growth {
  int64_t registered = 0, pinned = 0;  // by Pinrail's statistics
  int64_t vm_pin = 0, vm_lck = 0;      // by the kernel; 0 if it does not count
};

class Budget {
 public:
  Budget(const Session& session, Errors* errors);

  // Starts the measurement of a row. small_pages: the kernel counts pins by page, so its numbers can be compared.
  void begin(bool small_pages);

  // Counts an error if a limit is exceeded, or if the kernel's numbers differ.
  void check(const std::string& when);

  Growth growth() const { return growth_; }  // at the last check

 private:
  void measure_others();
  bool confirmed();
  std::string differences() const;

  const Session& session_;
  Errors* const errors_;
  const bool counts_pin_, counts_lock_;  // whether the kernel counts what this registrar registers
  bool compare_ = false, knows_others_ = false;
  int64_t other_pin_ = 0, other_lock_ = 0;
  pinrail_mpool_stats_t at_start_ = {};
  Growth growth_;
};

// Names the limit of the pool or the user that applies; "" if there is none.
std::string limit_text(const Session& session);

// Explains why a register call of that length was refused while `held` bytes were registered and referenced.
// legitimate: no idle registration could have been evicted for it.
struct Refusal {
  bool legitimate;
  std::string why;
};
bool is_refusal(pinrail_status_t status);
Refusal explain_refusal(const Session& session, pinrail_status_t status, size_t length, uint64_t held);

// Checks that the device sees through a registration what the processor sees.
//
// Threads  one at a time.
//
// A registration that is older than the last remapping of a page of its range is stale: an error, whatever bytes it
// shows.

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
