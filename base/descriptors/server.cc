// SPDX-License-Identifier: BSD-3-Clause
// The exporter's side: the table, and the start and the end of the server. serve.cc has the thread's loop.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/core/calling_thread.h"
#include "base/core/files.h"
#include "base/descriptors/wire.h"

namespace pinrail::descriptors {
namespace {

constexpr int kBacklog = 64;

// Returns an odd number, so never 0.
bool random_number(uint64_t* number_out) {
  if (getrandom(number_out, sizeof(*number_out), 0) != sizeof(*number_out)) return false;
  *number_out |= 1;
  return true;
}

}  // namespace

socklen_t name_socket(const slots::Process& process, uint64_t server, sockaddr_un* address_out) {
  *address_out = {};
  address_out->sun_family = AF_UNIX;
  char* name = address_out->sun_path + 1;  // an abstract name begins with 0 and ends with its socket
  const int length =
      std::snprintf(name, sizeof(address_out->sun_path) - 1, "pinrail-gpu.%u.%u.%llx.%llx", process.user, process.pid,
                    static_cast<unsigned long long>(process.start), static_cast<unsigned long long>(server));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

// The file is sealed, so that its length cannot change while another process reads or maps it.
Status Directory::create(const slots::Process& self, uint64_t server) {
  if (!may_make_file(sizeof(Table))) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const auto make = [] { return above_standard(memfd_create("pinrail-descriptors", MFD_CLOEXEC | MFD_ALLOW_SEALING)); };
  if (!file.open(FileKind::has_inode, make)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!allocate_in_file(file.number(), 0, sizeof(Table))) return PINRAIL_ERR_OUT_OF_RESOURCE;
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fcntl(file.number(), F_ADD_SEALS, kSeals) != 0) return PINRAIL_ERR_OUT_OF_RESOURCE;
  void* at = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (at == MAP_FAILED) return PINRAIL_ERR_OUT_OF_RESOURCE;
  table = static_cast<Table*>(at);  // a new file contains zeros, which are free entries
  table->header = Header{kTable, kVersion, self.pid, self.start, server};
  return success();
}

Directory::~Directory() {
  if (table != nullptr) munmap(table, sizeof(Table));
}

Server::Server(own_threads::Calls calls) : calls_(calls) {}

// Takes the server's lock. Owns the descriptor in any case.
Status Server::put(const slots::Process& self, int descriptor, FileKind kind, uint64_t forks_before,
                   Ticket* ticket_out) {
  const NoCancel no_cancel;
  if (descriptor < 0) return PINRAIL_ERR_BAD_PARAM;
  Descriptor owned(descriptor);
  uint64_t number = 0;
  end_lost_server();
  Guard guard(mutex_);
  while (is_ending_) ended_.wait(mutex_);
  const Status started = running_ ? success() : start_locked(self);
  if (!started.ok()) return started;
  Table* table = directory_->table;
  uint32_t place = lowest_;
  while (place < kMost && table->entries[place].number.load() != 0) ++place;
  if (place == kMost || !random_number(&number)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!directory_->descriptors[place].take(descriptor, kind, forks_before)) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  lowest_ = place + 1;
  table->entries[place].descriptor.store(descriptor_word(owned.release(), directory_->descriptors[place].mark()));
  table->entries[place].number.store(number);  // last: a reader that finds the number also finds its descriptor
  *ticket_out = {table->header.server, number, place, static_cast<uint32_t>(directory_->file.number())};
  return success();
}

// Clears the number first: a peer that took the descriptor and then still finds its ticket's number took the right one
// (descriptors/D1).
void Server::remove(const Ticket& ticket) {
  const NoCancel no_cancel;
  Guard guard(mutex_);
  if (directory_ == nullptr || ticket.number == 0 || ticket.place >= kMost) return;
  Entry& entry = directory_->table->entries[ticket.place];
  uint64_t expected = ticket.number;
  if (!entry.number.compare_exchange_strong(expected, 0)) return;
  directory_->descriptors[ticket.place].close();
  lowest_ = std::min(lowest_, ticket.place);
}

// The lock is held. Makes the table, the socket and the thread; after an error nothing of them is left.
Status Server::start_locked(const slots::Process& self) {
  uint64_t random = 0;
  directory_.reset(new (std::nothrow) Directory);
  Status status = directory_ != nullptr && random_number(&random) ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
  if (status.ok()) status = directory_->create(self, random);
  if (status.ok()) status = open_socket_locked(self);
  if (status.ok() && !thread_.start("pinrail-fds", run, this)) status = PINRAIL_ERR_OUT_OF_RESOURCE;
  running_ = status.ok();
  if (!status.ok()) close_all_locked();
  return status;
}

// The lock is held. OUT_OF_RESOURCE after any error; close_all_locked() then closes what was opened.
Status Server::open_socket_locked(const slots::Process& self) {
  sockaddr_un address;
  const socklen_t length = name_socket(self, directory_->table->header.server, &address);
  const auto make = [] { return above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); };
  const bool open = listener_.open(FileKind::has_inode, make) &&
                    bind(listener_.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                    listen(listener_.number(), kBacklog) == 0;
  return open ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
}

// Holds the lock only while it duplicates a descriptor, so a peer that reads slowly delays no put().
void Server::run(void* server_pointer) {
  auto* server = static_cast<Server*>(server_pointer);
  serve(server->listener_, server->stopping_, server->calls_, [server](const Question& question) {
    Guard guard(server->mutex_);
    if (question.place >= kMost) return -1;
    const Entry& entry = server->directory_->table->entries[question.place];
    if (question.number == 0 || entry.number.load() != question.number) return -1;
    return fcntl(server->directory_->descriptors[question.place].number(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  });
}

// The lock is held. Closes all descriptors in the table, the table and the socket.
void Server::close_all_locked() {
  if (directory_ != nullptr && directory_->table != nullptr) {
    for (uint32_t place = 0; place < kMost; ++place) {
      const bool is_taken = directory_->table->entries[place].number.exchange(0) != 0;
      if (is_taken) directory_->descriptors[place].close();
    }
  }
  directory_.reset();
  listener_.close();
  running_ = false;
  lowest_ = 0;
}

// Whether the program has left the server's own descriptors open. The lock is held.
bool Server::is_whole_locked() const { return listener_.is_open() && directory_->file.is_open(); }

// Wakes the thread by its socket and waits for its end. Without the socket, which the program may have closed, the
// thread ends within a second. The thread takes the lock, so the caller does not hold it.
void Server::end_thread() {
  stopping_.store(true);
  shutdown(listener_.number(), SHUT_RDWR);
  thread_.join();
  stopping_.store(false);
}

// Ends a server whose descriptors the program has closed, so that the next one can start. One thread does it; others
// wait.
void Server::end_lost_server() {
  {
    Guard guard(mutex_);
    while (is_ending_) ended_.wait(mutex_);
    if (!running_ || is_whole_locked()) return;
    is_ending_ = true;
  }
  end_thread();
  Guard guard(mutex_);
  close_all_locked();
  ++losses_;
  is_ending_ = false;
  ended_.notify_all();
}

// No other call runs any more.
Server::~Server() {
  const NoCancel no_cancel;
  end_thread();
  Guard guard(mutex_);
  close_all_locked();
}

// In a forked child another thread of the parent may have held the lock, so it is not taken.
void Server::disown() NO_THREAD_SAFETY_ANALYSIS {
  running_ = false;
  thread_.forget();
  directory_.reset();
}

}  // namespace pinrail::descriptors
