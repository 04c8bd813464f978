// SPDX-License-Identifier: BSD-3-Clause
// The exporter's side: the table, the server's start and end, its answers; and the datagrams of both sides.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>

#include "base/core/calling_thread.h"
#include "base/descriptors/wire.h"

namespace pinrail::descriptors {
namespace {

// Returns an odd number, so never 0.
bool random_number(uint64_t* number_out) {
  if (getrandom(number_out, sizeof(*number_out), 0) != sizeof(*number_out)) return false;
  *number_out |= 1;
  return true;
}

// Adds a control message behind those that the message has already.
template <typename T>
void add_control(msghdr* message, int type, const T& value) {
  auto* const header = reinterpret_cast<cmsghdr*>(static_cast<char*>(message->msg_control) + message->msg_controllen);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(sizeof(value));
  std::memcpy(CMSG_DATA(header), &value, sizeof(value));
  message->msg_controllen += CMSG_SPACE(sizeof(value));
}

// What does not have the server's number never reaches the socket (descriptors/D3): the kernel asks this program in the
// sender's call, and frees there what came with it.
bool refuse_strangers(int socket, uint64_t server) {
  uint32_t words[2];
  std::memcpy(words, &server, sizeof(words));
  constexpr uint32_t kFirst = offsetof(Question, server), kSecond = kFirst + sizeof(words[0]);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFirst),  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htonl(words[0]), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSecond), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htonl(words[1]), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),       BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

}  // namespace

Address::Address(const slots::Process& process, uint64_t server) {
  name.sun_family = AF_UNIX;
  char* const text = name.sun_path + 1;  // an abstract name begins with 0 and ends with its socket
  const int written = std::snprintf(text, sizeof(name.sun_path) - 1, "pinrail-fds.%u.%u.%llx.%llx", process.user,
                                    process.pid, static_cast<unsigned long long>(process.start),
                                    static_cast<unsigned long long>(server >> kHiddenBits));
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
}

// The kernel checks the credentials. It would add the real user by itself, which may be another one than the effective.
bool send_message(int socket, const Address* to, const void* bytes, size_t length, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))] = {};
  iovec content{const_cast<void*>(bytes), length};  // NOLINT(cppcoreguidelines-pro-type-const-cast): it is only read
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  if (to != nullptr) {
    message.msg_name = const_cast<sockaddr_un*>(&to->name);  // NOLINT(cppcoreguidelines-pro-type-const-cast): as above
    message.msg_namelen = to->length;
  }
  add_control(&message, SCM_CREDENTIALS, ucred{getpid(), geteuid(), getegid()});
  if (descriptor >= 0) add_control(&message, SCM_RIGHTS, descriptor);
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

// The kernel closes descriptors for which there is no room.
Message::Message(int socket, void* bytes, size_t room, int flags) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(4 * sizeof(int))];
  iovec content{bytes, room};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  length = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  if (length < 0) return;
  size_t came = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS) std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
    if (header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int), ++came) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + at, sizeof(number));
      descriptor.reset(number);
    }
  }
  const bool is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if (came == 0 && is_cut) taken = PINRAIL_ERR_OUT_OF_RESOURCE;
  if (came != 0) taken = came == 1 && !is_cut ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
  if (!taken.ok()) descriptor.reset();
}

// The file is sealed, so that its length cannot change while another process reads or maps it.
Status Directory::create(const slots::Process& self, uint64_t server) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto make = [] { return memfd_create("pinrail-descriptors", MFD_CLOEXEC | MFD_ALLOW_SEALING); };
  const bool is_made = may_make_file(sizeof(Table)) && file.open(FileKind::has_inode, make) &&
                       allocate_in_file(file.number(), 0, sizeof(Table)) &&
                       fcntl(file.number(), F_ADD_SEALS, kSeals) == 0;
  void* at = MAP_FAILED;
  if (is_made) at = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (at == MAP_FAILED) return PINRAIL_ERR_OUT_OF_RESOURCE;
  table = static_cast<Table*>(at);  // a new file contains zeros, which are free entries
  table->header = Header{kTable, kVersion, self.pid, self.start, server};
  return success();
}

Directory::~Directory() {
  if (table != nullptr) munmap(table, sizeof(Table));
}

Server::Server() = default;

