// SPDX-License-Identifier: BSD-3-Clause
// Runs in the server's thread, which holds no lock except inside `find`.
#include "base/descriptors/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/core/clock.h"

namespace pinrail::descriptors {
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
