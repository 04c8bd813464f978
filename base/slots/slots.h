// SPDX-License-Identifier: BSD-3-Clause
// slots.h - validity slots: does the memory that a peer exported still live? A word each, in shared memory.
//
// The exporter has a segment (a memfd, which its own user's processes reach by /proc) with a word for each exported
// allocation. When the memory goes it changes the word; a peer's hit loads it and compares. One 64-bit word:
//   bits  0-15  how many importers without a seat have the memory open
//   bit   16    dead: the memory is gone
//   bits 17-63  generation: rises when the slot serves another allocation
// Who has the memory open stands beside it, a bit for each seat: a place in the segment that an importer takes in its
// process's name, so that those of a process that crashed can be told from the others. There are 256; who comes later
// is counted only.
//
// Owns     Exporter: the segment, until it is destroyed. Importer: a mapping of another's.
// Threads  all functions may run together; create, open and the destructors exclude the rest.
// Hook     what ends in _hook.
//
// slots/V1  A word is never again what it was for an allocation that died: generations only rise.
// slots/V2  The segment holds the exporter's pid, its start and a random number: no later process of that pid, and no
//     later segment of this one, is taken for it.
// slots/V3  A segment is alive as long as its exporter has the descriptor, which an exec closes. A crash leaves
//     nothing behind. The kernel marks the segment when its exporter exits, crashes or calls execve, before any memory
//     of the old program goes (end_mark.h), and hits look at that.
// slots/V4  An importer's bit is set before it opens the memory, and cleared after it closed it. The bits of one that
// crashed
//     are cleared by the exporter when it waits for them; of what is counted only, a crash holds up whoever waits until
//     its time limit.
// slots/V5  Nobody can shorten a segment that is mapped, whatever else processes of that user do to it.
#ifndef PINRAIL_BASE_SLOTS_SLOTS_H
#define PINRAIL_BASE_SLOTS_SLOTS_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/slots/end_mark.h"
#include "base/slots/process.h"
#include "base/sync/lock.h"

namespace pinrail::slots {

constexpr uint64_t kImporters = 0xffff;
constexpr uint64_t kDead = uint64_t{1} << 16;
constexpr unsigned kGenerationShift = 17;
constexpr uint64_t kIncarnationMask = ~kImporters;  // what a hit compares

using Word = std::atomic<uint64_t>;

struct Header;
struct Holders;

class Exporter {
 public:
  Exporter() = default;
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // NOT_SUPPORTED: no shared memory here, or there is none left; OUT_OF_RESOURCE.
  Status create(const Process& self, uint32_t slots);
  uint64_t segment() const { return segment_; }  // its number; 0: create() did not succeed
  uint32_t count() const { return count_; }

  // A free slot; word_out: what it holds as long as the memory lives. OUT_OF_RESOURCE: all are taken;
  // TEMP_OUT_OF_RESOURCE: there is no shared memory left for more of them.
  Status take(uint32_t* slot_out, uint64_t* word_out) EXCLUDES(mutex_);
  // The memory is gone; and the slot may be taken again.
  void kill_hook(uint32_t slot);
  void give_back(uint32_t slot) EXCLUDES(mutex_);

  Word* word(uint32_t slot) const { return &words_[slot]; }
  const std::atomic<uint64_t>* deaths() const;  // rises with each
  // Importers that have it open, or had when they crashed; and those of processes that are no more are forgotten, here
  // and in all slots: that asks the system about each.
  uint64_t importers_hook(uint32_t slot) const;
  void forget_dead_hook(uint32_t slot);

  // The segment is another process's from now on: the one that was checkpointed, when this one was restarted from its
  // image. Its words may still be read; nothing in it is written any more. Excludes the rest.
  void disown();

 private:
  bool make_file();
  bool reserve(uint32_t first, uint32_t count) const;
  bool reserve_more() REQUIRES(mutex_);

  Header* header_ = nullptr;
  Word* words_ = nullptr;
  Holders* holders_ = nullptr;
  size_t bytes_ = 0;
  uint64_t segment_ = 0;
  uint32_t count_ = 0;
  bool is_own_ = true;
  int file_ = -1;
  EndMark end_mark_;
  std::atomic<uint32_t> used_{0};  // slots from here on were never taken
  Mutex mutex_{LockRank::slots};
  uint32_t reserved_ GUARDED_BY(mutex_) = 0;     // there is memory for those before it
  uint32_t lowest_ GUARDED_BY(mutex_) = 0;       // none below is free
  uint8_t* taken_ GUARDED_BY(mutex_) = nullptr;  // 1 a slot
};

// Where a segment came from, to ask later whether it is there still. Any context but a hook.
struct Source {
  uint32_t pid = 0;
  uint64_t start = 0;
  int file = -1;  // the exporter's descriptor; -1: of a process without a segment
  uint64_t device = 0, inode = 0;

  // slots/V3. What the system does not tell any more is not alive.
  bool is_alive() const;
};

class Importer {
 public:
  Importer() = default;
  ~Importer();
  Importer(const Importer&) = delete;
  Importer& operator=(const Importer&) = delete;

  // NOT_FOUND: the exporter, or that segment of his, is gone; PERM: it is another user's, or not sealed; ERROR: it is
  // none of ours.
  Status open(uint32_t user, uint32_t pid, uint64_t start, uint64_t segment);
  // Takes a seat, if there is one, which the destructor gives back if this is that process still.
  void sit(const Process& self);
  uint32_t count() const { return count_; }
  const Source& source() const { return source_; }

  // Counts an importer of that slot in, if its word is still of that incarnation; false: the memory is gone. As often
  // as that it has to leave, with the same life.
  bool enter(uint32_t slot, uint64_t incarnation) EXCLUDES(mutex_);
  void leave(uint32_t slot, uint64_t incarnation) EXCLUDES(mutex_);

  Word* word(uint32_t slot) const { return &words_[slot]; }
  const std::atomic<uint64_t>* deaths() const;  // rises with each in the segment
  bool has_ended() const;                       // the exporter

 private:
  Status map(int file);
  void leave_locked(uint32_t slot) REQUIRES(mutex_);

  Header* header_ = nullptr;
  Word* words_ = nullptr;
  Holders* holders_ = nullptr;
  size_t bytes_ = 0;
  uint32_t count_ = 0;
  Source source_;
  std::atomic<uint64_t>* seat_ = nullptr;  // NULL: it has none, and is counted
  uint32_t seat_number_ = 0;
  uint64_t sitter_ = 0;  // what stands in it
  uint32_t pid_ = 0;     // of this process
  Mutex mutex_{LockRank::slots};
  std::unordered_map<uint32_t, uint32_t> entered_ GUARDED_BY(mutex_);  // times, of whatever life
};

// The same in the word alone, by who has no seat.
bool enter(Word* word, uint64_t incarnation);
void leave(Word* word, uint64_t incarnation);
inline bool is_alive(const Word* word, uint64_t incarnation) {
  // acquire: what comes after sees no older memory than the word says; pairs with kill_hook().
  return (word->load(std::memory_order_acquire) & kIncarnationMask) == incarnation;
}

}  // namespace pinrail::slots

#endif
