// SPDX-License-Identifier: BSD-3-Clause
// extensions.h - extensions of the host table for monitors of ours. They are not installed.
//
// Threads  All functions may run together.
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_EXTENSIONS_H
#define PINRAIL_BASE_CORE_EXTENSIONS_H

#include <cstddef>
#include <cstdint>

// How monitor/patcher reports an event that names a file and not addresses. A monitor that does not get it reports all
// memory instead.

// Bytes of a file whose pages go away.
struct pinrail_file_part_t {
  uint64_t inode;        // 0: of any file
  uint64_t begin, end;   // offsets
  uintptr_t first_byte;  // only mappings that lie as if the file's first byte were at this address; 0: all
};

struct pinrail_file_report_t {
  size_t size;
  // Returns 0 if no memory that shows a file is kept registered; 1 if some may be.
  int (*keeps_files_hook)(void);
  // Delivers an event for each range of kept memory that shows these bytes.
  void (*report_hook)(const pinrail_file_part_t* part);
};

namespace pinrail::file_report {
constexpr char kName[] = "file_report";
constexpr uint32_t kVersion = 1;
}  // namespace pinrail::file_report

// How monitor/uffd is asked whether events are under way in the kernel (base/sync/gate.h). Without it the monitor does
// not start.
struct pinrail_gate_report_t {
  size_t size;
  // From now on each register and find calls is_quiet(arg), on any thread, until it returns 1: no event is under way.
  // is_quiet NULL: ends that. Start-up and shut-down of the monitor.
  void (*ask_first)(int (*is_quiet)(void* arg), void* arg);
};

namespace pinrail::gate_report {
constexpr char kName[] = "gate_report";
constexpr uint32_t kVersion = 1;
}  // namespace pinrail::gate_report

#endif
