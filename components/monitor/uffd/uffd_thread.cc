// SPDX-License-Identifier: BSD-3-Clause
// Starts and ends the reader thread. Start-up and shut-down context; run() is the thread's function.
#include <sys/mman.h>
#include <unistd.h>

#include "base/sync/own_threads.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

// Touches the stack's pages, so that the reader needs no new memory while other threads wait for it.
void touch_stack() {
  constexpr size_t kTouched = size_t{32} << 10;
  volatile char bytes[kTouched];
  for (size_t i = 0; i < kTouched; i += kPage) bytes[i] = 0;
  static_cast<void>(bytes[0]);
}

// The descriptor was closed by the program, or cannot be read. Ends all watching, so that no thread waits for events.
void give_up(Context* context) {
  context->lost.store(true);
  unwatch_all(*context);
  context->watch.close();
  const pinrail_host_t* host = context->host;
  const own_threads::ComponentWork work(own_threads::Calls::of(host));
  host->help(host, "lost", nullptr, 0);
  host->monitor_blind(host, "uffd: its descriptor was closed, or cannot be read any more");
}

void run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  touch_stack();
  if (!read_events_hook(context)) give_up(context);
}

}  // namespace

bool start_reader(Context* context) { return context->reader.start("pinrail-uffd", run, context); }

// Ends the reader by an event of memory that is unmapped for it. If the memory cannot be watched, the reader ends when
// it looks next: its descriptor may be closed, so nothing else wakes it.
void ring_bell(Context* context) {
  const long page = kernel_hook(SYS_mmap, nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
  const bool is_mapped = page > 0 || page < -4095;
  const auto base = static_cast<uintptr_t>(page);
  if (!is_mapped || !watch_range(*context, {base, base + kPage})) {
    context->stopping.store(true);
  } else {
    context->bell.store(base);
  }
  if (is_mapped) kernel_hook(SYS_munmap, base, kPage);
}

// The reader continues while the mappings are unregistered, so that no thread in munmap() waits for ever.
void stop_reader(Context* context) {
  if (!context->reader.is_started()) return;
  unwatch_all(*context);
  constexpr unsigned kLastOnesMicroseconds = 1000;
  usleep(kLastOnesMicroseconds);  // threads that were in munmap() have queued their events by then. If a child has the
                                  // descriptor as well, closing it here would not wake them
  ring_bell(context);
  context->reader.join();
}

}  // namespace pinrail::uffd
