/* SPDX-License-Identifier: BSD-3-Clause
 * gpu.h - GPU memory across processes: the block of bytes that a peer needs to open it.
 *
 * The owner of GPU memory exports it (pool gpusm, pinrail_mpool_export) and sends the block to a peer of the same user
 * on the same machine, by any means; the peer opens it (pool rgpusm, pinrail_mpool_register_remote). A block is valid
 * until its memory is freed; after that it is NOT_FOUND and never gives access to other memory.
 */
#ifndef PINRAIL_GPU_H
#define PINRAIL_GPU_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An allocation of local GPU memory. */
typedef struct pinrail_gpu_range {
  size_t size;        /**< in: sizeof(pinrail_gpu_range_t) */
  void *base;         /**< start of the whole allocation */
  size_t length;      /**< bytes */
  uint64_t buffer_id; /**< unique among all allocations of one process */
} pinrail_gpu_range_t;

#define PINRAIL_GPU_BLOCK_MAGIC 0x47505250u /**< "PRPG" in memory */
#define PINRAIL_GPU_BLOCK_VERSION 1         /**< of the block's form; other versions are refused (VERSION) */
#define PINRAIL_GPU_BLOCK_BYTES 256         /**< bytes of a block */

/** How the memory is opened; determines the meaning of `driver` below. */
typedef enum pinrail_gpu_kind {
  PINRAIL_GPU_IPC = 1,    /**< a CUipcMemHandle of the CUDA driver */
  PINRAIL_GPU_VMM = 2,    /**< `driver` is unused: physical memory (cuMemCreate) is passed by a file descriptor */
  PINRAIL_GPU_FABRIC = 3, /**< a CUmemFabricHandle: physical memory without a descriptor */
  PINRAIL_GPU_POOL = 4    /**< CUmemPoolPtrExportData: stream-ordered memory; its pool is passed by a file descriptor */
} pinrail_gpu_kind_t;

/**
 * The block: 256 bytes in the machine's byte order, valid on this machine only. It may be copied and sent, but not
 * changed. The first 64 bytes identify the memory; a hit at the peer reads nothing else.
 */
typedef struct pinrail_gpu_block {
  uint32_t magic;     /**< PINRAIL_GPU_BLOCK_MAGIC */
  uint16_t version;   /**< PINRAIL_GPU_BLOCK_VERSION */
  uint16_t kind;      /**< pinrail_gpu_kind_t */
  uint32_t pid;       /**< process id of the exporter, in its own pid namespace */
  uint32_t slot;      /**< index of the validity slot in the segment */
  uint64_t start;     /**< start time of that process, in clock ticks since boot: tells a reused pid apart */
  uint64_t base;      /**< start of the allocation, in the exporter's address space */
  uint64_t length;    /**< bytes of the allocation */
  uint64_t buffer_id; /**< the driver's buffer id, in the exporter */
  uint64_t segment;   /**< id of the exporter's segment of validity slots; 0: it has none */
  uint64_t slot_word; /**< value of the slot's word, without its low 16 bits, while the memory is allocated */
  uint32_t size;      /**< PINRAIL_GPU_BLOCK_BYTES */
  uint32_t user;      /**< the exporter's effective user id */
  uint64_t machine;   /**< identifies boot and pid namespace of the exporter */
  uint8_t device[16]; /**< UUID of the GPU */
  uint8_t driver[64]; /**< the driver's handle */
  uint64_t fd_server; /**< random number in the name of the exporter's socket, which sends the file descriptor; 0: the
                           kind needs none */
  uint64_t fd_number; /**< random number that identifies the descriptor to the socket's server */
  uint32_t fd_place;  /**< index in the exporter's table of descriptors */
  uint32_t fd_table;  /**< the table's own descriptor, for peers that may call pidfd_getfd() */
  uint8_t event[64];  /**< the driver's handle of the owner's event; all 0: there is none */
  uint64_t checksum;  /**< over all bytes before this field */
} pinrail_gpu_block_t;

#ifdef __cplusplus
}
#endif

#endif
