// SPDX-License-Identifier: BSD-3-Clause
// Messages: what pools record, and what is said of it; and refused calls.
// API context; takes no lock of a pool. record_hook() may run in a hook.
#include "framework/api/api.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/core/kernel.h"
#include "base/registration/registration.h"
#include "base/report/report.h"
#include "base/sync/deferred_hook.h"
#include "framework/monitor/monitor.h"

namespace pinrail::api {
namespace {

constexpr char kHelp[] =
#include "framework/api/api_help.txt"
    ;

const char* reason_name(const pinrail_mpool_event_t& event) {
  if (event.kind == PINRAIL_EVENT_MISS) return pinrail_miss_reason_text(event.reason);
  return event.reason == PINRAIL_REASON_EVICTED       ? "evicted"
         : event.reason == PINRAIL_REASON_INVALIDATED ? "its memory went away"
                                                      : "not used any more";
}

// The verbosity from which on an event is said.
int level_of(const pinrail_mpool_event_t& event) {
  if (event.kind == PINRAIL_EVENT_REFUSED) return PINRAIL_LOG_INFO;
  if (event.kind == PINRAIL_EVENT_MISS) return event.status != PINRAIL_SUCCESS ? int{PINRAIL_LOG_INFO} : kLogMisses;
  return kLogAll;
}

std::string line_of(const pinrail_mpool_event_t& event) {
  char line[256];
  const auto* const status = status_name(static_cast<pinrail_status_t>(event.status));
  switch (event.kind) {
    case PINRAIL_EVENT_MISS:
      std::snprintf(line, sizeof(line), "miss [%#" PRIxPTR ", +%zu): %s; %s", event.base, event.length,
                    reason_name(event), status);
      break;
    case PINRAIL_EVENT_MEMORY:
      std::snprintf(line, sizeof(line),
                    "memory [%#" PRIxPTR ", +%zu) went away, seen by %s: %" PRIu32 " registration(s) ended", event.base,
                    event.length, event.call[0] != 0 ? event.call : "a handler", event.count);
      break;
    case PINRAIL_EVENT_REFUSED:
      std::snprintf(line, sizeof(line), "the registrar refused [%#" PRIxPTR ", +%zu): %s, errno %d", event.base,
                    event.length, status, static_cast<int>(event.error));
      break;
    default:
      std::snprintf(line, sizeof(line), "released [%#" PRIxPTR ", +%zu): %s", event.base, event.length,
                    reason_name(event));
      break;
  }
  return line;
}

// The newest event of the kind, among the last few.
bool find_last(const mpool::Recorder& recorder, uint32_t kind, pinrail_mpool_event_t* event_out) {
  constexpr uint64_t kLooks = 16;
  uint64_t number = recorder.has_events() ? recorder.recorded_hook() : 0;
  for (uint64_t looks = 0; number != 0 && looks < kLooks; ++looks) {
    if (recorder.read(--number, event_out) && event_out->kind == kind) return true;
  }
  return false;
}

// Whether this second has had no such message yet. relaxed: at worst two threads say the same.
bool is_new_second(std::atomic<int64_t>* last) {
  const int64_t second = now_ms_hook() / 1000 + 1;
  return last->exchange(second, std::memory_order_relaxed) != second;
}

std::string memlock() {
  const uint64_t limit = mpool::memlock_limit();
  return limit == UINT64_MAX ? "ulimit -l bounds nothing" : "ulimit -l is " + std::to_string(limit / 1024) + " KiB";
}

// What the device has said, and what it and the process may pin.
std::string refusal_text(const pinrail_mpool_t* pool) {
  std::string text = "registrar " + pool->registrar->name + " is full";
  pinrail_mpool_event_t refusal;
  if (find_last(pool->recorder, PINRAIL_EVENT_REFUSED, &refusal) && refusal.error != 0) {
    text += std::string(" (errno ") + ErrnoText(refusal.error).c_str() + ")";
  }
  return text + "; " + memlock();
}

// Why a request found no room, and what to do.
struct Lack {
  std::string why;
  const char* advice;
};

Lack limits_of(const pinrail_mpool_stats_t& stats, size_t length) {
  std::string text;
  const auto add = [&](const char* name, uint64_t value) {
    if (value != UINT64_MAX) text += (text.empty() ? "" : ", ") + std::string(name) + " is " + std::to_string(value);
  };
  const uint64_t size_limit = stats.evicts_idle_only != 0 ? UINT64_MAX : stats.size_limit;  // that one refuses nothing
  add("size_limit", size_limit);
  add("count_limit", stats.count_limit);
  if (text.empty()) return {"this process has no memory left to note it in", "free memory, or raise its limits"};
  if (length > size_limit) {
    return {"the request alone exceeds a limit of the pool: " + text,
            "raise that limit, or register the buffer in pieces"};
  }
  return {"a limit of the pool is full: " + text, "deregister earlier, or raise that limit"};
}

Lack lack_of(const pinrail_mpool_t* pool, const pinrail_mpool_stats_t& stats, size_t length, uint32_t reason) {
  if (reason == PINRAIL_MISS_REFUSED) {
    const bool is_bounded = mpool::memlock_limit() != UINT64_MAX;
    return {refusal_text(pool), is_bounded ? "deregister earlier, raise \"ulimit -l\", or what the device permits"
                                           : "deregister earlier, or raise what the device permits"};
  }
  if (reason == PINRAIL_MISS_RACED) {
    return {"each time its memory was unmapped or replaced while the registrar ran",
            "do not unmap memory that another thread registers"};
  }
  return limits_of(stats, length);
}

uint64_t seconds_since(const mpool::Recorder& recorder, uint64_t time_ns) {
  const uint64_t now = recorder.now_hook();
  return now > time_ns ? (now - time_ns) / 1000000000 : 0;
}

// What the pool recorded of a range, the last few events: "3 s ago: miss [...]; ...".
std::string life_of(const mpool::Recorder& recorder, const Span& range) {
  constexpr size_t kMost = 6;
  if (!recorder.has_events()) return "not recorded, as mpool_base_events is 0";
  std::string text;
  size_t count = 0;
  for (uint64_t number = recorder.recorded_hook(); number > recorder.oldest() && count < kMost;) {
    pinrail_mpool_event_t event;
    if (!recorder.read(--number, &event) || !Span::of(event.base, event.length).overlaps(range)) continue;
    const std::string ago = std::to_string(seconds_since(recorder, event.time_ns)) + " s ago: ";
    text = ago + line_of(event) + (text.empty() ? "" : "; ") + text;
    ++count;
  }
  return text.empty() ? "older than the events that the pool keeps (mpool_base_events)" : text;
}

void report_stale(const pinrail_mpool_t* pool, const Span& range, const std::string& difference) {
  if (!is_new_second(&pool->check->said_in)) return;
  char name[64];
  std::snprintf(name, sizeof(name), "[%#" PRIxPTR ", +%zu)", range.base, range.length());
  report::help_again(pool->name, kHelp, "stale hit",
                     {{"range", name},
                      {"difference", difference.c_str()},
                      {"life", life_of(pool->recorder, range).c_str()},
                      {"monitors", monitor::names_of_started()}});
}

}  // namespace

bool drop_stale(pinrail_mpool_t* pool, pinrail_thread_t* thread, const void* addr, size_t length,
                pinrail_handle_t handle) {
  if (pool->check == nullptr || thread->in_registrar != 0) return false;
  state::unquicken(handle.reg);  // a table of starts may lead to it that an earlier pool has filled
  std::string difference;
  (void)guarded([&] { difference = pool->check->difference(thread, handle, Span::of(addr, length)); });
  if (difference.empty()) return false;
  const Span range = span_of(handle.reg);
  if (is_indexed(handle.reg)) {  // otherwise an event has come meanwhile
    (void)guarded([&] { report_stale(pool, range, difference); });
    const deferred::CauseScope cause("check");  // as an event that no monitor has seen
    monitor::forget_verdicts_hook(range);
    pool->ops->invalidate_range_hook(pool->module, range.base, range.length());
  }
  Status(pool->ops->deregister(pool->module, thread, handle)).ignore();
  return true;
}

void record_hook(pinrail_mpool_t* pool, const pinrail_mpool_event_t* event) {
  pool->recorder.record_hook(*event, event->kind == PINRAIL_EVENT_MEMORY ? deferred::state.cause : nullptr);
}

// Without memory the rest is left out.
void say_events(pinrail_mpool_t* pool) {
  const int verbosity = static_cast<int>(pool->verbosity->load(std::memory_order_relaxed));
  const uint64_t end = pool->recorder.recorded_hook();
  uint64_t number = std::max(pool->said_events.exchange(end), pool->recorder.oldest());
  (void)guarded([&] {
    for (; number < end; ++number) {
      pinrail_mpool_event_t event;
      if (!pool->recorder.read(number, &event)) continue;
      report::log(pool->name, verbosity, std::max(level_of(event), int{PINRAIL_LOG_INFO}), line_of(event));
    }
  });
}

static std::atomic<int64_t> last_of[2];  // seconds in which it was reported; not in the function: that has a guard

void report_no_room(pinrail_mpool_t* pool, Span range, pinrail_status_t status) {
  if (!pool->recorder.has_events() || !is_new_second(&last_of[status == PINRAIL_ERR_OUT_OF_RESOURCE ? 1 : 0])) return;
  (void)guarded([&] {
    auto stats = sized<pinrail_mpool_stats_t>();
    if (pool->ops->stats(pool->module, &stats) != PINRAIL_SUCCESS) return;
    pinrail_mpool_event_t miss;
    const bool is_known = find_last(pool->recorder, PINRAIL_EVENT_MISS, &miss);
    round_out(&range, pool->page_mask + 1);  // as limits count it
    const Lack lack = lack_of(pool, stats, range.length(), is_known ? miss.reason : uint32_t{PINRAIL_MISS_FULL});
    report::help_again(pool->name, kHelp, "no room",
                       {{"pool", pool->name.c_str()},
                        {"bytes", std::to_string(range.length()).c_str()},
                        {"why", lack.why.c_str()},
                        {"held", std::to_string(pool->ops->referenced(pool->module)).c_str()},
                        {"registered", std::to_string(stats.registered_bytes).c_str()},
                        {"status", status_name(status)},
                        {"advice", lack.advice}});
  });
}

void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  report::help("base", kHelp, topic, args.begin(), args.size());
}

