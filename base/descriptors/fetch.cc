// SPDX-License-Identifier: BSD-3-Clause
// The importer's side: fetches a descriptor through the socket, or with pidfd_getfd().
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/core/calling_thread.h"
#include "base/core/kernel.h"
#include "base/descriptors/wire.h"

namespace pinrail::descriptors {
namespace {

int ms_until(int64_t deadline) { return static_cast<int>(std::max<int64_t>(deadline - now_ms_hook(), 0)); }

// Connects the socket to the server, so that it receives nothing of others. SO_PASSCRED gives it a name to
// which the server can answer.
Status connect_to(int socket, const Address& server) {
  constexpr int kYes = 1;
  if (setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &kYes, sizeof(kYes)) != 0) return PINRAIL_ERR_ERROR;
  if (connect(socket, reinterpret_cast<const sockaddr*>(&server.name), server.length) == 0) return success();
  return errno == ECONNREFUSED || errno == ENOENT ? PINRAIL_ERR_NOT_FOUND : PINRAIL_ERR_PERM;
}

// The queue of a busy server is full: the question is sent again after a pause.
Status ask(int socket, const Question& question, int64_t deadline) {
  const timespec pause{0, 1000000};
  while (!send_message(socket, nullptr, &question, sizeof(question), -1)) {
    if (errno != EAGAIN) return PINRAIL_ERR_NOT_FOUND;
    if (ms_until(deadline) == 0) return PINRAIL_ERR_NOT_AVAILABLE;
    nanosleep(&pause, nullptr);
  }
  return success();
}

// Waits until the socket can be read. NOT_FOUND: the server has ended, of which the kernel does not tell.
// NOT_AVAILABLE: the time limit has passed.
Status wait_for_answer(int socket, const Address& server, int64_t deadline) {
  constexpr int kLookMs = 100;
  for (;;) {
    const int left = ms_until(deadline);
    pollfd entry{socket, POLLIN, 0};
    const int ready = poll(&entry, 1, std::min(left, kLookMs));
    if (ready > 0) return success();
    if (ready < 0 && errno != EINTR) return PINRAIL_ERR_ERROR;
    const Status exists = connect_to(socket, server);
    if (!exists.ok()) return exists;
    if (left == 0) return PINRAIL_ERR_NOT_AVAILABLE;
  }
}

// Takes the one descriptor of the message. If more than one came, all are closed and the result is ERROR. NOT_FOUND:
// none was sent. OUT_OF_RESOURCE: one was sent, and this process has none left.
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
  const bool is_cut = (message->msg_flags & MSG_CTRUNC) != 0;
  if (came == 1 && !is_cut) {
    *descriptor_out = first;
    return success();
  }
  if (first >= 0) close(first);
  if (came != 0) return PINRAIL_ERR_ERROR;
  return is_cut ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_FOUND;
}

// Reads the server's answer. PERM: another process, or one of another user, has sent it (descriptors/D2). ERROR: it is
// malformed. Otherwise as take_descriptor(); on success the caller owns the descriptor.
Status read_answer(int socket, const slots::Process& exporter, int* descriptor_out) {
  uint32_t answer = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(4 * sizeof(int))];
  iovec bytes{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (length < 0) return PINRAIL_ERR_ERROR;
  int descriptor = -1;
  const Status taken = take_descriptor(&message, &descriptor);
  Descriptor owned(descriptor);
  const ucred sender = sender_of(&message);
  const bool is_exporter = sender.uid == geteuid() && static_cast<uint32_t>(sender.pid) == exporter.pid;
  if (!is_exporter) return PINRAIL_ERR_PERM;
  if (length != sizeof(answer) || answer != kAnswer) return PINRAIL_ERR_ERROR;
  if (taken.ok()) *descriptor_out = owned.release();
  return taken;
}

// Asks the exporter's server; waits at most timeout_ms. Errors as fetch().
Status fetch_by_socket(const slots::Process& exporter, const Ticket& ticket, uint32_t timeout_ms, int* descriptor_out) {
  const int64_t deadline = now_ms_hook() + timeout_ms;
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const Address server(exporter, ticket.server);
  Question question;
  question.number = ticket.number;
  question.place = ticket.place;
  Status status = connect_to(socket.get(), server);
  if (status.ok()) status = ask(socket.get(), question, deadline);
  if (status.ok()) status = wait_for_answer(socket.get(), server, deadline);
  return status.ok() ? read_answer(socket.get(), exporter, descriptor_out) : status;
}

// The status of a failed pidfd_open() or pidfd_getfd(). gone: the error that tells that there is no such process or
// descriptor.
pinrail_status_t status_of_pidfd(int error, int gone) {
  if (error == gone) return PINRAIL_ERR_NOT_FOUND;
  return error == EMFILE || error == ENFILE ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_SUPPORTED;
}

// Takes the descriptor of that number from the process, or returns -1.
int take_from(const Descriptor& process, int64_t number) {
  return static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), static_cast<int>(number), 0));
}

// Returns whether the file is the table of that server.
bool is_table(int file, const slots::Process& exporter, uint64_t server) {
  Header header;
  const Header right{kTable, kVersion, exporter.pid, exporter.start, server};
  return pread(file, &header, sizeof(header), 0) == sizeof(header) && std::memcmp(&header, &right, sizeof(header)) == 0;
}

// The content of an entry.
struct EntryCopy {
  uint64_t number;
  int64_t descriptor;
};

// Reads the entry. NOT_FOUND: it does not have the ticket's number, which a torn read of the number would not equal.
Status read_entry(int file, const Ticket& ticket, EntryCopy* copy_out) {
  static_assert(sizeof(EntryCopy) == sizeof(Entry), "the same content");
  const auto at = static_cast<off_t>(offsetof(Table, entries) + ticket.place * sizeof(Entry));
  if (pread(file, copy_out, sizeof(*copy_out), at) != sizeof(*copy_out)) return PINRAIL_ERR_NOT_FOUND;
  return copy_out->number == ticket.number ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// Reads the entry before and after it takes the descriptor. If both have the ticket's number, the descriptor belongs to
// the ticket (descriptors/D1).
Status fetch_by_pidfd(const slots::Process& exporter, const Ticket& ticket, int* descriptor_out) {
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, exporter.pid, 0)));
  if (!process.is_open()) return status_of_pidfd(errno, ESRCH);
  if (!slots::is_alive(exporter.pid, exporter.start)) return PINRAIL_ERR_NOT_FOUND;  // another process has that pid now
  const Descriptor file(take_from(process, ticket.directory));
  if (!file.is_open()) return status_of_pidfd(errno, EBADF);
  if (!is_table(file.get(), exporter, ticket.server)) return PINRAIL_ERR_NOT_FOUND;
  EntryCopy before, after;
  if (!read_entry(file.get(), ticket, &before).ok()) return PINRAIL_ERR_NOT_FOUND;
  Descriptor found(take_from(process, before.descriptor));
  if (!found.is_open()) return status_of_pidfd(errno, EBADF);
  if (!read_entry(file.get(), ticket, &after).ok()) return PINRAIL_ERR_NOT_FOUND;
  // The exporter's program may have closed it and given the number to a file of its own.
  const auto mark = static_cast<int>(before.descriptor >> kMarkShift);
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
