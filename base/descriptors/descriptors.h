// SPDX-License-Identifier: BSD-3-Clause
// descriptors.h - serves file descriptors to other processes of the same user, by a ticket that travels in a block.
//
// The exporter has a server with a table of descriptors. Each has a random number that is never used twice. There are
// two ways to fetch one. (1) A socket in the abstract namespace, named after user, pid, start time and a part of a
// random number; a thread of the exporter answers there. (2) The table itself is a file (memfd): a process that is
// permitted to trace the exporter takes the table and the descriptor with pidfd_getfd(), without the exporter's help.
//
// Owns     Server: its descriptors, the socket and the thread. fetch(): nothing; the caller owns the result.
// Threads  All functions may run together; the destructor excludes all others.
// Context  API. fetch() may wait for another process.
//
// descriptors/D1  fetch() returns the descriptor that was put in under that number and was still in the table when it
//     was fetched.
// descriptors/D2  Each side checks that the other one belongs to the same user (SCM_CREDENTIALS). The fetching side
//     also checks that the process that the ticket names has answered: a later process with that pid, or a later
//     server, is refused. The answer goes to a socket that came with the question, which no other process has.
//
// descriptors/D3  Every user can read the socket's name and send descriptors there, and the last to close one waits as
//     long as its owner likes. So the kernel refuses, in the sender's call, what does not have the server's whole
//     random number: a ticket has it.
//
// A question is a datagram, so the server keeps nothing of a peer, and one that sends nonsense or does not read its
// answer delays no other. A fetch ends after its time limit, whatever the exporter does. A crash leaves nothing behind.
//
// descriptors/D5  A forked child has no copy of a descriptor in the table, so it keeps no memory of the parent's alive
//     (F1, base/sync/own_file.h). If the program has closed the server's own descriptors, the next put() starts another
//     server; tickets of the old one are NOT_FOUND.
#ifndef PINRAIL_BASE_DESCRIPTORS_DESCRIPTORS_H
#define PINRAIL_BASE_DESCRIPTORS_DESCRIPTORS_H

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/core/status.h"
#include "base/slots/process.h"
#include "base/sync/lock.h"
#include "base/sync/own_file.h"
#include "base/sync/own_threads.h"

namespace pinrail::descriptors {

// What an importer must know besides the process. All fields are zero if there is no descriptor.
struct Ticket {
  uint64_t server = 0;     // the server's random number
  uint64_t number = 0;     // the descriptor's random number
  uint32_t place = 0;      // its index in the table
  uint32_t directory = 0;  // the number of the table's descriptor in the exporter
};

struct Directory;
struct Question;

class Server {
 public:
  static constexpr uint32_t kMost = 16384;  // the most descriptors at a time

  Server();
  ~Server();

  // Takes over the descriptor, also when it fails. The first call starts the server. forks_before: the result of
  // own_file::count_forks() before the descriptor was opened. kind: how it is known. OUT_OF_RESOURCE: kMost descriptors
  // are in the table, or there is no memory, descriptor or thread left. TEMP_OUT_OF_RESOURCE: the process has forked
  // since.
  Status put(const slots::Process& self, int descriptor, FileKind kind, uint64_t forks_before, Ticket* ticket_out)
      EXCLUDES(mutex_);
  // Closes the descriptor. A ticket that is not in the table is ignored.
  void remove(const Ticket& ticket) EXCLUDES(mutex_);

  // How often a server was started because the program had closed the descriptors of the one before.
  uint32_t losses() const { return losses_.load(); }

  // Call it in a forked child, where the server is the parent's. The child's copies of its descriptors are closed
  // already (descriptors/D5).
  void disown();

 private:
  Status start(const slots::Process& self) EXCLUDES(starting_, mutex_);
  Status open_socket(const slots::Process& self, uint64_t server);
  bool is_whole() EXCLUDES(mutex_);
  void end_thread() EXCLUDES(mutex_);
  void close_all_locked() REQUIRES(mutex_);
  static void run(void* server);
  void answer_next() EXCLUDES(mutex_);
  int find_locked(const Question& question) const REQUIRES(mutex_);

  Mutex starting_{LockRank::device};  // held while the server starts, or ends because it was lost
  OwnThread thread_;                  // started while the server runs
  OwnFile listener_;                  // opened before the thread starts
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> losses_{0};
  Mutex mutex_{LockRank::leaf};
  std::unique_ptr<Directory> directory_ GUARDED_BY(mutex_);
  uint32_t lowest_ GUARDED_BY(mutex_) = 0;  // no entry below this one is free
};

// How to fetch. any: pidfd if the kernel permits it, otherwise the socket.
enum class Way : uint8_t { any = 0, socket = 1, pidfd = 2 };

// Fetches a descriptor that the caller then owns. NOT_FOUND: the exporter, its server or the descriptor is gone. PERM:
// the exporter belongs to another user, or another process answers. NOT_SUPPORTED: the requested way is not permitted.
// NOT_AVAILABLE: no answer within the time limit, or the exporter has no descriptor left to give it. OUT_OF_RESOURCE:
// this process has no descriptor left. ERROR: the answer is malformed.
Status fetch(const slots::Process& exporter, const Ticket& ticket, Way way, uint32_t timeout_ms, int* descriptor_out);

}  // namespace pinrail::descriptors

#endif
