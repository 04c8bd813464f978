// SPDX-License-Identifier: BSD-3-Clause
// oracle - is what a device sees through a cached registration always what the processor sees?
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include "test/oracle/buffers.h"
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

namespace pinrail::oracle {
namespace {

using tools::MemoryEvent;

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) found.push_back(word);
  return found;
}

bool takes_part(const MemoryEvent& event, const Options& options) {
  if (&event == options.mutant) return true;
  if (!options.events.empty()) {
    const std::vector<std::string> named = words(options.events);
    return std::find(named.begin(), named.end(), event.name) != named.end();
  }
  const bool is_raw = event.way() == tools::Way::raw && options.raw_calls;
  // Shared mappings of files on disk are not kept unless monitor_never names direct_write.
  const bool is_kept = event.kind != tools::MemoryKind::disk_file;
  return is_kept && (event.way() == tools::Way::libc || is_raw);
}

// Forks take a thousand times as long as others: only as many as are asked for.
bool is_costly(const Kind& kind) { return std::string("fork") == kind.event->name; }

}  // namespace

// What happens to files on disk is reported by no monitor, so there is no report to hide.
bool is_mutant(const MemoryEvent& event) {
  return event.pages == tools::Pages::replaced && event.kind != tools::MemoryKind::disk_file;
}

std::string unknown_event(const std::string& list) {
  for (const std::string& word : words(list)) {
    if (tools::find_memory_event(word) == nullptr) return "\"" + word + "\" is no event";
  }
  return words(list).empty() ? "the list is empty" : "";
}

Choice::Choice(const Options& options) : mutant_(options.mutant), wanted_(wanted(options.seconds)) {
  for (const MemoryEvent& event : tools::memory_events()) {
    if (!takes_part(event, options)) continue;
    const std::string why = tools::why_no_memory_event(event);
    if (why.empty()) {
      kinds_.push_back(std::make_unique<Kind>(&event));
    } else {
      lacking_.push_back({&event, why});
    }
  }
}

const Lacking* Choice::find_lacking(const MemoryEvent* event) const {
  for (const Lacking& lacking : lacking_) {
    if (lacking.event == event) return &lacking;
  }
  return nullptr;
}

uint64_t Choice::wanted(double seconds) {
  constexpr double kWanted = 1000, kFullRun = 600;
  return static_cast<uint64_t>(std::ceil(kWanted * std::min(1.0, seconds / kFullRun)));
}

// relaxed, here and in next(): a count that is a little old makes no difference.
Kind* Choice::most_behind() const {
  Kind* least = kinds_.front().get();
  for (const auto& kind : kinds_) {
    if (kind->is_never_cached()) continue;
    const bool is_less = kind->again.load(std::memory_order_relaxed) < least->again.load(std::memory_order_relaxed);
    if (is_less || least->is_never_cached()) least = kind.get();
  }
  return least;
}

bool Choice::is_behind() const {
  constexpr double kAhead = 1.25;  // of time, so that little is left for the end
  const Kind* const behind = most_behind();
  const auto happened = static_cast<double>(behind->again.load(std::memory_order_relaxed));
  return !behind->is_never_cached() &&
         happened < static_cast<double>(wanted_) * std::min(1.0, kAhead * share_.load(std::memory_order_relaxed));
}

Kind* Choice::next(Random* random) const {
  Kind* const behind = most_behind();
  if (mutant_ == nullptr && (*random)() % 8 != 0 && behind->again.load(std::memory_order_relaxed) < wanted_)
    return behind;
  Kind* drawn = kinds_[(*random)() % kinds_.size()].get();
  if (mutant_ != nullptr && (*random)() % 4 == 0) {
    for (const auto& kind : kinds_) drawn = kind->event == mutant_ ? kind.get() : drawn;
  }
  return is_costly(*drawn) ? kinds_.front().get() : drawn;
}

