// SPDX-License-Identifier: BSD-3-Clause
// file_report.h - how monitor/patcher reports an event that names a file and not addresses.
//
// An extension of the host table; it is not installed. A monitor that does not get it reports all memory instead.
//
// Threads  All functions may run together.
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_FILE_REPORT_H
#define PINRAIL_BASE_CORE_FILE_REPORT_H

#include <cstddef>
#include <cstdint>

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

#endif
