// SPDX-License-Identifier: BSD-3-Clause
// descriptors.h - file descriptors that other processes of the same user may fetch, by a ticket that travels in a
// block.
//
// The exporter has a server: a table of descriptors, each with a random number that is never used twice, and two ways
// to them. (1) A socket in the abstract namespace, named after user, pid, start and a random number; a thread answers
// there. (2) The table itself is a file (memfd); who may trace the exporter takes both by pidfd_getfd() and asks
// nobody.
//
// Owns     Server: its descriptors, the socket, the thread. fetch(): nothing; the caller owns what it got.
// Threads  all functions may run together; the destructor excludes the rest.
// Hook     none.
//
// descriptors/D1  What fetch() returns is what was put in under that very number, and was still in when it was fetched.
// descriptors/D2  Both sides make sure that the other one is of the same user (SO_PEERCRED), and the fetching one that
//     it talks to the process that the ticket names: a later process of that pid, or a later server, is not taken for
//     it.
// descriptors/D3  Who connects and says nothing, or nonsense, holds up nobody: it is dropped after a second, and the
//     oldest of more than kMaxPeers at once. A fetch ends after its time limit, whatever the exporter does.
// descriptors/D4  A crash leaves nothing behind.
#ifndef PINRAIL_BASE_DESCRIPTORS_DESCRIPTORS_H
#define PINRAIL_BASE_DESCRIPTORS_DESCRIPTORS_H

#include <pthread.h>

#include <cstdint>
#include <memory>

#include "base/core/status.h"
#include "base/slots/process.h"
#include "base/sync/lock.h"

namespace pinrail::descriptors {

// What an importer must know besides the process. All zero: no descriptor.
struct Ticket {
  uint64_t server = 0;     // random, of the server
  uint64_t number = 0;     // random, of the descriptor
  uint32_t place = 0;      // in the table
  uint32_t directory = 0;  // number of the table's file, in the exporter
};

struct Directory;

class Server {
 public:
  static constexpr uint32_t kMost = 16384;  // descriptors at a time

  Server();
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Takes the descriptor over, also when it fails; the first one starts the server. OUT_OF_RESOURCE: kMost are in, or
  // no memory, descriptor or thread is left.
  Status put(const slots::Process& self, int descriptor, Ticket* ticket_out) EXCLUDES(mutex_);
  // Closes it. A ticket that is not in is ignored.
  void remove(const Ticket& ticket) EXCLUDES(mutex_);

  // In a forked child: all is the parent's. The child's copies stay open: it may have closed them itself, and have
  // other files under those numbers.
  void disown();

 private:
  Status start(const slots::Process& self) REQUIRES(mutex_);
  Status open_socket(const slots::Process& self) REQUIRES(mutex_);
  Status start_thread() REQUIRES(mutex_);
  void close_all() REQUIRES(mutex_);
  static void* run(void* server);

  Mutex mutex_{LockRank::tickets};
  std::unique_ptr<Directory> directory_ GUARDED_BY(mutex_);
  pthread_t thread_ GUARDED_BY(mutex_) = {};
  bool running_ GUARDED_BY(mutex_) = false;
  uint32_t lowest_ GUARDED_BY(mutex_) = 0;  // none below is free
  int listener_ = -1, wake_ = -1;           // written before the thread starts
};

// How a descriptor is fetched; any: without the exporter's help where the kernel lets us, else by the socket.
enum class Way : uint8_t { any = 0, socket = 1, pidfd = 2 };

// NOT_FOUND: the exporter, its server or the descriptor is gone; PERM: it is another user's, or another process
// answers; NOT_SUPPORTED: the way that is asked for is barred; NOT_AVAILABLE: no answer within the time; ERROR: what
// came is no answer.
Status fetch(const slots::Process& exporter, const Ticket& ticket, Way way, uint32_t timeout_ms, int* descriptor_out);

}  // namespace pinrail::descriptors

#endif
