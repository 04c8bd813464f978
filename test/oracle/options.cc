// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/options.h"

#include <cstdlib>

#include "test/oracle/choice.h"

namespace pinrail::oracle {
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
