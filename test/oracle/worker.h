// SPDX-License-Identifier: BSD-3-Clause
// worker.h - one thread of a run: transfers, and in between events of all kinds.
//
// Threads  one each. What they share locks for itself.
//
// An event goes like this, with the buffer's lock held: a piece of it is registered and compared, so that it is cached;
// the event; new contents by the processor; then the piece is registered again and compared. The last step is now and
// then left to the thread that has the buffer next.
#ifndef PINRAIL_TEST_ORACLE_WORKER_H
#define PINRAIL_TEST_ORACLE_WORKER_H

#include <pinrail/pin.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "test/oracle/buffers.h"

namespace pinrail::oracle {

// Pinrail from init to finalize, with two pools that keep what was registered.
//
// Threads  open() and close(): one. The pools: any.

class Pools {
 public:
  Pools() = default;
  ~Pools();
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // SUCCESS, or what could not be done, as what_out. NOT_AVAILABLE: this machine does not let memory be pinned.
  pinrail_status_t open(const Options& options, std::string* what_out);
  pinrail_status_t close();

  pinrail_mpool_t* unlimited() const { return unlimited_; }
  pinrail_mpool_t* limited() const { return limited_; }
  std::string figures() const;  // two lines

 private:
  bool initialised_ = false;
  pinrail_mpool_t* unlimited_ = nullptr;
  pinrail_mpool_t* limited_ = nullptr;
};

// Of each request, unless something else is said.
constexpr uint32_t kBothWays = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

// Others hold what is needed; the pool with a limit says so, too.
inline bool is_refusal(pinrail_status_t status) {
  return status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || status == PINRAIL_ERR_OUT_OF_RESOURCE;
}

struct Run {
  const Options& options;
  Choice& choice;
  const Pools& pools;
  Buffers& buffers;
  Judge& judge;
  std::atomic<bool> over{false};
};

class Worker {
 public:
  Worker(Run* run, unsigned thread);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void work();  // until the run is over

 private:
  void step();

  // Between events.
  void read();
  void write();
  void write_with_processor();
  void renew();
  void churn();  // malloc, realloc and free beside it all

  // Memory of the pools' allocators.
  struct Allocated {
    pinrail_mpool_t* pool = nullptr;
    unsigned char* at = nullptr;
    size_t length = 0;
    unsigned char first = 0;  // the bytes count up from it
  };
  void use_allocated();
  void allocate(Allocated* piece);
  void resize(Allocated* piece);
  void compare_allocated(const Allocated& piece);
  void free_allocated(Allocated* piece);

  // Pieces of the buffers that are pinned ahead of their use.
  struct Pinned {
    pinrail_mpool_t* pool = nullptr;
    pinrail_range_t range{};
    pinrail_prepin_t* job = nullptr;  // of helper threads; NULL: the range is pinned
  };
  void use_pinned();
  void pin(Pinned* pinned);
  void check_pinned(Buffer* buffer, const Piece& piece, const Pinned& pinned);
  bool end_job(pinrail_prepin_t* job);
  void unpin(Pinned* pinned);

  void event();
  bool fire(Buffer* buffer, Kind* kind);
  void finish_due(Buffer* buffer);

  // The caller has locked the buffer, exclusively to write. False: it did not come to a comparison.
  bool transfer(Buffer* buffer, const Piece& piece, pinrail_mpool_t* pool, Direction direction,
                pinrail_handle_t* handle_out);
  bool enter(Buffer* buffer, const Piece& piece, pinrail_mpool_t* pool, pinrail_handle_t* handle_out);
  bool move(Buffer* buffer, const Piece& piece, Direction direction, pinrail_handle_t handle);
  void leave(pinrail_handle_t handle, const pinrail_mpool_t* pool);
  void drop(pinrail_handle_t handle);
  void heal(Buffer* buffer);

  bool one_in(unsigned count) { return random_() % count == 0; }
  pinrail_mpool_t* any_pool();
  Piece any_piece(const Buffer& buffer);

  Run& run_;
  const unsigned thread_;
  Random random_;
  std::vector<unsigned char> seen_;    // by the device
  std::deque<pinrail_handle_t> held_;  // kept over events
  std::vector<void*> blocks_;          // of churn()
  std::vector<Allocated> allocated_;   // of use_allocated()
  std::vector<Pinned> pinned_;         // of use_pinned()
};

// For mutants: ranges whose events do not reach the pools, whatever reports them.
//
// deaf_wrap.cc takes the place of the one function through which all monitors' reports reach the pools, at link time,
// so that the library needs no door for it; oracle.cc has weak ones for the program that runs
// with the library as it is.
//
// Threads  each with a Deaf of its own, any number together; one at a time per thread.
// Hook     the filter itself.

bool can_be_deaf();

// Where the components are that this program uses; NULL: where the library looks.
const char* component_folder();

// While it lives, what is reported of these pages is dropped, and of ranges that reach beyond them the rest is passed
// on.
class Deaf {
 public:
  Deaf(const void* base, size_t length);
  ~Deaf();
  Deaf(const Deaf&) = delete;
  Deaf& operator=(const Deaf&) = delete;

 private:
  size_t slot_;
};

}  // namespace pinrail::oracle

#endif
