// SPDX-License-Identifier: BSD-3-Clause
// oracle - is what a device sees through a cached registration always what the processor sees?
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <thread>

#include "test/oracle/choice.h"
#include "test/oracle/worker.h"

namespace pinrail::oracle {

// Of the program without mutants.
#define WEAK __attribute__((weak))
WEAK bool can_be_deaf() { return false; }
WEAK const char* component_folder() { return nullptr; }
WEAK Deaf::Deaf(const void*, size_t) : slot_(0) {}
WEAK Deaf::~Deaf() = default;
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kCaught = 3;  // differences after which a mutant's run ends

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int list_mutants() {
  for (const tools::MemoryEvent& event : tools::memory_events()) {
    if (is_mutant(event)) std::printf("%-28s %s\n", event.name, event.help);
  }
  return kSound;
}

bool proves_something(const Options& options) { return options.mutant == nullptr && options.monitor != "none"; }

// The time is up. On a machine that is busy with other things it may be twice as long, and a short run a minute
// longer.
bool is_over(const Run& run, double seconds) {
  constexpr double kShort = 60;
  const bool waits = proves_something(run.options) && run.choice.is_behind();
  const double more = std::max(run.options.seconds, kShort);
  return seconds >= (waits ? run.options.seconds + more : run.options.seconds);
}

// The heap must not grow while an event moves the break: who prints allocates.
void print_progress(Run* run, double seconds) {
  Buffer* const heap = run->buffers.heap();
  std::unique_lock<std::shared_mutex> lock;
  if (heap != nullptr) lock = std::unique_lock<std::shared_mutex>(heap->mutex);
  const Judge& judge = run->judge;
  std::printf("oracle: %.0f s, %" PRIu64 " operations, %.1f GB verified, %" PRIu64 " differences\n", seconds,
              judge.operations(), static_cast<double>(judge.bytes()) / 1e9, judge.differences());
  std::fflush(stdout);
}

void watch(Run* run) {
  constexpr double kProgressSeconds = 10;
  const auto start = Clock::now();
  double next = kProgressSeconds;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double seconds = seconds_since(start);
    const bool caught = run->options.mutant != nullptr && run->judge.differences() >= kCaught;
    run->choice.advance(seconds / run->options.seconds);
    if (caught || is_over(*run, seconds)) break;
    if (seconds < next) continue;
    print_progress(run, seconds);
    next += kProgressSeconds;
  }
  run->over = true;
}

void play(Run* run) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < run->options.threads; ++i) {
    threads.emplace_back([run, i] { Worker(run, i).work(); });
  }
  watch(run);
  for (std::thread& thread : threads) thread.join();
}

void print_table(const Choice& choice) {
  std::printf("%-28s %10s %10s %10s %10s\n", "event", "fired", "on cached", "again", "hits");
  for (const auto& kind : choice.kinds()) {
    std::printf("%-28s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n", kind->event->name,
                kind->fired.load(), kind->on_cached.load(), kind->again.load(), kind->hits.load());
  }
  for (const Lacking& lacking : choice.lacking()) {
    std::printf("%-28s skipped: this machine lacks it: %s\n", lacking.event->name, lacking.why.c_str());
  }
}

// Whether each kind of event was fired often enough; says which were not.
bool is_enough(const Choice& choice, const Options& options) {
  const uint64_t wanted = Choice::wanted(options.seconds);
  std::string lacking;
  for (const auto& kind : choice.kinds()) {
    if (kind->again.load() >= wanted) continue;
    lacking +=
        (lacking.empty() ? "" : ", ") + std::string(kind->event->name) + " " + std::to_string(kind->again.load());
  }
  if (lacking.empty()) return true;
  std::printf("oracle: TOO FEW: a cached range was hit and registered again %" PRIu64
              " times at least in %.0f s is\n"
              "  what is wanted of each event; less often: %s\n",
              wanted, options.seconds, lacking.c_str());
  return false;
}

