// SPDX-License-Identifier: BSD-3-Clause
// proc_status.h - what the kernel counts for this process.
//
// Threads  all functions may run together.
//
// VmPin counts 2 MiB for 4 KiB inside a transparent hugepage: measure on MADV_NOHUGEPAGE memory (see mapping.h).
#ifndef PINRAIL_TEST_SUPPORT_PROC_STATUS_H
#define PINRAIL_TEST_SUPPORT_PROC_STATUS_H

#include <cstddef>

namespace pinrail::test {

size_t vm_pin_bytes();  // pinned for devices
size_t vm_lck_bytes();  // locked by mlock
size_t open_descriptors();

// Whether this process may lock or pin that much: by its limit, or by a privilege that lifts it.
bool may_lock(size_t bytes);

}  // namespace pinrail::test

#endif
