// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close, start and stop: start-up context. check: API. Functions with REQUIRES are called
// with Context::mutex held.
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

const char kHelp[] =
#include "components/monitor/uffd/uffd_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "map_share", "50",
     "Per cent of vm.max_map_count: while the process has more mappings than that, no further ones are watched. 0: "
     "none ever. A watched mapping does not merge with its neighbours.",
     PINRAIL_TYPE_UNSIGNED, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 90, nullptr}};

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* context = new (std::nothrow) Context;
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  context->host = host;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Context*>(context); }

// Keeps F1: makes the word that the kernel wipes in a forked child.
Status make_alive_word(Context* context) {
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return PINRAIL_ERR_OUT_OF_RESOURCE;
  context->alive = new (page) std::atomic<uint32_t>(1);
  return madvise(page, kPage, MADV_WIPEONFORK) == 0 ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
}

Status read_params(Context* context) {
  pinrail_param_value_t share{};
  const Status status = context->host->param(context->host, "map_share", &share);
  context->most_mappings = number_in_file("/proc/sys/vm/max_map_count", "", 65530) * share.u / 100;
  context->taken.store(count_mappings());
  context->refused.store(0);
  context->lost.store(false);
  context->bell.store(0);
  context->stopping.store(false);
  return status;
}

// NOT_SUPPORTED: the library is of another version.
Status ask_gate(Context* context) {
  const pinrail_host_t* const host = context->host;
  const void* const found =
      host->extension == nullptr ? nullptr : host->extension(host, gate_report::kName, gate_report::kVersion);
  if (found == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  context->gate = static_cast<const pinrail_gate_report_t*>(found);
  context->gate->ask_first(is_quiet, context);
  return success();
}

// Starts the reader and tests that events arrive. After an error the caller calls stop_locked().
Status start_locked(Context* context) REQUIRES(context->mutex) {
  Status status = read_params(context);
  if (status.ok()) status = make_alive_word(context);
  if (status.ok()) status = open_watch(context);
  if (status.ok() && !start_reader(context)) {
    show(context->host, "no thread");
    status = PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  if (status.ok()) status = try_events_locked(context);
  if (status.ok()) status = ask_gate(context);
  return status;
}

// In a forked child there is no reader, nothing is watched, and the descriptor is closed. Memory that is freed here
// while the reader runs may be watched; the reader then reads that event as well.
void stop_locked(Context* context) REQUIRES(context->mutex) {
  if (context->gate != nullptr) context->gate->ask_first(nullptr, nullptr);
  context->gate = nullptr;
  if (is_same_process(*context)) stop_reader(context);
  context->reader.forget();
  context->watch.close();
  if (context->alive != nullptr) munmap(context->alive, kPage);
  context->alive = nullptr;
}

pinrail_status_t start(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  const Status status = start_locked(context);
  if (!status.ok()) stop_locked(context);
  return status.code();
}

void stop(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  stop_locked(context);
}

// Misses call it, so it causes no event. The reader itself notices when it cannot read any more.
pinrail_status_t check(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  Guard guard(context->mutex);
  if (!context->lost.load() && context->watch.is_open()) return PINRAIL_SUCCESS;
  context->lost.store(true);
  context->host->monitor_blind(context->host, "uffd: its descriptor was closed");
  return PINRAIL_ERR_ERROR;
}

uint32_t cover_entry(void* context, const pinrail_mapping_t* mapping) {
  return cover(static_cast<Context*>(context), *mapping);
}

constexpr pinrail_monitor_ops_t kOps = {sizeof(pinrail_monitor_ops_t), start, stop, check, nullptr, cover_entry, 0,
                                        PINRAIL_MONITOR_ANY_CALLER};

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MONITOR_ABI, 40, "monitor", "uffd",
                         "Has the kernel report what happens to mappings (userfaultfd): also raw system calls.", open,
                         close, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::uffd

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::uffd::kComponent;

namespace pinrail::uffd {

// Keeps E5 with real events. It makes the system calls itself: a report by a patched function would not show that the
// kernel reports. Start-up context; the caller holds Context::mutex.

namespace {

constexpr size_t kLength = 2 * kPage;

uintptr_t map_scratch() {
  const long got =
      system_call_hook(SYS_mmap, nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return patch::is_error_hook(got) ? 0 : static_cast<uintptr_t>(got);
}

void unmap(uintptr_t base) { system_call_hook(SYS_munmap, base, kLength); }

void drop(uintptr_t base) {
  system_call_hook(SYS_madvise, base, kLength, MADV_DONTNEED);
  unmap(base);
}

void move(uintptr_t base) {
  const uintptr_t onto = map_scratch();
  if (onto != 0) system_call_hook(SYS_mremap, base, kLength, kLength, MREMAP_MAYMOVE | MREMAP_FIXED, onto);
  unmap(onto != 0 ? onto : base);
}

// The kernel lets the caller continue before the reader has reported the event, so the report may come later.
bool wait_until_seen(const Context& context) {
  constexpr int kNaps = 2000;
  constexpr unsigned kNapMicroseconds = 1000;
  for (int i = 0; i < kNaps && !context.probe_seen.load() && !context.lost.load(); ++i) {
    if (i != 0) usleep(kNapMicroseconds);
  }
  return context.probe_seen.load();
}

// Watches scratch memory and acts on it. False if it cannot be watched or its event does not arrive.
bool fire(Context* context, void (*act)(uintptr_t base)) {
  const uintptr_t base = map_scratch();
  if (base == 0) return false;
  if (!watch_range(*context, {base, base + kLength})) {
    unmap(base);
    return false;
  }
  context->probe_seen.store(false);
  context->probe_base.store(base);
  context->probe_end.store(base + kLength);
  act(base);
  const bool seen = wait_until_seen(*context);
  context->probe_end.store(0);
  return seen;
}

}  // namespace

// NOT_AVAILABLE: an event of some kind does not arrive.
Status try_events_locked(Context* context) {
  const pinrail_host_t* host = context->host;
  void* subscription;
  const Status subscribed = host->monitor_subscribe(host, PINRAIL_KIND_HOST, probe_hook, context, &subscription);
  if (!subscribed.ok()) return subscribed;
  const bool seen = fire(context, unmap) && fire(context, drop) && fire(context, move);
  host->monitor_unsubscribe(host, subscription);
  if (!seen) host->log(host, PINRAIL_LOG_INFO, "the kernel's events do not arrive");
  return seen ? success() : Status(PINRAIL_ERR_NOT_AVAILABLE);
}

}  // namespace pinrail::uffd
