// SPDX-License-Identifier: BSD-3-Clause
// The reader's beginning and end, where it is no hook yet or no more.
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

// So that it needs none of the system's memory while others wait for it.
void touch_stack() {
  constexpr size_t kTouched = size_t{32} << 10;
  volatile char bytes[kTouched];
  for (size_t i = 0; i < kTouched; i += kPage) bytes[i] = 0;
  static_cast<void>(bytes[0]);
}

// The descriptor was closed under us, or the system refuses to read it: nobody may wait for events any more.
void give_up(Context* context) {
  context->lost.store(true);
  unwatch_all(*context);
  const bool is_open = is_watch_open(*context);  // else the number is nobody's, or somebody else's
  if (closed_in_child::forget(context->note) && is_open) close(context->watch);
  context->watch = -1;
  const pinrail_host_t* host = context->host;
  host->help(host, "lost", nullptr, 0);
  host->monitor_blind(host, "uffd: its descriptor was closed, or cannot be read any more");
}

void* run(void* context_pointer) {
  auto* context = static_cast<Context*>(context_pointer);
  prctl(PR_SET_NAME, "pinrail-uffd");
  touch_stack();
  if (!read_events_hook(context)) give_up(context);
  return nullptr;
}

}  // namespace

// The program's signals are not for this thread: a handler may allocate.
bool start_reader(Context* context) {
  context->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (context->bell < 0) return false;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  context->has_reader = pthread_create(&context->reader, nullptr, run, context) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return context->has_reader;
}

// The reader reads while mappings are taken from its watch, so that nobody who is in munmap() meanwhile waits for ever.
void stop_reader(Context* context) {
  if (!context->has_reader) return;
  context->has_reader = false;
  unwatch_all(*context);
  constexpr unsigned kLastOnesMicroseconds = 1000;
  usleep(kLastOnesMicroseconds);  // who was in munmap() before has queued its event by then, if a child holds the
                                  // descriptor too; else closing it wakes them
  eventfd_write(context->bell, 1);
  pthread_join(context->reader, nullptr);
}

}  // namespace pinrail::uffd
