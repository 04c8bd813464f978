// SPDX-License-Identifier: BSD-3-Clause
// slots.h - validity slots: words in shared memory that say whether memory that a peer exported is still allocated.
//
// The exporter has a segment (a memfd that processes of the same user open through /proc) with one word for each
// exported allocation. When the memory is freed the exporter changes the word. A peer's hit loads the word and compares
// it. One 64-bit word:
//   bits  0-15  the number of importers without an importer entry that have the memory open
//   bit   16    dead: the memory is gone
//   bits 17-63  generation: rises when the slot serves another allocation
// An importer that opens the segment takes an entry in the importer table for its process, if one of the 256 is free.
// Beside each word, a bit per entry says which importers have the memory open, so that the bits of a crashed process
// can be told from the others. Importers without an importer entry are only counted in the word.
//
// Owns     Exporter: the segment, until it is destroyed. Importer: its mapping of an exporter's segment.
// Threads  All functions may run together; create(), open() and the destructors exclude all others.
// Context  API, except functions whose names end in _hook, word(), deaths(), has_ended() and is_alive(), which may be
//          called in a hook.
//
// A word never again has a value that it had for an allocation that died: generations only rise. The segment contains
// the exporter's pid, its start time and a random number. So neither a later process with that pid nor a later segment
// of the same process is taken for it.
//
// slots/V3  A segment is alive as long as its exporter has the descriptor open; execve() closes it. A crash leaves
//     nothing behind. The kernel marks the segment when the exporter exits, crashes or calls execve(), before it frees
//     the memory of the old program (process.h), and hits read that mark.
// slots/V4  An importer's bit is set before the importer opens the memory and cleared after it has closed it. The
//     exporter clears the bits of a crashed importer when it waits for them, and looks at one importer entry after the
//     other, so that crashes do not use up the table. An importer that is only counted and
//     crashes delays a waiting exporter until the exporter's time limit. rgpusm reports that it has no entry.
// slots/V5  No process can shorten a mapped segment, whatever else processes of that user do to it.
#ifndef PINRAIL_BASE_SLOTS_SLOTS_H
#define PINRAIL_BASE_SLOTS_SLOTS_H

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/slots/process.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"

namespace pinrail::slots {

constexpr uint64_t kImporters = 0xffff;
constexpr uint64_t kDead = uint64_t{1} << 16;
constexpr unsigned kGenerationShift = 17;
constexpr uint64_t kIncarnationMask = ~kImporters;  // the part of a word that a hit compares

using Word = std::atomic<uint64_t>;

struct Header;
struct Holders;

class Exporter {
 public:
  ~Exporter();

  // NOT_SUPPORTED: shared memory does not exist or is used up. OUT_OF_RESOURCE: memory is used up.
  Status create(const Process& self, uint32_t slots);
  uint64_t segment() const { return segment_; }  // the segment's number; 0: create() did not succeed
  // False: the program has closed it, and no other process can open it any more.
  bool has_file() const { return file_.is_open(); }

  // Takes a free slot. word_out: the value that the slot's word has as long as the memory lives. OUT_OF_RESOURCE: all
  // slots are taken. TEMP_OUT_OF_RESOURCE: there is no shared memory for more slots at present.
  Status take(uint32_t* slot_out, uint64_t* word_out) EXCLUDES(mutex_);
  // kill_hook() marks the slot dead: its memory is gone. give_back() does so too, and then the slot may be taken again.
  // An event names the incarnation of which it has read the range: the slot may serve other memory by now.
  void kill_hook(uint32_t slot) { kill_hook(slot, incarnation_hook(slot)); }
  void kill_hook(uint32_t slot, uint64_t incarnation);
  void give_back(uint32_t slot) EXCLUDES(mutex_);

  Word* word(uint32_t slot) const { return &words_[slot]; }
  uint64_t incarnation_hook(uint32_t slot) const { return words_[slot].load() & kIncarnationMask; }
  const std::atomic<uint64_t>* deaths() const;  // rises with each slot that is marked dead
  // importers_hook() returns how many importers have the slot's memory open or had it open when they crashed.
  // forget_dead_hook() clears, in all slots, the bits of importers whose processes have ended; it asks the system about
  // each importer of this slot.
  uint64_t importers_hook(uint32_t slot) const;
  void forget_dead_hook(uint32_t slot);

  // Asks the system about one importer, another one each time, and frees its importer entry if it has ended.
  void forget_one_dead();

