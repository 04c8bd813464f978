// SPDX-License-Identifier: BSD-3-Clause
// The importer's side: fetches a descriptor through the socket, or with pidfd_getfd().
#include <fcntl.h>
#include <poll.h>
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

// The status of a question that was not sent.
pinrail_status_t status_of_sending(int error) {
  if (error == ECONNREFUSED || error == ENOENT) return PINRAIL_ERR_NOT_FOUND;
  const bool is_short = error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM;
  return is_short ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_PERM;
}

// Sends the question with the socket for its answer; again after a pause while the queue of a busy server is full.
Status ask(int socket, const Address& server, const Question& question, int answers, int64_t deadline) {
  const timespec pause{0, 1000000};
  while (!send_message(socket, &server, &question, sizeof(question), answers)) {
    if (errno != EAGAIN) return status_of_sending(errno);
    if (ms_until(deadline) == 0) return PINRAIL_ERR_NOT_AVAILABLE;
    nanosleep(&pause, nullptr);
  }
  return success();
}

// Waits until the socket can be read. NOT_AVAILABLE: the time limit has passed.
Status wait_for_answer(int socket, int64_t deadline) {
  for (;;) {
    const int left = ms_until(deadline);
    pollfd entry{socket, POLLIN, 0};
    const int ready = poll(&entry, 1, left);
    if (ready > 0) return success();
    if (ready < 0 && errno != EINTR) return PINRAIL_ERR_ERROR;
    if (left == 0) return PINRAIL_ERR_NOT_AVAILABLE;
  }
}

// The question was dropped without an answer. NOT_FOUND: the server has ended. NOT_AVAILABLE: it lives, and has no
// descriptor left for the socket.
Status why_dropped(int socket, const Address& server) {
  const int result = connect(socket, reinterpret_cast<const sockaddr*>(&server.name), server.length);
  return result == 0 ? PINRAIL_ERR_NOT_AVAILABLE : status_of_sending(errno);
}

// Asks the exporter's server; waits at most timeout_ms. Errors as fetch().
Status fetch_by_socket(const slots::Process& exporter, const Ticket& ticket, uint32_t timeout_ms, int* descriptor_out) {
  constexpr int kYes = 1;
  const int64_t deadline = now_ms_hook() + timeout_ms;
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int pair[2] = {-1, -1};
  static_cast<void>(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
  const Descriptor answers(pair[0]);
  Descriptor servers(pair[1]);
  if (!socket.is_open() || !answers.is_open()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (setsockopt(answers.get(), SOL_SOCKET, SO_PASSCRED, &kYes, sizeof(kYes)) != 0) return PINRAIL_ERR_ERROR;
  const Address server(exporter, ticket.server);
  Question question;
  question.server = ticket.server;
  question.number = ticket.number;
  question.place = ticket.place;
  Status status = ask(socket.get(), server, question, servers.get(), deadline);
  servers.reset();  // so that the end of the server is seen
  if (status.ok()) status = wait_for_answer(answers.get(), deadline);
  if (!status.ok()) return status;
  uint32_t word = 0;
  Message answer(answers.get(), &word, sizeof(word), MSG_DONTWAIT);
  if (answer.length <= 0) return why_dropped(socket.get(), server);
  const bool is_exporter = answer.is_own_user() && static_cast<uint32_t>(answer.sender.pid) == exporter.pid;
  if (!is_exporter) return PINRAIL_ERR_PERM;  // descriptors/D2
  if (answer.length != sizeof(word) || word != kAnswer) return PINRAIL_ERR_ERROR;
  if (answer.taken.ok()) *descriptor_out = answer.descriptor.release();
  return answer.taken;
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
