// SPDX-License-Identifier: BSD-3-Clause
// The exporter's side: the table, and the start and the end of the server. server.cc has the thread's loop.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/core/calling_thread.h"
#include "base/core/files.h"
#include "base/core/kernel.h"
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

// Runs in the server's thread, which holds no lock except inside `find`.

namespace {

struct Peer {
  OwnFile socket;
  int64_t deadline = 0;
  uint64_t arrival = 0;  // the order of arrival
};

bool is_own_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// Never waits: a peer that does not read its answer gets none.
void send_answer(int socket, pinrail_status_t status, int descriptor) {
  Answer answer;
  answer.status = status;
  iovec bytes{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

// The connected peers that have not asked yet. Used by the server's thread alone.
class Peers {
 public:
  explicit Peers(const Find& find) : find_(find) {}

  // Answers at once if the question has arrived. Otherwise the peer gets a place, if need be that of the oldest peer.
  void welcome(int socket, uint64_t forks) {
    Peer* place = &peers_[0];
    for (Peer& peer : peers_) {
      if (!peer.socket.is_taken() || (place->socket.is_taken() && peer.arrival < place->arrival)) place = &peer;
      if (!place->socket.is_taken()) break;
    }
    // A peer of another user knows from SO_PEERCRED why it is refused.
    if (!is_own_user(socket) || !place->socket.take(socket, FileKind::has_inode, forks)) {
      close(socket);
      return;
    }
    place->deadline = now_ms_hook() + kQuestionTimeoutMs;
    place->arrival = ++arrivals_;
    receive_question(place);
  }

  // Answers the peer's one question and drops the peer. A message of another length is not answered.
  void receive_question(Peer* peer) {
    Question question, more;
    iovec bytes{&question, sizeof(question)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;  // no room for descriptors: the kernel closes those that were sent
    const ssize_t length = recvmsg(peer->socket.number(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const bool is_well_formed = length == sizeof(question) && (message.msg_flags & MSG_TRUNC) == 0 &&
                                question.magic == more.magic && question.version == more.version;
    if (is_well_formed) answer(peer->socket, question);
    peer->socket.close();
  }

  void drop_timed_out(int64_t now) {
    for (Peer& peer : peers_) {
      if (peer.socket.is_taken() && peer.deadline <= now) peer.socket.close();
    }
  }

  // Fills entries and `who` for poll(), and returns how many.
  nfds_t fill_poll_entries(pollfd* entries, Peer** peers_out) {
    nfds_t count = 0;
    for (Peer& peer : peers_) {
      if (!peer.socket.is_taken()) continue;
      entries[count] = {peer.socket.number(), POLLIN, 0};
      peers_out[count++] = &peer;
    }
    return count;
  }

 private:
  void answer(const OwnFile& socket, const Question& question) const {
    const Descriptor descriptor(find_(question));
    send_answer(socket.number(), descriptor.is_open() ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND, descriptor.get());
  }
  const Find& find_;
  Peer peers_[kMaxPeers];
  uint64_t arrivals_ = 0;
};

// Accepts all peers that wait. False: accept4() failed, for example because the process has no descriptor left.
bool accept_all(const OwnFile& listener, Peers* peers) {
  for (;;) {
    const uint64_t forks = own_file::count_forks();
    const int socket = accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) {
      peers->welcome(socket, forks);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return errno == EAGAIN;
  }
}

}  // namespace

// poll() fails for example while the process has lowered its limit of descriptors below the number of entries. That may
// pass: the server must not end before it is told to.
void serve(const OwnFile& listener, const std::atomic<bool>& stopping, const own_threads::Calls& calls,
           const Find& find) {
  constexpr int kRetryMs = 100;  // the interval for dropping late peers and for a new attempt to accept
  constexpr int kLookMs = 1000;  // the kernel does not tell that the program has closed the socket
  constexpr timespec kNap = {0, kRetryMs * 1000000L};
  Peers peers(find);
  bool may_accept = true;
  while (!stopping.load() && listener.is_open()) {
    pollfd entries[1 + kMaxPeers] = {{may_accept ? listener.number() : -1, POLLIN, 0}};
    Peer* peers_out[kMaxPeers] = {};
    const nfds_t count = peers.fill_poll_entries(entries + 1, peers_out);
    const int ready = poll(entries, 1 + count, count != 0 || !may_accept ? kRetryMs : kLookMs);
    if (ready < 0 && errno != EINTR) nanosleep(&kNap, nullptr);
    const own_threads::ComponentWork work(calls);
    for (nfds_t i = 0; ready > 0 && i < count; ++i) {
      if (entries[1 + i].revents != 0) peers.receive_question(peers_out[i]);
    }
    peers.drop_timed_out(now_ms_hook());
    may_accept = accept_all(listener, &peers);
  }
}

}  // namespace pinrail::descriptors