// Owns the descriptor in any case.
Status Server::put(const slots::Process& self, int descriptor, FileKind kind, uint64_t forks_before,
                   Ticket* ticket_out) {
  const NoCancel no_cancel;
  if (descriptor < 0) return PINRAIL_ERR_BAD_PARAM;
  Descriptor owned(above_standard(descriptor));
  if (!owned.is_open()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  fcntl(owned.get(), F_SETFD, FD_CLOEXEC);  // a program that is executed would keep what it is of
  uint64_t number = 0;
  const Status started = start(self);
  if (!started.ok()) return started;
  Guard guard(mutex_);
  if (directory_ == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;  // lost since, and another thread cannot start it anew
  Table* table = directory_->table;
  uint32_t place = lowest_;
  while (place < kMost && table->entries[place].number.load() != 0) ++place;
  if (place == kMost || !random_number(&number)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!directory_->descriptors[place].take(owned.get(), kind, forks_before)) {
    return errno == EAGAIN ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_OUT_OF_RESOURCE;
  }
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

// Takes both locks. Makes the table, the socket and the thread unless they are there; after an error nothing of them is
// left. Ends a server whose descriptors the program has closed first, without the table's lock, which its thread takes.
Status Server::start(const slots::Process& self) {
  Guard starting(starting_);
  if (thread_.is_started()) {
    if (is_whole()) return success();
    end_thread();
    ++losses_;
  }
  Guard guard(mutex_);
  close_all_locked();
  uint64_t random = 0;
  directory_.reset(new (std::nothrow) Directory);
  Status status = directory_ != nullptr && random_number(&random) ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
  if (status.ok()) status = directory_->create(self, random);
  if (status.ok()) status = open_socket(self, random);
  if (status.ok() && !thread_.start("pinrail-fds", run, this)) status = PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!status.ok()) close_all_locked();
  return status;
}

// Whether the program has left the server's own descriptors open.
bool Server::is_whole() {
  Guard guard(mutex_);
  return listener_.is_open() && directory_->file.is_open();
}

// OUT_OF_RESOURCE after any error; close_all_locked() then closes what was opened. The thread looks once a second
// whether the socket is still its own: the kernel does not tell that the program has closed it.
Status Server::open_socket(const slots::Process& self, uint64_t server) {
  const Address address(self, server);
  constexpr timeval kLook = {1, 0};
  constexpr int kYes = 1;
  const auto make = [] { return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); };
  const bool open = listener_.open(FileKind::has_inode, make) &&
                    setsockopt(listener_.number(), SOL_SOCKET, SO_PASSCRED, &kYes, sizeof(kYes)) == 0 &&
                    setsockopt(listener_.number(), SOL_SOCKET, SO_RCVTIMEO, &kLook, sizeof(kLook)) == 0 &&
                    refuse_strangers(listener_.number(), server) &&
                    bind(listener_.number(), reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0;
  return open ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
}

// The thread allocates nothing, and has a descriptor only while it answers: a socket of the peer's, which keeps nothing
// alive in a child that is forked meanwhile.
void Server::run(void* server_pointer) {
  auto* const server = static_cast<Server*>(server_pointer);
  while (!server->stopping_.load() && server->listener_.is_open()) server->answer_next();
}

// Waits for a question, at most a second, and answers it, unless it is another user's.
void Server::answer_next() {
  Question question, right;
  const Message asked(listener_.number(), &question, sizeof(question), 0);
  const bool is_well_formed =
      asked.length == sizeof(question) && question.magic == right.magic && question.version == right.version;
  if (!is_well_formed || !asked.is_own_user() || !asked.taken.ok()) return;
  // With the lock, so that the descriptor is still in the table when it is sent (descriptors/D1). A peer that does not
  // read its answers gets none, so no put() waits for it.
  Guard guard(mutex_);
  send_message(asked.descriptor.get(), nullptr, &kAnswer, sizeof(kAnswer), find_locked(question));
}

// The number of the descriptor that was asked for, or -1.
int Server::find_locked(const Question& question) const {
  if (question.number == 0 || question.place >= kMost) return -1;
  if (directory_->table->entries[question.place].number.load() != question.number) return -1;
  return directory_->descriptors[question.place].number();
}

// Closes all descriptors in the table, the table and the socket.
void Server::close_all_locked() {
  if (directory_ != nullptr && directory_->table != nullptr) {
    for (uint32_t place = 0; place < kMost; ++place) {
      const bool is_taken = directory_->table->entries[place].number.exchange(0) != 0;
      if (is_taken) directory_->descriptors[place].close();
    }
  }
  directory_.reset();
  listener_.close();
  lowest_ = 0;
}

// Wakes the thread by its socket and waits for its end. Without the socket, which the program may have closed, the
// thread ends within a second. The thread takes the table's lock, so the caller does not hold it.
void Server::end_thread() {
  stopping_.store(true);
  shutdown(listener_.number(), SHUT_RDWR);
  thread_.join();
  stopping_.store(false);
}

// No other call runs any more. Takes no lock, which in a forked child another thread of the parent may have held.
Server::~Server() {
  const NoCancel no_cancel;
  end_thread();
  close_all_locked();
}

// Takes no lock, as the destructor.
void Server::disown() NO_THREAD_SAFETY_ANALYSIS {
  thread_.forget();
  directory_.reset();
}

}  // namespace pinrail::descriptors
