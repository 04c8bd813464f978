// SPDX-License-Identifier: BSD-3-Clause
// monitor.h - how pools learn that memory goes away: subscriptions, and which monitors work.
//
// Owns     the list of subscriptions.
// Threads  subscribe(), unsubscribe(), works(), kept_at(), covers(), blind(), check(): any time. declare(), start(),
// stop(): at
//          start-up and shut-down.
// Hook     report_hook(), report_of_hook(): also before init, after finalize, and in a forked child: there it goes
// nowhere.
//
// monitor/M1  After unsubscribe() has returned, the subscriber is not called any more, and no call is in flight.
// monitor/M2  An event is delivered to every subscription that was complete before it and not yet taken back, and that
//     wants events of this kind of memory.
// monitor/M3  What a monitor of host memory cannot see any more ends nothing that is no host memory (E5).
#ifndef PINRAIL_FRAMEWORK_MONITOR_MONITOR_H
#define PINRAIL_FRAMEWORK_MONITOR_MONITOR_H

#include <pinrail/component.h>

#include <string>

#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"

namespace pinrail::monitor {

using Hook = void (*)(void* arg, uintptr_t base, size_t length);

// kinds: PINRAIL_KIND_* bits of the memory whose events are wanted; 0: all.
Status subscribe(uint32_t kinds, Hook hook, void* arg, void** subscription_out);
void unsubscribe(void* subscription);

// Another runtime's (E3): called after all of ours. unsubscribe_foreign() waits for its calls in flight, too.
Status subscribe_foreign(Hook hook, void* arg, void** subscription_out);
void unsubscribe_foreign(void* subscription);

// kinds: of the memory that goes away; 0: it may be of any kind. "Everything" is (0, UINTPTR_MAX).
void report_hook(uint32_t kinds, uintptr_t base, size_t length);
// By the monitor with this host table, of the memory that it watches.
void report_of_hook(const pinrail_host_t* host, uintptr_t base, size_t length);

// In a forked child: nobody subscribed, nothing was started, whoever was in the middle of it.
void fork_reinit();
void leave_parents_monitors();  // its part in selection.cc

// The parameters monitor_never, monitor_strict and monitor_trust_allocators; before start().
Status declare(param::Registry* params);

// Starts the opened monitors, best first: those that were named, which must work, and others as long as some kind of
// memory is not kept yet. What was not named and adds nothing is stopped again.
Status start(const loader::Loader& loader, const param::Registry& params);
void stop(const loader::Loader& loader);

// Whether memory of some usual kind is kept (E5). why_out: what keeps the rest, or all of it, from being kept; empty if
// nothing does. The text lives until the next start().
bool works(const char** why_out);
// The index-th kind of memory that programs register, and why it is not kept; "": it is. False: past the end.
bool kept_at(size_t index, const char** kind_out, const char** why_not_out);
// Monitors of host memory that see something, with commas between them.
const char* names_of_started();

// Whether registrations of the range may be kept (coverage.h); makes monitors watch it. No lock may be held.
bool covers(uintptr_t base, size_t length);

// One that was started sees less than before, or nothing any more: it is asked which events are left; the reason of
// the last one that sees nothing is kept. Everything cached dies: what is not covered now must, and the rest is soon
// there again. host: the monitor's own. check() asks all that were started to look.
void blind(const pinrail_host_t* host, const char* why);
Status check();
// The same for each miss: looks if nobody did so in the last 40 us (elsewhere than on x86-64: 1 ms).
void check_on_miss();

}  // namespace pinrail::monitor

#endif
