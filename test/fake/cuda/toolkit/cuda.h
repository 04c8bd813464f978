/* SPDX-License-Identifier: BSD-3-Clause
 * cuda.h - for Open MPI, which is configured --with-cuda=test/fake/cuda/toolkit: what it needs of the toolkit's header,
 * with the driver double behind it.
 */
#ifndef PINRAIL_TEST_FAKE_CUDA_TOOLKIT_CUDA_H
#define PINRAIL_TEST_FAKE_CUDA_TOOLKIT_CUDA_H

#include "test/fake/cuda/double_transport.h"

#define CUDA_VERSION 13000

/* Open MPI's configure looks for this one to tell whether the driver has virtual memory management. */
#define CU_MEM_LOCATION_TYPE_HOST_NUMA 3

#endif
