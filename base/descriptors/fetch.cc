// SPDX-License-Identifier: BSD-3-Clause
// The importer's side: fetches a descriptor through the socket, or with pidfd_getfd().
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/core/calling_thread.h"
#include "base/core/kernel.h"
#include "base/descriptors/wire.h"

namespace pinrail::descriptors {
namespace {

class Deadline {
 public:
  explicit Deadline(uint32_t timeout_ms) : at_(now() + std::chrono::milliseconds(timeout_ms)) {}
  int left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - now()).count();
    return left > 0 ? static_cast<int>(left) : 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point now() { return Clock::now(); }
  const Clock::time_point at_;
};

// The queue of a busy server is full: connect() fails with EAGAIN and is tried again after a pause.
Status connect_to(int socket, const sockaddr_un& address, socklen_t length, const Deadline& deadline) {
  const timespec pause{0, 1000000};
  for (;;) {
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0) return success();
    if (errno == ECONNREFUSED || errno == ENOENT) return PINRAIL_ERR_NOT_FOUND;
    if (errno != EAGAIN && errno != EINTR) return PINRAIL_ERR_PERM;
    if (deadline.left_ms() == 0) return PINRAIL_ERR_NOT_AVAILABLE;
    nanosleep(&pause, nullptr);
  }
}

// Keeps descriptors/D2.
Status check_server(int socket, const slots::Process& exporter) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return PINRAIL_ERR_PERM;
  const bool same = peer.uid == geteuid() && static_cast<uint32_t>(peer.pid) == exporter.pid;
  return same ? success() : Status(PINRAIL_ERR_PERM);
}

// Waits until the socket can be read. NOT_AVAILABLE: the time limit has passed.
Status wait_for_word(int socket, const Deadline& deadline) {
  for (;;) {
    pollfd entry{socket, POLLIN, 0};
    const int ready = poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return success();
    if (ready == 0) return PINRAIL_ERR_NOT_AVAILABLE;
    if (errno != EINTR) return PINRAIL_ERR_ERROR;
  }
}

// Takes the one descriptor of the message. If more than one came, all are closed and the result is ERROR.
// OUT_OF_RESOURCE: the message had one, and this process has none left.
Status take_descriptor(msghdr* message, int* descriptor_out) {
  int first = -1;
  size_t came = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int), ++came) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + at, sizeof(number));
      if (came == 0) {
        first = number;
      } else {
        close(number);
      }
    }
  }
  if (came == 1 && (message->msg_flags & MSG_CTRUNC) == 0) {
    *descriptor_out = first;
    return success();
  }
  if (first >= 0) close(first);
  return came == 0 && (message->msg_flags & MSG_CTRUNC) != 0 ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR;
}

