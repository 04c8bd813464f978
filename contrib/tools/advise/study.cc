// SPDX-License-Identifier: BSD-3-Clause
// study.cc - what a trace says by itself.
#include "contrib/tools/advise/study.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <list>
#include <map>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "contrib/tools/perf/basics.h"

namespace pinrail::advise {

namespace {

constexpr uint32_t kBypassFlag = 1;

// Sums of weights by position, each in logarithmic time (a Fenwick tree).
class Sums {
 public:
  explicit Sums(size_t positions) : sums_(positions + 1) {}
  void add(size_t position, uint64_t weight) {  // a weight is taken away by its complement
    for (size_t i = position + 1; i < sums_.size(); i += i & -i) sums_[i] += weight;
  }
  uint64_t before(size_t position) const {
    uint64_t sum = 0;
    for (size_t i = position; i > 0; i -= i & -i) sum += sums_[i];
    return sum;
  }

 private:
  std::vector<uint64_t> sums_;
};

struct Entry {
  uint64_t begin, end;
  uint32_t rights;
  size_t used_at;  // record of the last use
  size_t life;     // index of its Life

  uint64_t bytes() const { return end - begin; }
  bool contains(uint64_t from, uint64_t to) const { return begin <= from && to <= end; }
};

// The live registrations, by their starts.
class Cache {
 public:
  using Entries = std::multimap<uint64_t, Entry>;

  // Calls visit(iterator) for each that overlaps the range. visit() may erase what it is given.
  template <typename Visit>
  void each_overlapping(uint64_t begin, uint64_t end, Visit&& visit) {
    const uint64_t first = begin > longest_ ? begin - longest_ : 0;
    for (auto it = entries_.lower_bound(first); it != entries_.end() && it->first < end;) {
      const auto now = it++;
      if (now->second.end > begin) visit(now);
    }
  }
  void insert(const Entry& entry) {
    longest_ = std::max(longest_, entry.bytes());
    entries_.emplace(entry.begin, entry);
  }
  void erase(Entries::iterator at) { entries_.erase(at); }
  Entries& entries() { return entries_; }

 private:
  Entries entries_;
  uint64_t longest_ = 0;
};

class Student {
 public:
  Student(const perf::Trace& trace, uint64_t page_bytes)
      : trace_(trace), page_(page_bytes), recency_(trace.records.size()) {}

  Study run() {
    for (now_ = 0; now_ < trace_.records.size(); now_++) step(trace_.records[now_]);
    for (auto& [begin, entry] : cache_.entries()) out_.lives[entry.life].died_ns = trace_.records.back().ns;
    std::sort(out_.distances.begin(), out_.distances.end());
    add_places();
    return std::move(out_);
  }

 private:
  void step(const perf::TraceRecord& record) {
    if (record.op == perf::TraceOp::reg) request(record);
    if (record.op == perf::TraceOp::invalidate) event(record);
  }

  void request(const perf::TraceRecord& record) {
    const uint64_t begin = perf::round_down(record.addr, page_), end = perf::round_up(record.addr + record.size, page_);
    out_.requests++;
    asked_.push_back(begin);
    if ((record.flags & kBypassFlag) != 0) return miss(PINRAIL_MISS_BYPASS, begin, end);
    pinrail_miss_reason_t reason = PINRAIL_MISS_COLD;
    uint32_t rights = record.access;
    Entry* hit = nullptr;
    cache_.each_overlapping(begin, end, [&](Cache::Entries::iterator at) {
      Entry& entry = at->second;
      const bool contains = entry.contains(begin, end);
      if (contains && (entry.rights & record.access) == record.access) hit = &entry;
      if (contains) rights |= entry.rights;
      if (reason != PINRAIL_MISS_RIGHTS) reason = contains ? PINRAIL_MISS_RIGHTS : PINRAIL_MISS_SPAN;
    });
    if (hit != nullptr) return use(hit);
    if (reason == PINRAIL_MISS_COLD && was_ended(begin, end)) reason = PINRAIL_MISS_EVENT;
    miss(reason, begin, end);
    insert(record, {begin, end, rights, now_, out_.lives.size()});
  }

  void use(Entry* entry) {
    out_.hits++;
    out_.distances.push_back(recency_.before(now_) - recency_.before(entry->used_at + 1) + entry->bytes());
    out_.lives[entry->life].uses++;
    forget_use(*entry);
    entry->used_at = now_;
    recency_.add(now_, entry->bytes());
  }

