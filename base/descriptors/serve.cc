// SPDX-License-Identifier: BSD-3-Clause
// Runs in the server's thread, which holds no lock except inside `find`.
#include "base/descriptors/serve.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace pinrail::descriptors {
namespace {

struct Peer {
  int socket = -1;
  int64_t deadline = 0;
  uint64_t arrival = 0;  // the order of arrival
};

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

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
  ~Peers() {
    for (Peer& peer : peers_) drop(&peer);
  }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Answers at once if the question has arrived. Otherwise the peer gets a place, if need be that of the oldest peer.
  void welcome(int socket) {
    if (!is_own_user(socket)) {
      close(socket);  // the peer knows from SO_PEERCRED why it is refused
      return;
    }
    Peer* place = &peers_[0];
    for (Peer& peer : peers_) {
      if (peer.socket < 0 || (place->socket >= 0 && peer.arrival < place->arrival)) place = &peer;
      if (place->socket < 0) break;
    }
    drop(place);
    *place = {socket, now_ms() + kQuestionTimeoutMs, ++arrivals_};
    receive_question(place);
  }

  // Answers the peer's one question and drops the peer. A message of another length is not answered.
  void receive_question(Peer* peer) {
    Question question, more;
    iovec bytes{&question, sizeof(question)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;  // no room for descriptors: the kernel closes those that were sent
    const ssize_t length = recvmsg(peer->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const bool is_well_formed = length == sizeof(question) && (message.msg_flags & MSG_TRUNC) == 0 &&
                                question.magic == more.magic && question.version == more.version;
    if (is_well_formed) answer(peer->socket, question);
    drop(peer);
  }

  void drop_timed_out(int64_t now) {
    for (Peer& peer : peers_) {
      if (peer.socket >= 0 && peer.deadline <= now) drop(&peer);
    }
  }

  // Fills entries and `who` for poll(), and returns how many.
  nfds_t fill_poll_entries(pollfd* entries, Peer** peers_out) {
    nfds_t count = 0;
    for (Peer& peer : peers_) {
      if (peer.socket < 0) continue;
      entries[count] = {peer.socket, POLLIN, 0};
      peers_out[count++] = &peer;
    }
    return count;
  }

 private:
  void answer(int socket, const Question& question) const {
    const Descriptor descriptor(find_(question));
    send_answer(socket, descriptor.is_open() ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND, descriptor.get());
  }
  static void drop(Peer* peer) {
    if (peer->socket >= 0) close(peer->socket);
    *peer = {};
  }
  const Find& find_;
  Peer peers_[kMaxPeers];
  uint64_t arrivals_ = 0;
};

// Accepts all peers that wait. False: accept4() failed, for example because the process has no descriptor left.
bool accept_all(int listener, Peers* peers) {
  for (;;) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) {
      peers->welcome(socket);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return errno == EAGAIN;
  }
}

// poll() failed, for example because the process has lowered its limit of descriptors below the number of entries. That
// may pass: the server must not end before it is told to.
bool is_woken_after_nap(int wake, int nap_ms) {
  const timespec nap{0, nap_ms * 1000000L};
  uint64_t times = 0;
  nanosleep(&nap, nullptr);
  return read(wake, &times, sizeof(times)) == sizeof(times);
}

}  // namespace

void serve(int listener, int wake, const own_threads::Calls& calls, const Find& find) {
  constexpr int kRetryMs = 100;  // the interval for dropping late peers and for a new attempt to accept
  Peers peers(find);
  bool may_accept = true;
  for (;;) {
    pollfd entries[2 + kMaxPeers] = {{wake, POLLIN, 0}, {may_accept ? listener : -1, POLLIN, 0}};
    Peer* peers_out[kMaxPeers] = {};
    const nfds_t count = peers.fill_poll_entries(entries + 2, peers_out);
    const int ready = poll(entries, 2 + count, count != 0 || !may_accept ? kRetryMs : -1);
    const own_threads::ComponentWork work(calls);
    if (ready < 0 && errno != EINTR && is_woken_after_nap(wake, kRetryMs)) return;
    if (ready > 0 && entries[0].revents != 0) return;
    for (nfds_t i = 0; ready > 0 && i < count; ++i) {
      if (entries[2 + i].revents != 0) peers.receive_question(peers_out[i]);
    }
    peers.drop_timed_out(now_ms());
    may_accept = accept_all(listener, &peers);
  }
}

}  // namespace pinrail::descriptors
