// SPDX-License-Identifier: BSD-3-Clause
// serve.h - the server's thread: who may ask, for how long, and what they get.
#ifndef PINRAIL_BASE_DESCRIPTORS_SERVE_H
#define PINRAIL_BASE_DESCRIPTORS_SERVE_H

#include <functional>

#include "base/descriptors/wire.h"

namespace pinrail::descriptors {

constexpr int kMaxPeers = 16;          // that are connected and have not said anything yet
constexpr int64_t kPatienceMs = 1000;  // for each of them

// A descriptor of one's own for what was asked, or -1.
using Find = std::function<int(const Question&)>;

// Answers on the listening socket until `wake` can be read. No signal is delivered to this thread.
void serve(int listener, int wake, const Find& find);

}  // namespace pinrail::descriptors

#endif