  void miss(pinrail_miss_reason_t reason, uint64_t begin, uint64_t end) {
    out_.misses[reason]++;
    out_.pages[reason] += (end - begin) / page_;
    missed_.push_back({begin, end});
  }

  // What the new one contains, with no more rights, leaves the cache.
  void insert(const perf::TraceRecord& record, const Entry& entry) {
    cache_.each_overlapping(entry.begin, entry.end, [&](Cache::Entries::iterator at) {
      const Entry& other = at->second;
      if (entry.contains(other.begin, other.end) && (other.rights & ~entry.rights) == 0) remove(at, record.ns, false);
    });
    out_.lives.push_back({entry.begin, entry.end, record.ns, record.ns, 1, false});
    recency_.add(now_, entry.bytes());
    cache_.insert(entry);
    bytes_ += entry.bytes();
    out_.peak_bytes = std::max(out_.peak_bytes, bytes_);
  }

  void event(const perf::TraceRecord& record) {
    out_.events++;
    if (record.size == 0) return;
    const uint64_t begin = perf::round_down(record.addr, page_), end = perf::round_up(record.addr + record.size, page_);
    cache_.each_overlapping(begin, end, [&](Cache::Entries::iterator at) {
      for (uint64_t page = at->second.begin; page < at->second.end; page += page_) ended_.insert(page);
      remove(at, record.ns, true);
    });
  }

  void remove(Cache::Entries::iterator at, uint64_t ns, bool by_event) {
    Life& life = out_.lives[at->second.life];
    life.died_ns = ns;
    life.by_event = by_event;
    forget_use(at->second);
    bytes_ -= at->second.bytes();
    cache_.erase(at);
  }

  void forget_use(const Entry& entry) { recency_.add(entry.used_at, -entry.bytes()); }

  bool was_ended(uint64_t begin, uint64_t end) {
    bool was = false;
    for (uint64_t page = begin; page < end; page += page_) was = ended_.erase(page) != 0 || was;
    return was;
  }

  // Ranges that touch become one place.
  void add_places() {
    std::vector<std::pair<uint64_t, uint64_t>> ranges = missed_;
    std::sort(ranges.begin(), ranges.end());
    for (const auto& [begin, end] : ranges) {
      if (out_.places.empty() || begin > out_.places.back().end) out_.places.push_back({begin, end, 0, 0, 0});
      Place& place = out_.places.back();
      place.end = std::max(place.end, end);
      place.misses++;
      place.pages += (end - begin) / page_;
    }
    for (const uint64_t begin : asked_) {
      const auto above = std::upper_bound(out_.places.begin(), out_.places.end(), begin,
                                          [](uint64_t value, const Place& place) { return value < place.begin; });
      std::prev(above)->requests++;  // each request lies in what was registered for it or before
    }
  }

  const perf::Trace& trace_;
  const uint64_t page_;
  size_t now_ = 0;
  Study out_;
  Cache cache_;
  Sums recency_;  // the bytes of each live registration, at the record of its last use
  uint64_t bytes_ = 0;
  std::unordered_set<uint64_t> ended_;  // pages of what events have ended, until they are registered again
  std::vector<uint64_t> asked_;
  std::vector<std::pair<uint64_t, uint64_t>> missed_;
};

}  // namespace

uint64_t Study::all_misses() const { return std::accumulate(misses.begin(), misses.end(), uint64_t{0}); }

uint64_t Study::misses_of_lru(uint64_t limit_bytes) const {
  const auto kept = std::upper_bound(distances.begin(), distances.end(), limit_bytes) - distances.begin();
  return all_misses() + distances.size() - static_cast<uint64_t>(kept);
}

Study study(const perf::Trace& trace, uint64_t page_bytes) { return Student(trace, page_bytes).run(); }

// A trace replayed with one setting after the other.

namespace {

constexpr const char* kNoLimit = "no limit";

// Settings to try beside what is set, as far as this library has the parameters.
struct Candidate {
  const char* name;
  tools::Pairs wanted;
};
std::vector<Candidate> candidates() {
  return {{"exact", {{"mpool_grdma_extent", "0"}, {"mpool_grdma_rights", "asked"}}},
          {"rights asked", {{"mpool_grdma_rights", "asked"}}},
          {"extent 0", {{"mpool_grdma_extent", "0"}}},
          {"extent 64K", {{"mpool_grdma_extent", "64K"}}},
          {"extent 2M", {{"mpool_grdma_extent", "2M"}}},
          {kNoLimit, {{"mpool_grdma_size_limit", "0"}}},
          {"leave_pinned auto", {{"mpool_grdma_leave_pinned", "auto"}}}};
}

// Of what was set where the trace was recorded: what decides which calls the pool makes.
tools::Pairs recorded_settings(const perf::Trace& trace) {
  constexpr const char* kNames[] = {"size_limit", "count_limit",  "max_reg_size", "extent",
                                    "rights",     "leave_pinned", "empty_cache",  "gc_limit"};
  tools::Pairs settings;
  for (const auto& setting : trace.settings) {
    const bool is_wanted = std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
      return setting.first == std::string("mpool_grdma_") + name;
    });
    if (is_wanted) settings.push_back(setting);
  }
  return settings;
}

