// SPDX-License-Identifier: BSD-3-Clause
// device.h - the device of a replay: a registrar that is lent to the pool under test, counts its calls, and passes them
// on.
//
// Owns     the pool through which calls are passed on to a component. That pool keeps nothing and registers exactly
// what
//          it is asked for, so each call of this table is one call of the component.
// Threads  the table's functions may run together; open() and close() exclude all else.
#ifndef PINRAIL_TOOLS_PERF_DEVICE_H
#define PINRAIL_TOOLS_PERF_DEVICE_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <string>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

// Register calls, those that failed included; the pages of those that succeeded; nanoseconds of all.
struct DeviceCalls {
  uint64_t calls = 0, refused = 0, pages = 0;
  uint64_t register_ns = 0, deregister_ns = 0;
};

// Of a pool whose every register call, with CACHE_BYPASS, is a call of the registrar.
pinrail_mpool_options_t keep_nothing();

class Device {
 public:
  // The name of the device that registers nothing.
  static constexpr const char* kNone = "none";

  Device() = default;
  ~Device() { (void)close(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // name: a registrar component, kNone, or empty for the usable component of highest priority.
  Result open(const std::string& name);
  Result close();

  const pinrail_registrar_t* table() const { return &table_; }
  DeviceCalls calls() const;

 private:
  static pinrail_status_t register_mem(void* self, const pinrail_register_request_t* request,
                                       pinrail_registration_t* reg);
  static pinrail_status_t deregister_mem(void* self, pinrail_registration_t* reg, pinrail_reason_t reason);
  pinrail_status_t pass_on(const pinrail_register_request_t& request, pinrail_registration_t* reg);

  pinrail_registrar_t table_{};
  pinrail_mpool_t* pool_ = nullptr;  // NULL: kNone
  std::atomic<uint64_t> calls_{0}, refused_{0}, pages_{0}, register_ns_{0}, deregister_ns_{0};
};

}  // namespace pinrail::perf

#endif
