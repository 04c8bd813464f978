// SPDX-License-Identifier: BSD-3-Clause
// buffers.h - what one run of the oracle does, which events take part and which one comes next; the memory that a run
// plays with: buffers of each kind that an event needs, and what their bytes are; and the judge, who compares them.
//
// Owns     the buffers, and the random bytes that contents are taken from.
// Threads  next() and the counts may be used by any number of threads together. A buffer's fields are guarded by its
//          mutex: shared to read its bytes, through a device or not; exclusive for what changes bytes, memory or
//          fields. Notes have a lock of their own.
#ifndef PINRAIL_TEST_ORACLE_BUFFERS_H
#define PINRAIL_TEST_ORACLE_BUFFERS_H

#include <pinrail/pinrail.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <vector>

#include "contrib/tools/common/memory_events.h"
#include "contrib/tools/common/program.h"

namespace pinrail::oracle {

// What one run of the oracle does, and for how long.

constexpr int kSound = 0, kWrong = 1, kUnable = 2, kSkipped = 77;

struct Options {
  double seconds = 60;
  unsigned threads = 0;  // 0: as many as processors, within 2 and 8
  uint64_t seed = 0;     // 0: by the clock
  std::string monitor;   // "": Pinrail's own choice; "none": nothing is reported
  std::string registrar = "iouring";
  std::string events;  // "": all; else names with commas between them
  bool raw_calls = false;
  bool maps_all = false;   // the pool that is not limited is of the mpool mrall
  bool allocates = false;  // memory of the pools' allocators is used beside the buffers
  bool pins = false;       // pieces of the buffers are pinned ahead of their use
  bool lists_mutants = false;
  const tools::MemoryEvent* mutant = nullptr;
  size_t largest = size_t{1} << 20;     // bytes of a buffer
  size_t size_limit = size_t{8} << 20;  // of the pool that evicts
  tools::Pairs mca;
};

// As CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

// Whether its registrations are stale afterwards, so that a run that drops it must find differences.
bool is_mutant(const tools::MemoryEvent& event);

using Random = std::mt19937_64;

// One event that takes part, and what became of it.
struct Kind {
  explicit Kind(const tools::MemoryEvent* what) : event(what) {}
  const tools::MemoryEvent* const event;
  std::atomic<uint64_t> fired{0};
  std::atomic<uint64_t> on_cached{0};  // the range could be found in the cache just before
  std::atomic<uint64_t> again{0};      // ... and was registered again afterwards, at the same address
  std::atomic<uint64_t> hits{0};       // ... by the registration that was there before

  // Fired often, and not once on memory that was cached: such memory is not kept here, and there is nothing to wait
  // for.
  bool is_never_cached() const {
    return fired.load(std::memory_order_relaxed) >= 100 && on_cached.load(std::memory_order_relaxed) == 0;
  }
};

struct Lacking {
  const tools::MemoryEvent* event;
  std::string why;
};

class Choice {
 public:
  explicit Choice(const Options& options);

  const std::vector<std::unique_ptr<Kind>>& kinds() const { return kinds_; }
  const std::vector<Lacking>& lacking() const { return lacking_; }
  const Lacking* find_lacking(const tools::MemoryEvent* event) const;

  // Most often the one that happened least, while it lags behind what is asked of it.
  Kind* next(Random* random) const;

  // How much of the time has passed, 0 to 1; and whether some event happened less often than it should have by then.
  void advance(double share) { share_.store(share, std::memory_order_relaxed); }  // relaxed: nothing hangs on it
  bool is_behind() const;

  // How often each kind must have been registered again: 1,000 in ten minutes, in proportion if shorter, at least once.
  static uint64_t wanted(double seconds);

 private:
  Kind* most_behind() const;

  std::vector<std::unique_ptr<Kind>> kinds_;
  std::vector<Lacking> lacking_;
  const tools::MemoryEvent* mutant_;
  uint64_t wanted_;
  std::atomic<double> share_{0};
};

// The first name of the list that is no event, as a complaint; or empty.
std::string unknown_event(const std::string& list);

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

// Compares what the device saw with what the processor sees, and keeps the counts of a run.
//
// Threads  all functions together.

enum class Direction : uint8_t { device_reads, device_writes };

class Judge {
 public:
  // One more operation, through which length bytes were compared. Prints the first few differences. True: the bytes
  // are the same.
  bool compare(Buffer* buffer, const Piece& piece, const unsigned char* device, const unsigned char* processor,
               Direction direction);
  void failed(const char* what, const std::string& why);                               // a call that must not fail
  void compared(size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }  // relaxed: a count
  void differed(const char* what, const std::string& how);                             // outside of the buffers
  void refused() { ++refused_; }  // TEMP_OUT_OF_RESOURCE: others hold what is needed
  // A range was pinned; whether all of it was registered then.
  void pinned(bool is_registered) {
    pins_.fetch_add(1, std::memory_order_relaxed);  // relaxed: counts
    if (is_registered) registered_pins_.fetch_add(1, std::memory_order_relaxed);
  }
  void did_something() { operations_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: a count

  uint64_t operations() const { return operations_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t differences() const { return differences_; }
  uint64_t failures() const { return failures_; }
  uint64_t refusals() const { return refused_; }
  uint64_t pins() const { return pins_; }
  uint64_t registered_pins() const { return registered_pins_; }

 private:
  std::atomic<uint64_t> operations_{0}, bytes_{0}, differences_{0}, failures_{0}, refused_{0}, pins_{0},
      registered_pins_{0};
};

}  // namespace pinrail::oracle

#endif