namespace {

constexpr char kPurpose[] =
    "Does to memory whatever a process can do to it, from several threads, while buffers in that memory are registered "
    "through Pinrail with leave_pinned 1, and compares each byte that the device sees through a registration with what "
    "the processor sees, in both directions. One pool has no limit, one evicts.";

constexpr char kNotes[] =
    "Each kind of event must have happened to memory that was cached, and that was registered again afterwards at the "
    "same address: 1,000 times in ten minutes or more, in shorter runs in proportion. A run that lacks some when its "
    "time is up goes on, at most as long again. Events that this kernel or libc lacks are named as skipped. Not fired, "
    "for memory of files on disk is not kept, and not all monitors see all calls: write-direct, write-dontcache, and "
    "what begins with ring- or ends with -raw, unless --events names them.\n"
    "\n"
    "Exit status: 0 if there was no difference; 1 if there was one (with --mutant that is what is hoped for), if a "
    "kind of event did not happen often enough, or if a call failed; 2 for wrong usage, or if Pinrail refuses to start "
    "in "
    "this way; 77 if this machine does not let memory be pinned, or lacks the mutant's event.";

// Seconds, from a number of some unit.
std::string take_time(const std::string& typed, double unit, double* seconds_out) {
  constexpr double kWeek = 7 * 24 * 3600;
  char* end = nullptr;
  const double seconds = std::strtod(typed.c_str(), &end) * unit;
  if (typed.empty() || *end != '\0' || !(seconds > 0) || seconds > kWeek)
    return "\"" + typed + "\" is no number above 0, a week at most";
  *seconds_out = seconds;
  return "";
}

std::string take_mutant(const std::string& typed, Options* options) {
  options->lists_mutants = typed == "list";
  if (options->lists_mutants) return "";
  options->mutant = tools::find_memory_event(typed.c_str());
  if (options->mutant == nullptr) return "\"" + typed + "\" is no event; --mutant list names them";
  return is_mutant(*options->mutant) ? "" : "after \"" + typed + "\" registrations are good, dropped or not";
}

std::string take_events(const std::string& typed, Options* options) {
  options->events = typed;
  return unknown_event(typed);
}

}  // namespace

std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err) {
  Options* const o = options_out;
  uint64_t largest = o->largest >> 10, limit = o->size_limit >> 10;
  tools::CommandLine line("oracle", kPurpose, kNotes, &o->mca);
  line.value("--seconds", "N", "How long. Default: 60.",
             [o](const std::string& typed) { return take_time(typed, 1, &o->seconds); });
  line.value("--minutes", "N", "How long.",
             [o](const std::string& typed) { return take_time(typed, 60, &o->seconds); });
  line.number("--threads", "N", "1 to 64. Default: one for each processor, 2 to 8.", 1, 64, &o->threads);
  line.text("--monitor", "LIST",
            "Pinrail's parameter \"monitor\". Default: Pinrail's own. \"none\": nothing is reported; such a run must "
            "find differences, or it proves nothing.",
            &o->monitor);
  line.value("--mutant", "EVENT",
             "The event happens, but no monitor reports it, nor what is mapped in its place: such a run must find "
             "differences, and ends with the third one. \"list\" names these events.",
             [o](const std::string& typed) { return take_mutant(typed, o); });
  line.text("--registrar", "NAME", "iouring (default) or verbs: what can move bytes as a device.", &o->registrar);
  line.flag("--mrall", "Take the pool mrall, which registers all that is mapped, where there is no limit.",
            &o->maps_all);
  line.flag("--alloc", "Also memory of pinrail_mpool_alloc(), beside the buffers.", &o->allocates);
  line.flag("--prepin", "Pieces of the buffers are pinned ahead, at once or by helper threads.", &o->pins);
  line.flag("--raw", "Also events by raw system calls, which only some monitors see.", &o->raw_calls);
  line.value("--events", "LIST", "Only these events, with commas between them.",
             [o](const std::string& typed) { return take_events(typed, o); });
  line.number("--largest", "KIB", "The largest buffer, 64 to 16384. Default: 1024.", 64, 16384, &largest);
  line.number("--size-limit", "KIB", "Of the pool that evicts, 1024 or more. Default: 8192.", 1024, uint64_t{1} << 30,
              &limit);
  line.number("--seed", "N",
              "For what is drawn at random. Default: by the clock. With several threads the same seed draws the same "
              "again, but the system decides which comes first.",
              1, UINT64_MAX, &o->seed);
  const std::optional<int> status = line.read(argc, argv, out, err);
  o->largest = static_cast<size_t>(largest) << 10;
  o->size_limit = static_cast<size_t>(limit) << 10;
  return status;
}

}  // namespace pinrail::oracle