// A run that pins proves nothing unless pins were seen.
void count_pins(Judge* judge) {
  std::printf("pinned ahead  %" PRIu64 " ranges, %" PRIu64 " of them registered when that was done\n", judge->pins(),
              judge->registered_pins());
  if (judge->registered_pins() == 0) judge->failed("prepin", "no range was pinned");
}

int verdict(const Options& options, const Choice& choice, const Judge& judge) {
  const bool enough = !proves_something(options) || is_enough(choice, options);
  if (judge.refusals() != 0) std::printf("oracle: %" PRIu64 " requests found the limit in use\n", judge.refusals());
  if (judge.failures() != 0) std::printf("oracle: %" PRIu64 " calls failed\n", judge.failures());
  std::printf("oracle: %" PRIu64 " operations, %" PRIu64 " bytes verified, %" PRIu64 " differences\n",
              judge.operations(), judge.bytes(), judge.differences());
  return enough && judge.failures() == 0 && judge.differences() == 0 ? kSound : kWrong;
}

int skip(const std::string& why) {
  std::printf("SKIP: %s\n", why.c_str());
  return kSkipped;
}

void fill_in(Options* options) {
  constexpr unsigned kLeast = 2, kMost = 8;
  if (options->threads == 0) options->threads = std::clamp(std::thread::hardware_concurrency(), kLeast, kMost);
  if (options->seed == 0) options->seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
}

int run_oracle(const Options& options) {
  Choice choice(options);
  const Lacking* const lacking = choice.find_lacking(options.mutant);
  if (lacking != nullptr) return skip("this machine lacks " + lacking->why);
  if (choice.kinds().empty()) return skip("this machine lacks all of these events");
  Pools pools;
  std::string what;
  const pinrail_status_t status = pools.open(options, &what);
  const bool was_not_built = status == PINRAIL_ERR_NOT_FOUND && what != "pinrail_init";
  if (status == PINRAIL_ERR_NOT_AVAILABLE || was_not_built) return skip(what + " is not available here");
  if (status != PINRAIL_SUCCESS) {
    std::fprintf(stderr, "oracle: %s: %s\n", what.c_str(), pinrail_status_name(status));
    return kUnable;
  }
  std::printf("oracle: seed %" PRIu64 ", %u threads, %.0f s, registrar %s, monitor %s%s%s\n", options.seed,
              options.threads, options.seconds, options.registrar.c_str(),
              options.monitor.empty() ? "(default)" : options.monitor.c_str(),
              options.mutant == nullptr ? "" : ", deaf to ", options.mutant == nullptr ? "" : options.mutant->name);
  std::fflush(stdout);
  Judge judge;
  {
    Buffers buffers(choice, options, options.threads);
    Run run{options, choice, pools, buffers, judge};
    play(&run);
    print_table(choice);
    std::printf("%s", pools.figures().c_str());
    if (options.pins) count_pins(&judge);
  }
  const pinrail_status_t closed = pools.close();
  if (closed != PINRAIL_SUCCESS) judge.failed("closing the pools", pinrail_status_name(closed));
  return verdict(options, choice, judge);
}

}  // namespace
}  // namespace pinrail::oracle

static int run(int argc, char** argv) {
  using namespace pinrail::oracle;
  // Workers have arenas of their own.
  pinrail::tools::keep_malloc_off_the_break();
  Options options;
  if (const auto status = read_options(argc, argv, &options, std::cout, std::cerr)) return *status;
  if (options.lists_mutants) return list_mutants();
  if (options.mutant != nullptr && !can_be_deaf()) {
    std::fprintf(stderr, "oracle: --mutant needs the program oracle_mutants\n");
    return kUnable;
  }
  fill_in(&options);
  return run_oracle(options);
}

int main(int argc, char** argv) { return pinrail::tools::close_output("oracle", run(argc, argv)); }
