// SPDX-License-Identifier: BSD-3-Clause
// device.h - GPU memory for MPI programs, filled and checked as host memory is (common.h). It is the driver double's,
// or with PINRAIL_TEST_REAL_DRIVER a GPU's.
#ifndef PINRAIL_TEST_OPENMPI_DEVICE_H
#define PINRAIL_TEST_OPENMPI_DEVICE_H

#include <stddef.h>
#include <stdint.h>

// A context of the first GPU on this thread, before MPI starts: Open MPI takes the one that it finds.
void open_device(void);

void* device_alloc(size_t bytes);  // never NULL
void device_free(void* memory);
void device_fill(void* memory, size_t bytes, uint64_t seed);
void device_check(const void* memory, size_t bytes, uint64_t seed, const char* what);
void device_clear(void* memory, size_t bytes);
void device_read(void* into, const void* memory, size_t bytes);
void device_write(void* memory, const void* from, size_t bytes);

// A line of figures of the double: "device RANK: N opens, N closes, N already mapped, N open". A GPU's driver has none.
void tell_device(void);

#endif
