// SPDX-License-Identifier: BSD-3-Clause
// options.cc - the command line of pinrail_perf.
#include "contrib/tools/perf/options.h"

#include <cstdio>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

constexpr uint64_t kMaxRegions = 1u << 24, kMaxThreads = 1024, kMaxIterations = uint64_t{1} << 40;

constexpr char kPurpose[] =
    "Measures what registering memory with a device costs, without a registration cache and with one, and checks on "
    "the "
    "way that the cache tells the truth. With no option it takes the best registrar that works on this machine (verbs, "
    "else iouring, else mlock) and prints one line for each size from 4 KiB to 16 MiB. With --trace it replays what a "
    "real program asked of its cache.";

constexpr char kNotes[] =
    R"help(Columns: "without" is register + deregister with CACHE_BYPASS in a pool that keeps nothing; "with" is the same calls on the pool under test. Both are medians of batches, in nanoseconds. Hits, misses and evictions are those of the timed calls and of one call for each buffer before them. Memory is on small pages; the row that is marked "huge" is on transparent hugepages.

After the timing of a row, and in a replay at each call, the tool checks
  - that a registration covers what was asked, with the access asked,
  - that none is returned whose memory was unmapped and mapped again,
  - that the device sees the bytes that the processor sees (iouring: all
    of them; verbs: the first, the last and random pieces of 64 bytes;
    mlock has no device: "unchecked"),
  - that what is registered stays within mpool_<pool>_size_limit, if that
    is set: what is in use may exceed a limit by default,
  - and, in the table, that it equals what the kernel counts: VmPin for
    iouring and verbs, VmLck for mlock.
A row that this user's limits do not allow prints the reason instead. That is no error, but a refusal while something idle could have been evicted is one.

Exit status: 0 all is well; 1 an error was counted, what was asked for could not be had, or nothing can be kept registered on this machine: a line says why; 2 the command line is wrong.
)help";

std::string take_sizes(const std::string& typed, Options* options) {
  const Result parsed = parse_size_list(typed, &options->sizes);
  options->sizes_given = parsed.ok();
  return parsed.ok() ? "" : parsed.why();
}

std::string take_limit(const std::string& typed, Options* options) {
  const Result parsed = parse_size(typed, &options->limit);
  return parsed.ok() ? "" : parsed.why();
}

std::string take_touch(const std::string& typed, Options* options) {
  if (typed != "birth" && typed != "asked") return "\"" + typed + "\" is neither birth nor asked";
  options->touch = typed == "birth" ? Touch::at_birth : Touch::when_asked;
  return "";
}

// What belongs to a replay and means nothing without one.
void add_replay_options(tools::CommandLine* line, Options* o) {
  line->texts("--trace", "FILE...",
              "Replay recorded traces, plain or .xz: they say what is done. Several print one line each.", &o->traces);
  line->value(
      "--cost", "CALL,PAGE",
      "What a device takes, in nanoseconds: for a register call, and for each of its pages. Default: 8000,69.5.",
      [o](const std::string& typed) { return take_cost(typed, &o->cost); });
  line->flag("--exact",
             "The pool registers the pages of the range that is asked for, with the rights asked for, and no others.",
             &o->exact);
  line->flag("--compare", "Replay each trace a second time, as with --exact, and print the ratio of both.",
             &o->compare);
  line->value("--limit", "SIZE", "Bytes that may stay registered. Default: the pool's size_limit.",
              [o](const std::string& typed) { return take_limit(typed, o); });
  line->value("--touch", "WHEN",
              "When the pages of replayed memory become resident: at the birth of their mapping, or when a call first "
              "has asked for them (asked). Default: birth.",
              [o](const std::string& typed) { return take_touch(typed, o); });
  for (const char* const name : {"--cost", "--exact", "--compare", "--limit", "--touch"}) line->need(name, "--trace");
  line->exclude("--compare", "--exact");
}

std::string take_scenario(const std::string& typed, Options* options) {
  if (!is_scenario(typed)) return "\"" + typed + "\" is no scenario: there are " + scenario_names();
  options->scenario = typed;
  return "";
}

}  // namespace

std::string take_cost(const std::string& typed, CostModel* cost) {
  CostModel read;
  char rest = 0;
  const bool is_pair = sscanf(typed.c_str(), "%lf,%lf%c", &read.call_ns, &read.page_ns, &rest) == 2;
  if (!is_pair || !(read.call_ns >= 0 && read.call_ns < 1e12 && read.page_ns >= 0 && read.page_ns < 1e12))
    return "\"" + typed + "\" is not two numbers of nanoseconds such as 8000,69.5";
  *cost = read;
  return "";
}

std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err) {
  Options* const o = options_out;
  tools::CommandLine line("pinrail_perf", kPurpose, kNotes, &o->mca);
  line.text("--pool", "NAME", "Memory pool component. Default: the best that takes the registrar.", &o->pool);
  line.text(
      "--registrar", "NAME",
      "Registrar component. Default: the best that works here. With --trace also \"none\": calls are counted, and "
      "nothing is registered.",
      &o->registrar);
  line.value("--size", "LIST",
             "Sizes of buffers: bytes, or with K, M or G; with commas between them. Default: "
             "4K,16K,64K,256K,1M,2M,4M,16M.",
             [o](const std::string& typed) { return take_sizes(typed, o); });
  line.number("--regions", "N", "Buffers of each thread, used in shuffled order. Default: 1.", 1, kMaxRegions,
              &o->regions);
  line.number("--threads", "N", "Threads, each on a core and with buffers of its own. Default: 1.", 1, kMaxThreads,
              &o->threads);
  line.number(
      "--iterations", "N",
      "Register + deregister pairs of each thread that are timed with the cache; without it at most 10000, less "
      "where that takes over a quarter of a second. The column without the cache takes at most a fifth of a "
      "second in any case.",
      1, kMaxIterations, &o->iterations);
  add_replay_options(&line, o);
  for (const char* const table : {"--size", "--regions", "--threads", "--iterations"}) line.exclude("--trace", table);
  line.value("--scenario", "NAME",
             "Run one way to use a pool, print its figures, and fail if one is not reached: prepin, terabyte, "
             "chunks, alloc, mrall or odp.",
             [o](const std::string& typed) { return take_scenario(typed, o); });
  for (const char* const other : {"--trace", "--regions", "--threads"}) line.exclude("--scenario", other);
  line.flag(
      "--doctor",
      "Look at monitors, limits, device, fork and huge pages on this machine, and say of each what follows and what "
      "to do. Exit status 1 if something does not work.",
      &o->doctor);
  for (const char* const other : {"--trace", "--scenario", "--regions", "--threads", "--size", "--iterations"})
    line.exclude("--doctor", other);
  line.flag("--json", "Print JSON.", &o->json);
  line.exclude("--doctor", "--json");
  return line.read(argc, argv, out, err);
}

}  // namespace pinrail::perf