// Reads the server's answer. NOT_FOUND: the server ended or has no such descriptor. ERROR: the answer is malformed. On
// success the caller owns the descriptor.
Status read_answer(int socket, int* descriptor_out) {
  Answer answer, right;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  iovec bytes{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  // The server has ended or has dropped this connection.
  if (length == 0 || (length < 0 && errno == ECONNRESET)) return PINRAIL_ERR_NOT_FOUND;
  if (length < 0) return PINRAIL_ERR_ERROR;
  const Status taken = take_descriptor(&message, descriptor_out);
  const bool sane = length == sizeof(answer) && answer.magic == right.magic;
  const auto said = static_cast<pinrail_status_t>(answer.status);
  if (sane && said == PINRAIL_SUCCESS) return taken;
  if (taken.ok()) close(*descriptor_out);
  return sane && said == PINRAIL_ERR_NOT_FOUND ? said : PINRAIL_ERR_ERROR;
}

// Asks the exporter's server; waits at most timeout_ms. Errors as fetch().
Status fetch_by_socket(const slots::Process& exporter, const Ticket& ticket, uint32_t timeout_ms, int* descriptor_out) {
  const Deadline deadline(timeout_ms);
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  sockaddr_un address;
  const socklen_t length = name_socket(exporter, ticket.server, &address);
  Status status = connect_to(socket.get(), address, length, deadline);
  if (status.ok()) status = check_server(socket.get(), exporter);
  if (!status.ok()) return status;
  Question question;
  question.number = ticket.number;
  question.place = ticket.place;
  if (send(socket.get(), &question, sizeof(question), MSG_NOSIGNAL) != sizeof(question)) return PINRAIL_ERR_NOT_FOUND;
  status = wait_for_word(socket.get(), deadline);
  if (!status.ok()) return status;
  int descriptor = -1;
  status = read_answer(socket.get(), &descriptor);
  if (status.ok()) *descriptor_out = descriptor;
  return status;
}

// The status of a failed pidfd_open() or pidfd_getfd(). gone: the error that tells that there is no such process or
// descriptor.
pinrail_status_t status_of_pidfd(int error, int gone) {
  if (error == gone) return PINRAIL_ERR_NOT_FOUND;
  return error == EMFILE || error == ENFILE ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_SUPPORTED;
}

// Another process, and its open files.
class Foreign {
 public:
  explicit Foreign(uint32_t pid) : process_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  bool is_open() const { return process_.is_open(); }
  int take(int64_t number) const {
    return static_cast<int>(syscall(SYS_pidfd_getfd, process_.get(), static_cast<int>(number), 0));
  }

 private:
  const Descriptor process_;
};

// Returns whether the file is the table of that server.
bool is_table(int file, const slots::Process& exporter, uint64_t server) {
  Header header;
  const Header right{kTable, kVersion, exporter.pid, exporter.start, server};
  return pread(file, &header, sizeof(header), 0) == sizeof(header) && std::memcmp(&header, &right, sizeof(header)) == 0;
}

// Reads one word of an entry. A torn read of the number would not equal the ticket's number.
bool read_word(int file, uint32_t place, size_t offset, uint64_t* word_out) {
  const auto at = static_cast<off_t>(offsetof(Table, entries) + place * sizeof(Entry) + offset);
  return pread(file, word_out, sizeof(*word_out), at) == sizeof(*word_out);
}

// Reads the number before and after it takes the descriptor. If both equal the ticket's number, the descriptor belongs
// to the ticket (descriptors/D1).
Status fetch_by_pidfd(const slots::Process& exporter, const Ticket& ticket, int* descriptor_out) {
  const Foreign process(exporter.pid);
  if (!process.is_open()) return status_of_pidfd(errno, ESRCH);
  if (!slots::is_alive(exporter.pid, exporter.start)) return PINRAIL_ERR_NOT_FOUND;  // another process has that pid now
  const Descriptor file(process.take(ticket.directory));
  if (!file.is_open()) return status_of_pidfd(errno, EBADF);
  if (!is_table(file.get(), exporter, ticket.server)) return PINRAIL_ERR_NOT_FOUND;
  uint64_t number = 0, where = 0;
  constexpr size_t kNumber = offsetof(Entry, number), kDescriptor = offsetof(Entry, descriptor);
  if (!read_word(file.get(), ticket.place, kNumber, &number) || number != ticket.number) return PINRAIL_ERR_NOT_FOUND;
  if (!read_word(file.get(), ticket.place, kDescriptor, &where)) return PINRAIL_ERR_NOT_FOUND;
  Descriptor found(process.take(static_cast<int64_t>(where)));
  if (!found.is_open()) return status_of_pidfd(errno, EBADF);
  if (!read_word(file.get(), ticket.place, kNumber, &number) || number != ticket.number) return PINRAIL_ERR_NOT_FOUND;
  // The exporter's program may have closed it and given the number to a file of its own.
  const auto mark = static_cast<int>(static_cast<int64_t>(where) >> kMarkShift);
  if (mark != 0 && fcntl(found.get(), F_GETSIG) != mark) return PINRAIL_ERR_NOT_FOUND;
  *descriptor_out = found.release();
  return success();
}

}  // namespace

// API context, no lock; see descriptors.h for the errors. The caller owns the descriptor.
Status fetch(const slots::Process& exporter, const Ticket& ticket, Way way, uint32_t timeout_ms, int* descriptor_out) {
  const NoCancel no_cancel;
  if (ticket.number == 0 || ticket.server == 0 || ticket.place >= Server::kMost) return PINRAIL_ERR_NOT_FOUND;
  if (exporter.user != geteuid()) return PINRAIL_ERR_PERM;
  if (!slots::is_alive(exporter.pid, exporter.start)) return PINRAIL_ERR_NOT_FOUND;
  if (way != Way::socket) {
    const Status fetched = fetch_by_pidfd(exporter, ticket, descriptor_out);
    if (way == Way::pidfd || !fetched.is(PINRAIL_ERR_NOT_SUPPORTED)) return fetched;
  }
  return fetch_by_socket(exporter, ticket, timeout_ms, descriptor_out);
}

}  // namespace pinrail::descriptors
