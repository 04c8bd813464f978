// SPDX-License-Identifier: BSD-3-Clause
// serve.h - the loop of the server's thread.
#ifndef PINRAIL_BASE_DESCRIPTORS_SERVE_H
#define PINRAIL_BASE_DESCRIPTORS_SERVE_H

#include <functional>

#include "base/descriptors/wire.h"

namespace pinrail::descriptors {

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
