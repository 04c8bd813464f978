// SPDX-License-Identifier: BSD-3-Clause
// recorder.h - the calls of this process as a trace that pinrail_perf replays, written when the process exits.
//
// Threads  all functions may run together. Records are in the order in which they reserved their places.
// Hook     event_hook().
//
// recorder/T1  A deregistration is recorded before it happens, a registration after it: between two records of one id
//     the registration exists.
#ifndef PINRAIL_CONTRIB_PINRUN_RECORDER_H
#define PINRAIL_CONTRIB_PINRUN_RECORDER_H

#include "contrib/pinrun/pinrun.h"

namespace pinrail::pinrun {

class Recorder {
 public:
  // Does nothing without the option --record.
  static void start();
  // Returns the id by which deregistered() names the call; -1 if nothing is recorded.
  static int64_t registered(const void* addr, size_t length, uint32_t rights);
  static void deregistered(int64_t id, const void* addr, size_t length);
  static void write();

 private:
  static void event_hook(void* arg, void* addr, size_t length);
};

}  // namespace pinrail::pinrun

#endif
