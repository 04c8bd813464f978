// SPDX-License-Identifier: BSD-3-Clause
// record.h - the process's calls on its pools, and memory events, as a trace that pinrail_perf and pinrail_advise read
// (parameter mpool_base_record).
//
// Owns     an area of address space that is filled in order, and the file that is written from it when the process
//          exits or Pinrail is finalized for the last time.
// Threads  took(), dropping(), evicted() may run together. start(), stop() and fork_reinit() exclude all
//          else.
// Fork     a child records nothing until it calls pinrail_init(); it then has a file of its own.
//
// A reference is recorded after it was taken and before it is dropped, so that between two records of one id the
// registration exists. While calls are recorded, no registration is quick, and no request is remembered: the library
// answers no hit, and drops no reference, without passing here. What does not fit into the area is counted in the
// file's header.
#ifndef PINRAIL_FRAMEWORK_API_RECORD_H
#define PINRAIL_FRAMEWORK_API_RECORD_H

#include <pinrail/pinrail.h>

#include <atomic>

#include "base/core/status.h"
#include "base/param/param.h"

namespace pinrail::record {

struct Area;
extern std::atomic<Area*> recording;  // NULL: nothing is recorded

// relaxed: a thread that sees it later begins to record later.
inline bool is_on() { return recording.load(std::memory_order_relaxed) != nullptr; }

Status declare(param::Registry* params);
// After the monitors have started. A file that cannot be written is reported, and nothing is recorded.
void start(const param::Registry& params);
void stop();
void fork_reinit();

// A register ('R') or find ('F') has returned the handle; NULL: it has failed. Nothing if no recording is on.
void took(char op, const void* addr, size_t length, uint64_t access_and_flags, const pinrail_handle_t* handle);
void dropping(pinrail_handle_t handle);
void evicted(pinrail_status_t status);

}  // namespace pinrail::record

#endif