  // Call it in a process that was restarted from an image: the segment belongs to the process that was checkpointed.
  // The words may still be read; nothing in the segment is written any more. Excludes all other functions.
  void disown();

 private:
  bool make_file();
  bool reserve_more_locked() REQUIRES(mutex_);
  void free_entry_of_dead_hook(uint32_t number);

  Header* header_ = nullptr;
  Word* words_ = nullptr;
  Holders* holders_ = nullptr;
  size_t bytes_ = 0;
  uint64_t segment_ = 0;
  uint32_t count_ = 0;
  bool is_own_ = true;
  OwnFile file_;
  EndMark end_mark_;
  std::atomic<uint32_t> used_{0};        // slots from this one on were never taken
  std::atomic<uint32_t> next_entry_{0};  // the importer entry that forget_one_dead() looks at next
  Mutex mutex_{LockRank::leaf};
  uint32_t reserved_ GUARDED_BY(mutex_) = 0;             // the slots below this one have memory
  uint32_t lowest_ GUARDED_BY(mutex_) = 0;               // no slot below this one is free
  std::unique_ptr<uint8_t[]> taken_ GUARDED_BY(mutex_);  // one byte per slot: 1: taken
};

// Identifies a segment, to ask later whether it still exists. Start-up or API context.
struct Source {
  uint32_t pid = 0;
  uint64_t start = 0;
  int file = -1;  // the exporter's descriptor; -1: the process has no segment
  uint64_t device = 0, inode = 0;

  // Returns whether the segment still exists (slots/V3). False also if this process may not see the exporter's files.
  bool is_alive() const;
};

class Importer {
 public:
  ~Importer();

  // Maps the exporter's segment. NOT_FOUND: the exporter or that segment is gone. PERM: the file belongs to another
  // user or is not sealed. OUT_OF_RESOURCE: this process or the system has no descriptor or memory left. ERROR: the
  // file is malformed or cannot be mapped.
  Status open(uint32_t user, uint32_t pid, uint64_t start, uint64_t segment);
  // Takes an importer entry if one is free and there is memory. Call it before enter(). The destructor gives it back,
  // if it runs in the same process.
  void register_importer(const Process& self);
  bool has_entry() const { return importer_entry_ != nullptr; }
  uint32_t count() const { return count_; }
  const Source& source() const { return source_; }

  // enter() counts an importer of the slot's memory. False, and not counted: the word is not of that incarnation any
  // more, so the memory is gone, or too many importers are counted in the word. Each successful enter() needs one
  // leave() with the same incarnation.
  bool enter(uint32_t slot, uint64_t incarnation) EXCLUDES(mutex_);
  void leave(uint32_t slot, uint64_t incarnation) EXCLUDES(mutex_);

  Word* word(uint32_t slot) const { return &words_[slot]; }
  const std::atomic<uint64_t>* deaths() const;  // rises with each slot of the segment that is marked dead
  bool has_ended() const;                       // true if the exporter has ended

 private:
  void leave_locked(uint32_t slot) REQUIRES(mutex_);

  Header* header_ = nullptr;
  Word* words_ = nullptr;
  Holders* holders_ = nullptr;
  size_t bytes_ = 0;
  uint32_t count_ = 0;
  Source source_;
  std::atomic<uint64_t>* importer_entry_ = nullptr;  // NULL: no importer entry; the importer is counted in the words
  uint32_t importer_index_ = 0;
  uint64_t importer_word_ = 0;  // the value that the importer has stored in its importer entry
  Mutex mutex_{LockRank::leaf};
  // For each slot the number of enter() calls, of any incarnation, that no leave() has undone. From calloc(), which
  // gives memory to those parts only that are used.
  std::unique_ptr<uint32_t[], void (*)(void*)> entered_ GUARDED_BY(mutex_){nullptr, std::free};
};

// As Importer::enter() and leave(), but counted in the word. For importers without an importer entry.
bool enter(Word* word, uint64_t incarnation);
void leave(Word* word, uint64_t incarnation);
// Returns whether the memory of that incarnation is still allocated. Any context.
inline bool is_alive(const Word* word, uint64_t incarnation) {
  // acquire: later loads see memory at least as new as the word; pairs with kill_hook().
  return (word->load(std::memory_order_acquire) & kIncarnationMask) == incarnation;
}

}  // namespace pinrail::slots

#endif
