// SPDX-License-Identifier: BSD-3-Clause
// gpu_block.h - the block of pinrail/gpu.h: its owner seals it, a peer checks it.
//
// Threads  all functions may run together, in any context.
#ifndef PINRAIL_FRAMEWORK_MPOOL_GPU_BLOCK_H
#define PINRAIL_FRAMEWORK_MPOOL_GPU_BLOCK_H

#include <pinrail/gpu.h>

#include <cstddef>

#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail {

static_assert(sizeof(pinrail_gpu_block_t) == PINRAIL_GPU_BLOCK_BYTES, "the block is what the header promises");
static_assert(offsetof(pinrail_gpu_block_t, size) == 64, "a hit reads one line");

// FNV-1a hash of all bytes before the checksum. It detects damage, not forgery.
inline uint64_t checksum_of(const pinrail_gpu_block_t& block) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&block);
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < offsetof(pinrail_gpu_block_t, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

// Completes a block: magic, version, size and checksum.
inline void seal_block(pinrail_gpu_block_t* block) {
  block->magic = PINRAIL_GPU_BLOCK_MAGIC;
  block->version = PINRAIL_GPU_BLOCK_VERSION;
  block->size = PINRAIL_GPU_BLOCK_BYTES;
  block->checksum = checksum_of(*block);
}

// Whether the block has the magic and the version of this release.
inline bool has_known_head(const pinrail_gpu_block_t& block) {
  const uint32_t version = block.version;
  return ((block.magic ^ PINRAIL_GPU_BLOCK_MAGIC) | (version ^ PINRAIL_GPU_BLOCK_VERSION)) == 0;
}

// Whether the range is not empty and lies within an allocation of that many bytes.
inline bool is_inside(uint64_t bytes, size_t offset, size_t length) {
  const size_t end = offset + length;
  return end > offset && end <= bytes;
}

// Checks the head of a block. BAD_PARAM: no block, or an invalid range. VERSION: another version or size.
inline Status check_head(const pinrail_gpu_block_t& block) {
  if (block.magic != PINRAIL_GPU_BLOCK_MAGIC) return PINRAIL_ERR_BAD_PARAM;
  if (block.version != PINRAIL_GPU_BLOCK_VERSION || block.size != PINRAIL_GPU_BLOCK_BYTES) return PINRAIL_ERR_VERSION;
  const bool is_range = block.base != 0 && block.length != 0 && fits(block.base, block.length);
  return is_range ? success() : Status(PINRAIL_ERR_BAD_PARAM);
}

}  // namespace pinrail

#endif
