/* SPDX-License-Identifier: BSD-3-Clause
 * gpu.h - GPU memory across processes: the block of bytes that travels, and what it says.
 *
 * The owner of GPU memory exports it (pool gpusm, pinrail_mpool_export) and sends the block to a peer of the same user on
 * the same machine by whatever way it likes; the peer opens it (pool rgpusm, pinrail_mpool_register_remote). A block is
 * good until its memory is freed: later it is NOT_FOUND, never somebody else's data.
 */
#ifndef PINRAIL_GPU_H
#define PINRAIL_GPU_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What one range of local GPU memory is. */
typedef struct pinrail_gpu_range {
  size_t size;        /**< in: sizeof(pinrail_gpu_range_t) */
  void *base;         /**< of the whole allocation */
  size_t length;      /**< bytes */
  uint64_t buffer_id; /**< never the same for two allocations of one process */
} pinrail_gpu_range_t;

#define PINRAIL_GPU_BLOCK_MAGIC 0x47505250u /* "PRPG" in memory */
#define PINRAIL_GPU_BLOCK_VERSION 1
#define PINRAIL_GPU_BLOCK_BYTES 256

/** How the memory is opened: the meaning of `driver` below. */
typedef enum pinrail_gpu_kind {
  PINRAIL_GPU_IPC = 1,    /**< a CUipcMemHandle of the CUDA driver */
  PINRAIL_GPU_VMM = 2,    /**< nothing: physical memory (cuMemCreate) comes by a file descriptor */
  PINRAIL_GPU_FABRIC = 3, /**< a CUmemFabricHandle: physical memory without a descriptor */
  PINRAIL_GPU_POOL = 4    /**< CUmemPoolPtrExportData: stream-ordered memory; its pool comes by a file descriptor */
} pinrail_gpu_kind_t;

/**
 * The block: 256 bytes, in the byte order of the machine that it never leaves. Copy it, send it, do not change it.
 * The first 64 bytes say which memory it is; a peer's hit looks at nothing else.
 */
typedef struct pinrail_gpu_block {
  uint32_t magic;     /**< PINRAIL_GPU_BLOCK_MAGIC */
  uint16_t version;   /**< PINRAIL_GPU_BLOCK_VERSION */
  uint16_t kind;      /**< pinrail_gpu_kind_t */
  uint32_t pid;       /**< of the exporter, in its own pid namespace */
  uint32_t slot;      /**< which slot of the segment */
  uint64_t start;     /**< when that process started, in clock ticks since the boot: a pid that is used again differs */
  uint64_t base;      /**< of the allocation, in the exporter's address space */
  uint64_t length;    /**< bytes of the allocation */
  uint64_t buffer_id; /**< the driver's, in the exporter */
  uint64_t segment;   /**< the exporter's segment of validity slots; 0: it has none */
  uint64_t slot_word; /**< what the slot's word holds as long as the memory lives, less the low 16 bits */
  uint32_t size;      /**< PINRAIL_GPU_BLOCK_BYTES */
  uint32_t user;      /**< the exporter's effective user id */
  uint64_t machine;   /**< boot and pid namespace of the exporter */
  uint8_t device[16]; /**< UUID of the GPU */
  uint8_t driver[64]; /**< the driver's handle */
  uint64_t
      fd_server; /**< random number in the name of the exporter's socket, which gives out the file descriptor; 0: the
                           kind needs none */
  uint64_t fd_number; /**< random number by which that knows the descriptor */
  uint32_t fd_place;  /**< where in the exporter's table of descriptors */
  uint32_t fd_table;  /**< the table's own descriptor, for who may take it by pidfd_getfd() */
  uint8_t event[64];  /**< the driver's handle of an event that the owner records; all 0: it has none */
  uint64_t checksum;  /**< of all bytes before it */
} pinrail_gpu_block_t;

#ifdef __cplusplus
}
#endif

#endif
