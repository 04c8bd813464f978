// SPDX-License-Identifier: BSD-3-Clause
// peer.h - another runtime with memory hooks in the same process: Debian's UCX or Open MPI, loaded when asked.
//
// Threads  load_peer() once, while others work. expect() and missed() are each thread's own.
#ifndef PINRAIL_TEST_INTERPOSE_PEER_H
#define PINRAIL_TEST_INTERPOSE_PEER_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace pinrail::interpose {

enum class Peer : uint8_t { none, ucx, openmpi };

// Loads it, installs its hooks and asks it for events. False and the reason.
bool load_peer(Peer peer, std::string* why_out);
// From where munmap() leads to it: it has patched.
uint64_t peer_events();

// Between the two the peer must have told of all of the range, on this thread.
void expect_event(const void* base, size_t length);
bool event_came();

}  // namespace pinrail::interpose

#endif