bool has_parameter(const char* name) {
  if (tools::init({}) != PINRAIL_SUCCESS) return false;
  pinrail_param_info_t info = {};
  info.size = sizeof(info);
  const bool has = pinrail_param_find(name, &info) == PINRAIL_SUCCESS;
  (void)pinrail_finalize();
  return has;
}

class Trials {
 public:
  Trials(const perf::Options& options, Advised* advised) : options_(options), advised_(advised) {}

  perf::Result run() {
    perf::Result ran = add({"as it is set", {}, 0, {}}, &advised_->settings);
    for (const Candidate& each : candidates()) {
      tools::Pairs wanted = each.wanted;
      wanted.erase(std::remove_if(wanted.begin(), wanted.end(),
                                  [](const auto& pair) { return !has_parameter(pair.first.c_str()); }),
                   wanted.end());
      const bool is_new = advised_->settings.size() < 2 || !wanted.empty();
      if (ran.ok() && is_new) ran = add({each.name, wanted, 0, {}}, &advised_->settings);
    }
    return ran.ok() ? run_limits() : ran;
  }

 private:
  // Fractions of what was registered at most where no limit was in the way.
  perf::Result run_limits() {
    const uint64_t peak = most_registered(*advised_);
    perf::Result ran = perf::Result::good();
    for (const uint64_t share : {16, 8, 4, 2, 1}) {
      const uint64_t limit = std::max<uint64_t>(perf::round_up(peak / share, perf::page_size()), perf::page_size());
      if (!advised_->limits.empty() && advised_->limits.back().limit == limit) continue;
      if (ran.ok()) ran = add({perf::size_text(limit), {}, limit, {}}, &advised_->limits);
    }
    return ran;
  }

  perf::Result add(Trial trial, std::vector<Trial>* to) {
    perf::Options options = options_;
    options.mca.insert(options.mca.begin(), advised_->recorded.begin(), advised_->recorded.end());
    options.mca.insert(options.mca.end(), trial.wanted.begin(), trial.wanted.end());
    if (trial.limit != 0) options.limit = trial.limit;
    perf::PoolFacts pool;
    perf::Result ran = perf::replay_trace(options, advised_->trace, &pool, &trial.figures);
    if (!ran.ok()) return ran;
    if (pool.pool != "grdma")
      return perf::Result::bad("advice is about pools grdma, and here the pool is " + pool.pool);
    if (trial.figures.errors != 0)
      return perf::Result::bad(perf::text("%" PRIu64 " errors in its replay (%s): its figures are worth nothing",
                                          trial.figures.errors, trial.name.c_str()));
    if (advised_->settings.empty()) advised_->pool = pool;
    to->push_back(std::move(trial));
    return perf::Result::good();
  }

  const perf::Options& options_;
  Advised* const advised_;
};

}  // namespace

uint64_t most_registered(const Advised& advised) {
  const auto at = std::find_if(advised.settings.begin(), advised.settings.end(),
                               [](const Trial& trial) { return trial.name == kNoLimit; });
  const Trial& unlimited = at == advised.settings.end() ? advised.settings[0] : *at;
  return unlimited.figures.stats.peak_registered_bytes;
}

perf::Result try_all(const perf::Options& options, const std::string& file, Advised* advised_out) {
  advised_out->file = file;
  perf::Result done = perf::read_trace(file, &advised_out->trace);
  if (!done.ok()) return done;
  advised_out->program = advised_out->trace.program;
  advised_out->recorded = recorded_settings(advised_out->trace);
  // First, because it refuses a trace that names more memory than there is.
  done = Trials(options, advised_out).run();
  if (!done.ok()) return perf::Result::bad("trace " + file + ": " + done.why());
  advised_out->study = study(advised_out->trace, perf::page_size());
  return done;
}

}  // namespace pinrail::advise
