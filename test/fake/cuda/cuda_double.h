/* SPDX-License-Identifier: BSD-3-Clause
 * cuda_double.h - a libcuda.so.1 for machines without a GPU: what tests may ask and order of it beyond the driver API.
 *
 * "Device memory" is shared memory (memfd), so that two real processes exchange real bytes through cuIpc calls. What it
 * does about stale mappings is what the project's story of the driver says; test/gpu/run records what a real one does.
 *
 *   addresses   lowest free place first, in multiples of 4 KiB: free + alloc of a size that fits gives the same
 *               address, and two processes have equal addresses
 *   buffer id   rises with each allocation of the process; that of a reservation stays, whatever is mapped there
 *   IPC open    the same allocation again: one more reference, the same address; another allocation of the same
 *               exporter while an older one that began there is open: ALREADY_MAPPED; one's own handle:
 *               INVALID_CONTEXT; one whose memory is gone: INVALID_HANDLE. Memory that was freed lives on in importers
 *               that have it open (FACTS: until the importer closes it)
 *   VMM         physical memory (a memfd) lives until its last handle and its last mapping; the pointer's range is
 *               the reservation, and cuMemGetAddressRange tells the mapping, as documented. Fabric handles:
 *               NOT_PERMITTED, as without an IMEX channel
 *   pools       the attributes tell a range around the allocation, cuMemGetAddressRange the allocation. One that
 *               refused a handle of a type that it was not made with aborts when it is destroyed, as CUDA 13.0 crashes
 *   managed     is a GPU's by the attributes, has no handle, and aborts the process that asks for its dmabuf
 *   streams     any value names one, also one that cuStreamCreate did not make; whatever is put on it is done at
 *               once, unless a script says that it works. Copies wait in the caller until the stream is done and what
 *               it waits for is
 *   events      shared memory; one's own handle: INVALID_CONTEXT. One whose owner destroyed it: ILLEGAL_ADDRESS, where
 *               the driver leaves undefined what happens. The address of one that has ended is given out next
 *   host        cuMemHostRegister notes the range, and pins nothing; pointers to it are unknown all the same
 *   dmabuf      a memfd, of ranges that begin where the allocation or mapping begins
 *   cuMemGetInfo  memory of cuMemAlloc and of pools: in use until it is freed and no process that was forked from the
 *               one that loaded this has it open by cuIpcOpenMemHandle
 *   contexts    a stack per thread; calls that need one say INVALID_CONTEXT without. A reset of the device, or the last
 *               release, ends what cuMemAlloc, cuIpcOpenMemHandle and cuEventCreate made there. After a reset the
 *               context is current where it was, and retained by whom it was; calls in it say CONTEXT_IS_DESTROYED
 *               until it is retained again (seen with driver 590)
 *   capture     of a stream by another thread, in the default mode: what waits, or changes memory at once, says
 *               STREAM_CAPTURE_UNSUPPORTED and spoils it, unless the calling thread's mode is RELAXED (as documented)
 *   cuGetProcAddress  knows cuMemFree alone, as another function than the symbol
 *
 * Environment: CUDA_DOUBLE_DEVICES (1), CUDA_DOUBLE_MEMORY (bytes of one process, unlimited), CUDA_DOUBLE_NO_IPC (set:
 * IPC calls say NOT_SUPPORTED), CUDA_DOUBLE_GRANULARITY (bytes, 2 MiB), CUDA_DOUBLE_FABRIC (set: there are fabric
 * handles), CUDA_DOUBLE_NO_DMABUF (set: there are none), CUDA_DOUBLE_FAIL ("function:n:error", the n-th call fails so;
 * with ":every" behind it each later one, too).
 *
 * Threads  all functions may run together. A forked child starts anew by cuInit(), as the driver wants it.
 */
#ifndef PINRAIL_TEST_FAKE_CUDA_CUDA_DOUBLE_H
#define PINRAIL_TEST_FAKE_CUDA_CUDA_DOUBLE_H

#include <stddef.h>
#include <stdint.h>
#include "test/fake/cuda/cuda_for_tests.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The n-th call from now of that function ("cuIpcOpenMemHandle"; "*": of any) fails with that error; 0: forget it.
 *  With every != 0 each later call fails, too. */
void cuda_double_fail(const char* function, uint64_t nth, CUresult error, int every);
uint64_t cuda_double_calls(const char* function); /**< so far; "*": of all functions that can fail */
/** For cuda_double_calls(): how often another mapping at its exporter's address stood in the way of an open. */
#define CUDA_DOUBLE_ALREADY_MAPPED "cuIpcOpenMemHandle: ALREADY_MAPPED"
void cuda_double_forget(void); /**< counts and orders */

/** The next call of that function waits inside, while others go on, until the gate is opened; for a minute at most. */
void cuda_double_gate(const char* function);
int cuda_double_at_gate(void);   /**< whether a call waits there */
int cuda_double_open_gate(void); /**< 0: no thread waited there any more */

size_t cuda_double_open_handles(void); /**< to memory and pools of others: opened or imported, and not given back */
int cuda_double_is_open(uint32_t pid, CUdeviceptr base); /**< here, what that process has at its address */
size_t cuda_double_open_events(void);                    /**< created or opened, and not destroyed */

/** From now on, until it ends, the stream has work that is not done. NULL: the default one of the first device. */
void cuda_double_begin_work(CUstream stream);
void cuda_double_end_work(CUstream stream);

/** From now on, until it ends, another thread captures a stream. */
void cuda_double_begin_capture(void);
int cuda_double_end_capture(void); /**< whether no call has spoilt it */

size_t cuda_double_context_depth(void); /**< of the calling thread */
size_t cuda_double_used(void);          /**< bytes allocated */

int cuda_double_copies_wait(CUdeviceptr address); /**< whether SYNC_MEMOPS is set for the allocation that holds it */

/** What cuGetProcAddress gives for cuMemFree. */
CUresult cuda_double_free_by_table(CUdeviceptr address);

/** Memory as if another process had allocated it at that address; its handle can be opened here. */
CUresult cuda_double_foreign_alloc(uint32_t pid, CUdeviceptr base, size_t bytes, CUipcMemHandle* handle_out,
                                   uint64_t* buffer_id_out);
/** As if that process had freed it. */
CUresult cuda_double_foreign_free(uint32_t pid, CUdeviceptr base);

/** Memory of that device. By member: in younger headers the number is one of a union. */
static inline CUmemLocation cuda_double_on(int device) {
  CUmemLocation location;
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

#ifdef __cplusplus
}
#endif

#endif
