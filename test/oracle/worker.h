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

#include <atomic>
#include <deque>
#include <vector>

#include "test/oracle/buffers.h"
#include "test/oracle/judge.h"
#include "test/oracle/pools.h"

namespace pinrail::oracle {

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

  // worker.cc: between events.
  void read();
  void write();
  void write_with_processor();
  void renew();
  void churn();  // malloc, realloc and free beside it all

  // worker_alloc.cc: memory of the pools' allocators.
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

  // worker_pin.cc: pieces of the buffers that are pinned ahead of their use.
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

  // worker_event.cc
  void event();
  bool fire(Buffer* buffer, Kind* kind);
  void finish_due(Buffer* buffer);

  // worker_transfer.cc: the caller has locked the buffer, exclusively to write. False: it did not come to a comparison.
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

}  // namespace pinrail::oracle

#endif
