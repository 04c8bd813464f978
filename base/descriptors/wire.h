// SPDX-License-Identifier: BSD-3-Clause
// wire.h - the protocol of a server of descriptors: the table's file, the socket's name, the question and the answer.
#ifndef PINRAIL_BASE_DESCRIPTORS_WIRE_H
#define PINRAIL_BASE_DESCRIPTORS_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "base/core/files.h"
#include "base/descriptors/descriptors.h"

namespace pinrail::descriptors {

constexpr uint32_t kQuestion = 0x51444650, kTable = 0x54444650;
constexpr uint32_t kVersion = 1;
constexpr uint32_t kAnswer = 0x41444650;  // all of an answer; the descriptor comes with it, or there is none

// With it comes a socket for the answer. The name of a peer's socket would not do: when the peer has closed it, a
// process of another user may take the name, and would get the descriptor.
struct Question {
  uint32_t magic = kQuestion, version = kVersion;
  uint64_t server = 0;
  uint64_t number = 0;
  uint32_t place = 0, zero = 0;
};

// The file contains this header and then kMost entries.
struct Header {
  uint32_t magic = kTable, version = kVersion;
  uint64_t pid = 0, start = 0, server = 0;
};

struct Entry {
  std::atomic<uint64_t> number;     // 0: free. It is set to 0 before the descriptor is closed
  std::atomic<int64_t> descriptor;  // its number, and above that its mark (base/sync/own_file.h), or 0
};

constexpr int kMarkShift = 32;
inline int64_t descriptor_word(int number, int mark) { return int64_t{mark} << kMarkShift | number; }

struct Table {
  Header header;
  Entry entries[Server::kMost];
};

// The server's own mapping of the table.
struct Directory {
  ~Directory();
  Status create(const slots::Process& self, uint64_t server);

  Table* table = nullptr;
  OwnFile file;
  OwnFile descriptors[Server::kMost];  // of the entries
};

// The address of a socket for datagrams. These lowest bits of the server's number are not in it: they are too many for
// a stranger who guesses (descriptors/D3). The others are too many for one who takes all names ahead.
constexpr unsigned kHiddenBits = 40;
struct Address {
  Address(const slots::Process& process, uint64_t server);

  sockaddr_un name{};
  socklen_t length = 0;
};

// Sends a message with the credentials of this process and, unless it is -1, the descriptor. Never waits. to: NULL:
// the socket is connected. False, and errno: it was not sent.
bool send_message(int socket, const Address* to, const void* bytes, size_t length, int descriptor);

// A message as it was received.
struct Message {
  // Waits as the socket and the flags say.
  Message(int socket, void* bytes, size_t room, int flags);

  bool is_own_user() const { return sender.uid == geteuid(); }

  ssize_t length = -1;  // its length as it was sent, which may be more than there was room; -1: there is none
  ucred sender{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};  // so if the kernel does not tell
  Descriptor descriptor;                                            // the one that came with it
  // NOT_FOUND: no descriptor came. ERROR: more than one came, and all are closed. OUT_OF_RESOURCE: one was sent, and
  // this process has none left.
  Status taken = PINRAIL_ERR_NOT_FOUND;
};

}  // namespace pinrail::descriptors

#endif
