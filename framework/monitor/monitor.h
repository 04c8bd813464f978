// SPDX-License-Identifier: BSD-3-Clause
// monitor.h - how pools learn that memory goes away: subscriptions, and which monitors work.
//
// Owns     the list of subscriptions.
// Threads  subscribe(), unsubscribe(), works(), kept_at(), covers(), blind() and check() may run at any time, in API
//          context. declare(), start() and stop() run at start-up and shut-down.
// Hook     report_hook(), report_of_hook(), report_file_hook(), note_reported_hook(), forget_verdicts_hook() and
//          whole_pages_hook().
//          Also before init, after finalize, and in a forked child, where the reports do nothing.
//
// monitor/M1  After unsubscribe() has returned, the subscriber is not called any more, and no call is in flight.
//
// An event is delivered to every subscription that was complete before it, was not yet removed, and wants events of
// this kind of memory.
//
// monitor/M3  When a monitor of host memory goes blind, no registration of other memory dies (E5).
#ifndef PINRAIL_FRAMEWORK_MONITOR_MONITOR_H
#define PINRAIL_FRAMEWORK_MONITOR_MONITOR_H

#include <pinrail/component.h>

#include "base/core/own_component.h"
#include "base/core/span.h"
#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"

namespace pinrail::monitor {

using Hook = void (*)(void* arg, uintptr_t base, size_t length);

// The subscribers of ours, and those of other runtimes (E3), which are called after all of ours.
struct Subscriptions;
extern Subscriptions subscriptions, foreign_subscriptions;

// Adds or removes a subscriber. kinds: PINRAIL_KIND_* bits of the memory whose events it wants; 0: all. unsubscribe()
// waits for its calls in flight: the caller must not hold a lock that the hook takes. OUT_OF_RESOURCE: no memory.
Status subscribe(uint32_t kinds, Hook hook, void* arg, void** subscription_out, Subscriptions* list = &subscriptions);
void unsubscribe(void* subscription, Subscriptions* list = &subscriptions);

// Delivers an event. kinds: PINRAIL_KIND_* bits of the memory that goes away; 0: any kind. The range (0, UINTPTR_MAX)
// means all memory. Subscribers of host memory get whole pages.
void report_hook(uint32_t kinds, uintptr_t base, size_t length);
// Delivers an event from the monitor with this host table, for the kinds of memory that it watches.
void report_of_hook(const pinrail_host_t* host, uintptr_t base, size_t length);
// Before the program's report of host memory.
void note_reported_hook(uintptr_t base, size_t length);
// What is mapped there is judged again: it may be something else than it was.
void forget_verdicts_hook(const Span& span);
// Whether host memory near the range was reported, by the program or a monitor, and may be there still.
bool was_reported(uintptr_t base, size_t length);
// Delivers an event for each range of kept memory that shows these bytes of a file.
void report_file_hook(const pinrail_file_part_t& part);
// Rounds a range of host memory out to pages, as the kernel rounds what is unmapped and what loses its pages.
Span whole_pages_hook(const Span& span);

// Re-initialises in a forked child: no subscriptions, no started monitors. Takes no lock.
void fork_reinit();

// Declares the parameters monitor_never, monitor_strict and monitor_trust_allocators; before start().
Status declare(param::Registry* params);

// Whether a component's table (pinrail_monitor_ops_t) has the functions that are not optional.
bool is_complete(const void* ops);

// Starts the opened monitors in the order of priority: those that were named, which must work, and others as long as
// some kind of memory is not kept yet. A monitor that was not named and adds nothing is stopped again. Returns the
// error of a named monitor that does not work.
Status start(const loader::Loader& loader, const param::Registry& params);
// Stops all monitors. Shut-down.
void stop(const loader::Loader& loader);

// Whether memory of some usual kind is kept (E5). why_out: why some or all kinds are not kept; empty if all are. The
// text lives until the next start(). Takes no lock.
bool works(const char** why_out);
// Describes the index-th usual kind of memory, and why it is not kept; "" if it is. False: past the end.
bool kept_at(size_t index, const char** kind_out, const char** why_not_out);
// Why an open monitor is not at work; "" if it is, or if there is none of that name. The text lives until the next
// start().
const char* why_idle(std::string_view name);
// The names of the monitors of host memory that work, separated by commas; lives until the next start().
const char* names_of_started();

// Whether what the monitors report of host memory wherever it happens, madvise() among it, is reported when it is gone,
// too, and not only before; never beside an allocator that makes raw system calls.
bool is_told_afterwards();
// Whether events of all memory are seen, and not only of what pools register.
bool sees_all_memory();
// Whether registrations of the range may be kept (coverage.h); makes monitors watch the range. No lock may be held.
bool covers(uintptr_t base, size_t length);
// The largest part of `most` around the span that is kept, and is writable memory without a file, of this process
// alone. The span if it is other memory itself. No lock may be held.
Span private_around(const Span& span, const Span& most);

// blind(): the monitor with this host table sees other events than before, or none. It is asked which it sees, and
// everything cached of its kinds of memory dies; what is covered is cached again by later misses. why: the reason, for
// works(). check(): asks all started monitors to check themselves; returns the first error. No lock may be
// held.
void blind(const pinrail_host_t* host, const char* why);
Status check();
// Calls check() unless it ran in the last 40 us (on other processors than x86-64: 1 ms). Each miss calls this.
void check_on_miss();

}  // namespace pinrail::monitor

#endif