// Without memory the message is dropped. A call that was renamed by a prefix has the name that the documents know.
pinrail_status_t refuse(const char* call, const char* why) {
  handle_fork();  // the parent's threads may hold the lock of messages
  const char* const name = std::strstr(call, "pinrail_");
  (void)guarded([=] { help("call refused", {{"call", name != nullptr ? name : call}, {"why", why}}); });
  return PINRAIL_ERR_BAD_PARAM;
}

void report_limit(uint64_t bytes, uint64_t done, const char* limit) {
  help("prepin limit", {{"bytes", NumberText(bytes).c_str()}, {"done", NumberText(done).c_str()}, {"limit", limit}});
}

}  // namespace pinrail::api

using namespace pinrail;

pinrail_status_t pinrail_mpool_events(pinrail_mpool_t* pool, pinrail_mpool_event_t* events_out, size_t room,
                                      uint64_t* next, size_t* count_out) {
  if (pool == nullptr || events_out == nullptr || next == nullptr || count_out == nullptr) {
    return api::refuse(__func__, "a pointer is NULL");
  }
  if (room == 0 || events_out->size != sizeof(*events_out)) {
    return api::refuse(__func__, "events_out->size is not sizeof(pinrail_mpool_event_t), or room is 0");
  }
  const mpool::Recorder& recorder = pool->recorder;
  if (!recorder.has_events()) return PINRAIL_ERR_NOT_AVAILABLE;
  const uint64_t end = recorder.recorded_hook();
  uint64_t number = std::max(*next, recorder.oldest());
  size_t count = 0;
  for (; number < end && count < room; ++number) {
    if (recorder.read(number, &events_out[count])) ++count;
  }
  *next = number;
  *count_out = count;
  return PINRAIL_SUCCESS;
}
