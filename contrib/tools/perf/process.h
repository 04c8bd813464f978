// SPDX-License-Identifier: BSD-3-Clause
// process.h - what the kernel reports about this process and this machine.
#ifndef PINRAIL_TOOLS_PERF_PROCESS_H
#define PINRAIL_TOOLS_PERF_PROCESS_H

#include <cstddef>
#include <cstdint>

namespace pinrail::perf {

size_t page_size();
inline uint64_t round_down(uint64_t value, uint64_t step) { return value / step * step; }
inline uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

// The bytes of a line "Name:   123 kB" in /proc/self/status; -1 if there is none. Names: VmPin, VmLck.
int64_t status_bytes(const char* name);

// The bytes that can be allocated without swapping; SIZE_MAX if the kernel does not report them.
size_t available_memory();

// The bytes of anonymous memory on transparent huge pages; -1 if the kernel does not report them.
int64_t huge_bytes();

// "ulimit -l" in bytes; UINT64_MAX: unlimited.
uint64_t memlock_limit();

}  // namespace pinrail::perf

#endif
