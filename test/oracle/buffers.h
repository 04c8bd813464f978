// SPDX-License-Identifier: BSD-3-Clause
// buffers.h - the memory that a run plays with: buffers of each kind that an event needs, and what their bytes are.
//
// Owns     the buffers, and the random bytes that contents are taken from.
// Threads  a buffer's fields are guarded by its mutex: shared to read its bytes, through a device or not; exclusive for
//          what changes bytes, memory or fields. Notes have a lock of their own.
#ifndef PINRAIL_TEST_ORACLE_BUFFERS_H
#define PINRAIL_TEST_ORACLE_BUFFERS_H

#include <pinrail/pinrail.h>

#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "contrib/tools/common/memory_events.h"
#include "test/oracle/choice.h"

namespace pinrail::oracle {

// A part of a buffer.
struct Piece {
  size_t offset = 0;
  size_t length = 0;
};

// An event has happened, and the range was not registered again since.
struct Due {
  Kind* kind = nullptr;  // NULL: nothing is due
  pinrail_mpool_t* pool = nullptr;
  Piece piece;
  pinrail_handle_t before{};  // what was cached, perhaps dead by now: compared, never used
  bool counts = false;        // it was cached, and the memory is where it was
};

struct Note {
  uint64_t number;
  const char* what;
  unsigned thread;
  const unsigned char* at;
  size_t length;
};

struct Buffer {
  Buffer(size_t index, tools::MemoryKind what) : number(index), kind(what) {}
  const size_t number;
  const tools::MemoryKind kind;

  std::shared_mutex mutex;
  std::unique_ptr<tools::EventMemory> memory;  // NULL: it could not be had just now
  uint64_t version = 0;
  Due due;
  std::atomic<bool> is_due{false};  // the same, for a thread that has not locked yet

  void note(const char* what, unsigned thread, const Piece& piece);
  std::string history();

 private:
  static constexpr size_t kNotes = 12;
  std::mutex notes_mutex_;
  std::array<Note, kNotes> notes_{};
  uint64_t note_count_ = 0;
};

// Bytes that belong to (buffer, version): a window into random ones. Two versions in a row never share it.
class Contents {
 public:
  Contents(size_t largest, uint64_t seed);
  const unsigned char* of(const Buffer& buffer) const;

 private:
  std::vector<unsigned char> bytes_;
};

class Buffers {
 public:
  // As many of each kind as the events want: more where many events share a kind, one heap.
  Buffers(const Choice& choice, const Options& options, unsigned threads);

  // Random ones: of any kind, half of the time one that this thread prefers; of that kind.
  Buffer* pick(Random* random, unsigned thread);
  Buffer* pick(Random* random, tools::MemoryKind kind);
  Buffer* heap();  // or NULL

  // Gives its memory back and takes other memory, of another length, with new contents. The caller has it exclusively.
  void renew(Buffer* buffer, Random* random);
  // Other contents, by the processor.
  void refill(Buffer* buffer);

  const Contents& contents() const { return contents_; }

 private:
  std::vector<std::unique_ptr<Buffer>> all_;
  const unsigned threads_;
  const size_t largest_;
  const Contents contents_;
};

}  // namespace pinrail::oracle

#endif
