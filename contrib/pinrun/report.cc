// SPDX-License-Identifier: BSD-3-Clause
// report.cc - options from the environment, and what is printed when the process exits.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "pinrun.h"

namespace pinrail::pinrun {
namespace {

Options chosen;
Counts figures;
pthread_once_t read = PTHREAD_ONCE_INIT;
pthread_once_t watched = PTHREAD_ONCE_INIT;

const char* value_of(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

void read_options() {
  const char* stats = value_of("PINRUN_STATS");
  chosen.stats = stats != nullptr;
  chosen.command = stats != nullptr ? std::strtol(stats, nullptr, 10) : 0;
  chosen.share = value_of("PINRUN_SHARE") != nullptr;
  chosen.release = value_of("PINRUN_RELEASE") != nullptr;
}

// A parent prints its own figures.
void fork_child() {
  for (auto* figure : {&figures.registrations, &figures.passed, &figures.device_calls, &figures.device_ns,
                       &figures.releases, &figures.release_ns})
    figure->store(0, std::memory_order_relaxed);
}
void watch_forks() { pthread_atfork(nullptr, nullptr, fork_child); }

double microseconds(uint64_t ns, uint64_t calls) {
  return calls != 0 ? static_cast<double>(ns) / 1e3 / static_cast<double>(calls) : 0;
}

__attribute__((destructor)) void at_exit() {
  if (options().stats) print_stats();
}

}  // namespace

const Options& options() {
  pthread_once(&read, read_options);
  return chosen;
}

Counts& counts() {
  pthread_once(&watched, watch_forks);
  return figures;
}

// A registration and a deregistration would have been made for each call; both are taken at their mean cost here.
void print_stats() {
  const uint64_t calls = figures.registrations, passed = figures.passed, made = figures.device_calls;
  if (calls + passed == 0) {
    if (options().command == getpid())
      std::fprintf(stderr, "pinrun: %s (pid %ld): no registration by this process\n", program_invocation_short_name,
                   static_cast<long>(getpid()));
    return;
  }
  const uint64_t hits = calls > made ? calls - made : 0;
  const double cost = microseconds(figures.device_ns, made) + microseconds(figures.release_ns, figures.releases);
  std::fprintf(stderr,
               "pinrun: %s (pid %ld): %" PRIu64 " registrations by the program: %" PRIu64 " from the cache, %" PRIu64
               " by the device, %" PRIu64
               " not cacheable\n"
               "pinrun: %.1f us each by the device (registration and deregistration): about %.3f s saved\n",
               program_invocation_short_name, static_cast<long>(getpid()), calls + passed, hits, calls - hits, passed,
               cost, static_cast<double>(hits) * cost / 1e6);
}

}  // namespace pinrail::pinrun
