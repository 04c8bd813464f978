// SPDX-License-Identifier: BSD-3-Clause
// lru_queue.h - a queue of entries with rising epochs, the common part of an LRU list. Any entry can be removed, in
// steps that do not depend on the length.
//
// Owns     its memory: blocks of 64 entries in a chain; free blocks are used again. Blocks are allocated one by one, so
//          growing copies no entries.
// Threads  One at a time: the caller holds the cache's lock.
// Context  API. Only reserve() allocates.
//
// lru_queue/V1  From front to back the epochs do not fall.
// lru_queue/V2  The front entry is no gap. An empty queue has at most one block in use.
#ifndef PINRAIL_BASE_LRU_LRU_QUEUE_H
#define PINRAIL_BASE_LRU_LRU_QUEUE_H

#include <pinrail/types.h>

#include <memory>
#include <utility>
#include <vector>

namespace pinrail {

class LruQueue {
 public:
  struct Entry {
    uint64_t epoch;
    pinrail_registration_t* reg;  // NULL: a gap, the entry was removed
  };

  // Makes room for n entries and for some gaps. May throw bad_alloc.
  void reserve(size_t n) {
    const size_t blocks = n / kBlock + n / kBlock / 8 + 2;
    while (blocks_.size() < blocks) {
      std::unique_ptr<Block> fresh(new Block);  // not cleared: the memory is not touched before it is used
      fresh->next = free_;
      blocks_.push_back(std::move(fresh));
      free_ = static_cast<uint32_t>(blocks_.size() - 1);
    }
  }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The oldest entry. The queue is not empty.
  const Entry& front() const { return blocks_[first_]->entries[first_slot_]; }
  const Entry& at(uint32_t place) const { return blocks_[place / kBlock]->entries[place % kBlock]; }

  // Adds the entry at the back; its place does not change until it is removed. False if it is older than the last
  // entry, or if no free block is left because gaps occupy them.
  bool push(pinrail_registration_t* reg, uint64_t epoch, uint32_t* place_out) {
    if (size_ != 0 && epoch < last_epoch_) return false;
    if ((last_ == kNone || behind_last_slot_ == kBlock) && !add_block()) return false;
    *place_out = last_ * kBlock + behind_last_slot_;
    blocks_[last_]->entries[behind_last_slot_++] = {epoch, reg};
    last_epoch_ = epoch;
    ++size_;
    return true;
  }

  void remove(uint32_t place) {
    blocks_[place / kBlock]->entries[place % kBlock].reg = nullptr;
    --size_;
    if (size_ == 0) {
      while (first_ != last_) leave_block();
      first_slot_ = behind_last_slot_ = 0;
    } else {
      while (front().reg == nullptr) leave_slot();
    }
  }

  // Checks lru_queue/V1 and lru_queue/V2.
  bool in_order() const {
    if (size_ == 0) return first_ == last_;
    size_t seen = 0;
    uint64_t epoch = 0;
    for (uint32_t block = first_, slot = first_slot_; block != last_ || slot < behind_last_slot_;) {
      const Entry& entry = blocks_[block]->entries[slot];
      if (entry.reg != nullptr && entry.epoch < epoch) return false;
      if (entry.reg != nullptr) ++seen, epoch = entry.epoch;
      if (++slot == kBlock && block != last_) block = blocks_[block]->next, slot = 0;
    }
    return seen == size_ && front().reg != nullptr;
  }

 private:
  static constexpr uint32_t kBlock = 64;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Block {
    Entry entries[kBlock];
    uint32_t next;  // the next block in the chain, or in the list of free blocks
  };

  bool add_block() {
    const uint32_t block = free_;
    if (block == kNone) return false;
    free_ = blocks_[block]->next;
    (last_ == kNone ? first_ : blocks_[last_]->next) = block;
    last_ = block;
    behind_last_slot_ = 0;
    return true;
  }

  void leave_block() {
    const uint32_t left = first_;
    first_ = blocks_[left]->next;
    first_slot_ = 0;
    blocks_[left]->next = free_;
    free_ = left;
  }
  void leave_slot() {
    if (++first_slot_ == kBlock) leave_block();
  }

  std::vector<std::unique_ptr<Block>> blocks_;
  size_t size_ = 0;
  uint64_t last_epoch_ = 0;
  uint32_t first_ = kNone, first_slot_ = 0;
  uint32_t last_ = kNone, behind_last_slot_ = 0;
  uint32_t free_ = kNone;
};

}  // namespace pinrail

#endif
