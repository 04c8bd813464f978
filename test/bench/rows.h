// SPDX-License-Identifier: BSD-3-Clause
// rows.h - the rows that a benchmark program can measure on one cache filled with one set of regions.
//
//   pairs      register + deregister of regions drawn at random; all are cached, so each is a hit
//   mixed:P    the same; P per cent of the regions are invalidated just before, and so are misses
//   cycle      register + deregister of all regions in their order; with --limit below their number each one is a
//              miss that evicts another
//   tail:hit   the slowest of the hits while every eighth pair is a miss that evicts another; with --limit at half of
//   the
//              regions. The result is the median of single pairs, and the quantiles stand beside it: of the hits, and
//              of reading the clock with nothing between
//   tail:miss  the same of the misses
//   same       threads that all use the first region                          (--threads; the next two as well)
//   different  threads that use one region each
//   team:P     threads that each draw regions as "mixed:P" does
//   uncached   invalidation of ranges of 64 KiB that are not cached
//   mmap       mmap and munmap of 64 KiB, untouched and not cached
//   fresh      mmap of 64 KiB, register + deregister of it, munmap: a miss in a mapping that was not looked at before
//   memory     bytes that the cache takes for each region (first of all, on an empty cache)
//   pause      the longest hits of one thread while another invalidates all regions (last of all: they are gone)
//
// A row checks by the registrar's calls that it measured what it says, and ends the program if not. The result of each
// is in real_time; "pairs" and others run in this thread, pinned to the first processor.
#ifndef PINRAIL_TEST_BENCH_ROWS_H
#define PINRAIL_TEST_BENCH_ROWS_H

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <string>

#include "test/bench/measure.h"
#include "test/bench/team.h"
#include "test/bench/work.h"

namespace pinrail::bench {

enum class Expect { hits, misses, some };

template <class Cache>
class Rows {
 public:
  Rows(Cache& cache, const Options& options)
      : cache_(cache), options_(options), work_(options.shape, options.regions, options.length) {}

  void add_all() {
    for (const std::string& row : options_.rows) add(row);
  }

 private:
  using State = benchmark::State;

  // "mixed:10" is "mixed" and 10.
  static unsigned percent_of(const std::string& row) {
    const size_t colon = row.find(':');
    return colon == std::string::npos || row.compare(0, colon, "tail") == 0
               ? 0
               : static_cast<unsigned>(std::stoul(row.substr(colon + 1)));
  }

  void add(const std::string& row) {
    const unsigned percent = percent_of(row);
    const std::string kind = row.substr(0, row.find(':'));
    if (kind == "pairs")
      add_loop(row, work_.random(0), Expect::hits);
    else if (kind == "mixed")
      add_loop(row, work_.random(percent), percent == 0 ? Expect::hits : Expect::some);
    else if (kind == "cycle")
      add_loop(row, work_.in_order(), Expect::misses);
    else if (kind == "tail")
      add_once(row, [this, of_misses = row == "tail:miss"](State& state) {
        tail(state, of_misses);
      })->Repetitions(options_.repetitions);
    else if (kind == "same" || kind == "different" || kind == "team")
      add_teams(row, kind, percent);
    else if (kind == "uncached")
      add_uncached(row);
    else if (kind == "mmap")
      add_mmap(row);
    else if (kind == "fresh")
      add_fresh(row);
    else if (kind == "memory")
      add_once(row, [this](State& state) { memory(state); });
    else if (kind == "pause")
      add_once(row, [this](State& state) { pause(state); });
    else
      fail("no such row", row.c_str());
  }

  template <class Function>
  void add_timed(const std::string& row, Function function) {
    benchmark::RegisterBenchmark(row.c_str(), function)
        ->UseRealTime()
        ->MinTime(options_.seconds)
        ->Repetitions(options_.repetitions);
  }

  // A row whose iterations are whole samples with times of their own.
  template <class Function>
  benchmark::internal::Benchmark* add_once(const std::string& row, Function function) {
    return benchmark::RegisterBenchmark(row.c_str(), function)->UseManualTime()->Iterations(1);
  }

