// SPDX-License-Identifier: BSD-3-Clause
// wire.h - the protocol of a server of descriptors: the table's file, the socket's name, one question and one answer.
#ifndef PINRAIL_BASE_DESCRIPTORS_WIRE_H
#define PINRAIL_BASE_DESCRIPTORS_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <functional>

#include "base/core/files.h"
#include "base/descriptors/descriptors.h"
#include "base/sync/own_file.h"

namespace pinrail::descriptors {

constexpr uint32_t kQuestion = 0x51444650, kAnswer = 0x41444650, kTable = 0x54444650;
constexpr uint32_t kVersion = 1;

struct Question {
  uint32_t magic = kQuestion, version = kVersion;
  uint64_t number = 0;
  uint32_t place = 0, zero = 0;
};

struct Answer {
  uint32_t magic = kAnswer;
  int32_t status = 0;  // SUCCESS, and the message carries the descriptor; or NOT_FOUND
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
  Directory() = default;
  ~Directory();
  Status create(const slots::Process& self, uint64_t server);

  Table* table = nullptr;
  OwnFile file;
  OwnFile descriptors[Server::kMost];  // of the entries
};

// Writes the socket's address and returns its length.
socklen_t name_socket(const slots::Process& process, uint64_t server, sockaddr_un* address_out);

// The loop of the server's thread (server.cc).

constexpr int kMaxPeers = 16;                 // connected peers that have not asked yet
constexpr int64_t kQuestionTimeoutMs = 1000;  // how long such a peer may stay

// Returns a duplicate of the descriptor that was asked for, which the caller closes, or -1.
using Find = std::function<int(const Question&)>;

// Answers on the listening socket until `stopping` is set and the socket is shut down, or a second has passed. Ends
// also when the program has closed the socket. It works in each round except while it waits: a forked child gets no
// peer's socket and no descriptor that is on its way.
void serve(const OwnFile& listener, const std::atomic<bool>& stopping, const own_threads::Calls& calls,
           const Find& find);

}  // namespace pinrail::descriptors

#endif