  void fill_once() {
    if (!filled_) fill(cache_, work_);
    filled_ = true;
  }

  // Where a row is. Google Benchmark calls it several times: the sequence goes on where it stopped, and the batches
  // stay as they are, for it wants as many iterations in each repetition.
  struct Progress {
    Sequence sequence;
    uint64_t at = 0;
    uint64_t batch = 0;
  };

  // As many as take about 20 us, so that Google Benchmark's own loop does not show and slow ones need not wait.
  template <class Loop>
  static void choose_batch(Progress& progress, Loop loop) {
    double time = 0;
    for (progress.batch = 1; progress.batch < 1024 && time < 20000; progress.batch *= 2) {
      const double start = now_ns();
      loop(progress.at, progress.batch);
      progress.at += progress.batch;
      time = now_ns() - start;
    }
  }

  template <class Loop>
  static void run_batches(State& state, Progress& progress, Loop loop) {
    const Pinned pinned(0);
    if (progress.batch == 0) choose_batch(progress, loop);
    while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(progress.batch))) {
      loop(progress.at, progress.batch);
      progress.at += progress.batch;
    }
  }

  void add_loop(const std::string& row, Sequence steps, Expect expect) {
    auto progress = std::make_shared<Progress>(Progress{std::move(steps), 0, 0});
    add_timed(row, [this, progress, expect](State& state) {
      fill_once();
      const Sequence& sequence = progress->sequence;
      const uint64_t start = progress->at, before = register_calls().counted();
      run_batches(state, *progress,
                  [&](uint64_t at, uint64_t count) { run_pairs(cache_, work_, sequence, at, count); });
      const uint64_t registered = register_calls().counted() - before, pairs = progress->at - start;
      check(expect, registered, pairs);
      state.counters["registered_share"] = static_cast<double>(registered) / static_cast<double>(pairs);
    });
  }

  static void check(Expect expect, uint64_t registered, uint64_t pairs) {
    if (expect == Expect::hits && registered != 0) fail("what should be hits were misses");
    if (expect == Expect::misses && registered != pairs) fail("what should be misses were hits");
    if (expect == Expect::some && pairs > 10000 && registered == 0) fail("nothing that was invalidated was a miss");
  }

  void add_uncached(const std::string& row) {
    auto progress = std::make_shared<Progress>(Progress{work_.strangers(), 0, 0});
    add_timed(row, [this, progress](State& state) {
      fill_once();
      run_batches(state, *progress, [&](uint64_t at, uint64_t count) {
        run_invalidations(cache_, work_, progress->sequence, at, count);
      });
    });
  }

  void add_mmap(const std::string& row) {
    add_mappings(row, [this](void* address, size_t length) { cache_.unmap(address, length); });
  }

  void add_fresh(const std::string& row) {
    add_mappings(row, [this](void* address, size_t length) {
      cache_.deregister(cache_.register_range(address, length));
      cache_.unmap(address, length);
    });
  }

  // use: what is done with each mapping; it unmaps it.
  template <class Use>
  void add_mappings(const std::string& row, Use use) {
    auto progress = std::make_shared<Progress>();
    add_timed(row, [this, progress, use](State& state) {
      fill_once();
      run_batches(state, *progress, [&use](uint64_t, uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) use(map_some(), kMapped);
      });
    });
  }

  static constexpr size_t kMapped = 64 << 10;

  // Readable only, for it then merges with no mapping of its neighbourhood, which differs between the programs.
  static void* map_some() {
    void* const address = mmap(nullptr, kMapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) fail("mmap failed");
    return address;
  }

  void add_teams(const std::string& row, const std::string& kind, unsigned percent) {
    auto sequences = std::make_shared<std::vector<Sequence>>();
    const unsigned most = *std::max_element(options_.threads.begin(), options_.threads.end());
    if (kind == "different" && most > work_.regions().size()) fail("fewer regions than threads");
    for (unsigned i = 0; i < (kind == "different" ? most : 1); ++i)
      sequences->push_back(kind == "team" ? work_.random(percent) : work_.only(i));
    for (const unsigned threads : options_.threads) {
      add_once(row + "/threads:" + std::to_string(threads), [this, sequences, threads](State& state) {
        fill_once();
        team(state, *sequences, threads);
      })->Repetitions(2 * options_.repetitions);
    }
  }

  // Nanoseconds for all pairs of that many threads at a time. Each thread begins at another place of its sequence, and
  // each call where the last one stopped: what was just used would be warm.
  double run_threads(const std::vector<Sequence>& sequences, unsigned threads, uint64_t pairs) {
    const uint64_t warm_up = std::min<uint64_t>(pairs, 1000);
    const auto run = [&](unsigned thread, uint64_t skip, uint64_t count) {
      const Sequence& sequence = sequences[thread % sequences.size()];
      run_pairs(cache_, work_, sequence, team_at_ + thread * (sequence.size() / threads) + skip, count);
    };
    const double time = run_team(
        threads, [&](unsigned thread) { run(thread, 0, warm_up); },
        [&](unsigned thread) { run(thread, warm_up, pairs); });
    team_at_ += warm_up + pairs;
    return time;
  }

  // One thread, all, and one again, between two looks at whether the machine runs that many at full speed.
  void team(State& state, const std::vector<Sequence>& sequences, unsigned threads) {
    const uint64_t pairs = pairs_of_a_sample(sequences);
    double time = 0, ratio = 0, rejected = 0;
    bool accepted = false;
    for (auto _ : state) {
      for (int i = 0; i < options_.tries && !accepted; ++i) {
        bool quiet = threads == 1 || is_quiet(threads);
        if (quiet) {
          const double before = run_threads(sequences, 1, pairs);
          time = run_threads(sequences, threads, pairs);
          ratio = threads * (before + run_threads(sequences, 1, pairs)) / 2 / time;
          quiet = threads == 1 || is_quiet(threads);
        }
        if (!quiet) ++rejected;
        accepted = quiet;
      }
      state.SetIterationTime(accepted ? time * 1e-9 / static_cast<double>(pairs * threads) : 0);
    }
    state.counters["accepted"] = accepted;
    state.counters["rejected"] = rejected;
    if (accepted) state.counters["throughput_ratio"] = ratio;
  }

  // Short, for what another program takes between the two looks goes unnoticed.
  static constexpr double kTeamSeconds = 0.005;

  uint64_t pairs_of_a_sample(const std::vector<Sequence>& sequences) {
    uint64_t pairs = 4;
    double time = 0;
    while (time < 0.5e6 && pairs < (1u << 20)) {
      pairs *= 2;
      time = run_threads(sequences, 1, pairs);
    }
    const double wanted = static_cast<double>(pairs) * std::min(options_.seconds, kTeamSeconds) * 1e9 / time;
    return std::max<uint64_t>(8, static_cast<uint64_t>(wanted));
  }

  void memory(State& state) {
    for (auto _ : state) {
      const double before = resident_bytes();
      fill_once();
      const double bytes = (resident_bytes() - before) / static_cast<double>(work_.regions().size());
      state.counters["bytes_per_registration"] = bytes;
      state.SetIterationTime(0);
    }
  }

  // Each pair by itself; the registrar's calls show which pairs were misses.
  void tail(State& state, bool of_misses) {
    constexpr double kSamples = 5;  // times as long as other rows: one pair of a thousand shall be many
    constexpr uint64_t kBatch = 1024;
    fill_once();
    const Sequence sequence = work_.churn();
    const Pinned pinned(0);
    // The first time round finds the cache as fill() left it.
    run_pairs(cache_, work_, sequence, tail_at_, sequence.size());
    auto hits = std::make_unique<Histogram>(), misses = std::make_unique<Histogram>(),
         clock = std::make_unique<Histogram>();
    const double end = now_ns() + kSamples * options_.seconds * 1e9;
    do {
      for (uint64_t i = 0; i < kBatch; ++i, ++tail_at_) {
        const uint64_t before = register_calls().counted();
        const uint64_t start = ticks();
        run_pairs(cache_, work_, sequence, tail_at_, 1);
        const uint64_t took = ticks() - start;
        (register_calls().counted() == before ? *hits : *misses).add(took);
      }
      for (uint64_t i = 0; i < kBatch; ++i) {
        const uint64_t start = ticks();
        clock->add(ticks() - start);
      }
    } while (now_ns() < end);
    if (hits->total() < 6 * misses->total() || misses->total() == 0) fail("hits or misses are too few");
    show_tail(state, of_misses ? *misses : *hits, *clock);
  }

  static void show_tail(State& state, const Histogram& of, const Histogram& clock) {
    const double tick = ns_per_tick();
    const auto ns = [&](const Histogram& histogram, double share) {
      return static_cast<double>(histogram.quantile(share)) * tick;
    };
    for (auto _ : state) state.SetIterationTime(ns(of, 0.5) * 1e-9);
    state.counters["samples"] = static_cast<double>(of.total());
    state.counters["p99_ns"] = ns(of, 0.99);
    state.counters["p999_ns"] = ns(of, 0.999);
    state.counters["longest_ns"] = static_cast<double>(of.longest()) * tick;
    state.counters["clock_p50_ns"] = ns(clock, 0.5);
    state.counters["clock_p99_ns"] = ns(clock, 0.99);
    state.counters["clock_p999_ns"] = ns(clock, 0.999);
    state.counters["clock_longest_ns"] = static_cast<double>(clock.longest()) * tick;
  }

  void pause(State& state) {
    fill_once();
    const Sequence hot = work_.strangers();
    const Pause quiet = pause_of(hot, [] {});
    const Pause loud = pause_of(hot, [this] { cache_.invalidate(work_.span_begin(), work_.span_length()); });
    filled_ = false;
    for (auto _ : state) state.SetIterationTime(loud.longest_ns * 1e-9);
    state.counters["p9999_ns"] = loud.p9999_ns;
    state.counters["invalidate_ns"] = loud.event_ns;
    state.counters["hits"] = static_cast<double>(loud.hits);
    state.counters["quiet_max_ns"] = quiet.longest_ns;
    state.counters["quiet_p9999_ns"] = quiet.p9999_ns;
  }

  // The hits go to 16 regions that lie outside of what is invalidated.
  Pause pause_of(const Sequence& hot, const std::function<void()>& event) {
    constexpr uint64_t kRegions = 16;
    return measure_pause(
        [&](Histogram& histogram, const std::function<bool()>& stop) {
          run_pairs(cache_, work_, hot, 0, kRegions);
          const uint64_t before = register_calls().counted();
          for (uint64_t i = 0; !stop(); ++i) {
            const uint64_t start = ticks();
            run_pairs(cache_, work_, hot, i % kRegions, 1);
            histogram.add(ticks() - start);
          }
          if (register_calls().counted() != before) fail("what should be hits were misses");
        },
        event);
  }

  Cache& cache_;
  const Options options_;
  const Work work_;
  bool filled_ = false;
  uint64_t team_at_ = 0;
  uint64_t tail_at_ = 0;
};

// main() of every program: makes the cache, measures, and leaves without taking it down, which could take long.
template <class Cache>
int run_program(int argc, char** argv) {
  const Options options = read_options(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("library", Cache::version());
  benchmark::AddCustomContext("line_transfer_ns", std::to_string(line_transfer_ns()));
  Cache cache(options, &argc, &argv);
  Rows<Cache> rows(cache, options);
  rows.add_all();
  benchmark::RunSpecifiedBenchmarks();
  fflush(stdout);
  std::_Exit(0);
}

}  // namespace pinrail::bench

#endif
