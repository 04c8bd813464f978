// SPDX-License-Identifier: BSD-3-Clause
// scenario.cc - the list of scenarios, how their figures are printed, and the scenarios chunks and odp.
#include "contrib/tools/perf/scenario.h"

#include <pinrail/pin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <vector>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/program.h"
#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

struct Scenario {
  const char* name;
  Result (*run)(const Options& options, const Session& session, Figures* figures_out);
  const char* pool;
};

constexpr Scenario kScenarios[] = {{"prepin", run_prepin, ""},    {"terabyte", run_terabyte, ""},
                                   {"chunks", run_chunks, ""},    {"alloc", run_alloc, ""},
                                   {"mrall", run_mrall, "mrall"}, {"odp", run_odp, "odp"}};

const char* words(Bound bound) {
  switch (bound) {
    case Bound::at_most: return "at most";
    case Bound::at_least: return "at least";
    case Bound::exactly: return "exactly";
    case Bound::none: break;
  }
  return "";
}

void print_json(const Options& options, const Session& session, const Figures& figures) {
  tools::Json json = {{"scenario", options.scenario},
                      {"pool", session.pool_name()},
                      {"registrar", session.registrar_name()},
                      {"reached", figures.are_reached()}};
  json["figures"] = tools::Json::array();
  for (const Figure& figure : figures.all()) {
    tools::Json each = {{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
    if (figure.bound != Bound::none) {
      each["bound"] = words(figure.bound);
      each["limit"] = figure.limit;
      each["reached"] = figure.is_reached();
    }
    json["figures"].push_back(each);
  }
  json["left_out"] = tools::Json::array();
  for (const auto& [name, why] : figures.left_out()) json["left_out"].push_back({{"name", name}, {"why", why}});
  tools::print(json, std::cout);
}

}  // namespace

bool Figure::is_reached() const {
  switch (bound) {
    case Bound::at_most: return value <= limit;
    case Bound::at_least: return value >= limit;
    case Bound::exactly: return value == limit;
    case Bound::none: break;
  }
  return true;
}

void Figures::leave_out(const std::string& name, const std::string& why) { left_out_.emplace_back(name, why); }

bool Figures::are_reached() const {
  return std::all_of(figures_.begin(), figures_.end(), [](const Figure& figure) { return figure.is_reached(); });
}

std::string scenario_names() {
  std::string names;
  for (const Scenario& scenario : kScenarios) names += (names.empty() ? "" : ", ") + std::string(scenario.name);
  return names;
}

bool is_scenario(const std::string& name) {
  return std::any_of(std::begin(kScenarios), std::end(kScenarios),
                     [&](const Scenario& each) { return name == each.name; });
}

std::string pool_of_scenario(const std::string& name) {
  for (const Scenario& scenario : kScenarios) {
    if (name == scenario.name) return scenario.pool;
  }
  return "";
}

Result run_scenario(const Options& options, const Session& session, Figures* figures_out) {
  for (const Scenario& scenario : kScenarios) {
    if (options.scenario == scenario.name) return scenario.run(options, session, figures_out);
  }
  return Result::bad("no such scenario: " + options.scenario);
}

void print_scenario(const Options& options, const Session& session, const Figures& figures) {
  if (options.json) {
    print_json(options, session, figures);
    return;
  }
  printf("scenario %s, pool %s, registrar %s\n", options.scenario.c_str(), session.pool_name(),
         session.registrar_name());
  for (const Figure& figure : figures.all()) {
    printf("  %-52s %12.4g %-8s", figure.name.c_str(), figure.value, figure.unit.c_str());
    if (figure.bound != Bound::none) {
      printf(" %s %g: %s", words(figure.bound), figure.limit, figure.is_reached() ? "reached" : "NOT REACHED");
    }
    printf("\n");
  }
  for (const auto& [name, why] : figures.left_out()) printf("  %-52s not measured: %s\n", name.c_str(), why.c_str());
}

Result failed(const char* call, pinrail_status_t status) {
  return Result::bad(text("%s: %s", call, pinrail_status_name(status)));
}

double ms_since(uint64_t began_ns) { return static_cast<double>(now_ns() - began_ns) * 1e-6; }

Result unpin(const Session& session, const std::vector<pinrail_range_t>& ranges) {
  const pinrail_status_t status =
      pinrail_mpool_unpin(session.pool(), ranges.data(), ranges.size(), PINRAIL_ACCESS_LOCAL_WRITE);
  return status == PINRAIL_SUCCESS ? Result::good() : failed("pinrail_mpool_unpin", status);
}

FreshMemory::FreshMemory(size_t bytes)
    : bytes_(bytes),
      at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (at_ == MAP_FAILED) {
    at_ = nullptr;
    return;
  }
  madvise(at_, bytes, MADV_NOHUGEPAGE);
}

FreshMemory::~FreshMemory() {
  if (at_ == nullptr) return;
  pinrail_monitor_report(at_, bytes_);
  munmap(at_, bytes_);
}

// A large buffer whose registrations are handed out piece by piece: the first one comes long
// before the whole would, few are held at a time, and stopping half way leaves nothing.

namespace {

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE;
constexpr uint32_t kAhead = 4;
constexpr size_t kChunk = size_t{2} << 20;

struct Run {
  double first_ms = 0;  // until the first piece is there
  double total_ms = 0;
  size_t pieces = 0;
  size_t covered = 0;      // bytes
  uint64_t most_held = 0;  // registered bytes, at most
};

// Takes up to so many pieces, and deregisters each at once.
Result take(const Session& session, const FreshMemory& memory, size_t most, Run* run_out) {
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = kChunk;
  options.ahead = kAhead;
  options.flags = PINRAIL_FLAG_PERSISTENT;  // deregistered with its last reference: what is held can be counted
  const uint64_t before = session.stats().registered_bytes;
  const uint64_t began = now_ns();
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_status_t status =
      pinrail_chunk_stream_open(session.pool(), memory.at(), memory.bytes(), kAccess, &options, &stream);
  if (status != PINRAIL_SUCCESS) return failed("opening a stream", status);
  Run run;
  while (run.pieces < most) {
    pinrail_handle_t handle;
    size_t length = 0;
    status = pinrail_chunk_stream_next(stream, &handle, nullptr, &length);
    if (status != PINRAIL_SUCCESS) break;
    if (run.pieces++ == 0) run.first_ms = ms_since(began);
    run.covered += length;
    run.most_held = std::max(run.most_held, session.stats().registered_bytes - before);
    status = pinrail_mpool_deregister(handle);
    if (status != PINRAIL_SUCCESS) break;
  }
  run.total_ms = ms_since(began);
  (void)pinrail_chunk_stream_close(stream);
  if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_NOT_FOUND) {
    return failed("a piece", status);
  }
  *run_out = run;
  return Result::good();
}

Result register_whole(const Session& session, const FreshMemory& memory, double* ms_out) {
  const uint64_t began = now_ns();
  pinrail_handle_t handle;
  const pinrail_status_t status =
      pinrail_mpool_register(session.pool(), memory.at(), memory.bytes(), kAccess, PINRAIL_FLAG_PERSISTENT, &handle);
  if (status != PINRAIL_SUCCESS) return failed("the whole buffer", status);
  *ms_out = ms_since(began);
  (void)pinrail_mpool_deregister(handle);
  return Result::good();
}

}  // namespace

Result run_chunks(const Options& options, const Session& session, Figures* figures_out) {
  const size_t bytes = options.sizes_given ? std::max(options.sizes.front(), 16 * kChunk) : size_t{256} << 20;
  const FreshMemory whole_memory(bytes), memory(bytes), half(bytes);
  if (!whole_memory.is_mapped() || !memory.is_mapped() || !half.is_mapped()) return Result::bad("no memory");
  double whole_ms = 0;
  Result result = register_whole(session, whole_memory, &whole_ms);
  Run run;
  if (result.ok()) result = take(session, memory, SIZE_MAX, &run);
  if (!result.ok()) return result;
  if (options.sizes_given && options.sizes.front() < bytes)
    figures_out->leave_out(size_text(options.sizes.front()), "a buffer has at least 16 pieces of 2 MiB");
  const std::string size = size_text(bytes);
  figures_out->add("the whole buffer as one registration, " + size, whole_ms, "ms");
  figures_out->add("all pieces, " + std::to_string(kAhead) + " ahead", run.total_ms, "ms");
  figures_out->add("the first piece", run.first_ms, "ms");
  figures_out->add("the first piece / the whole buffer", run.first_ms / whole_ms, "times", Bound::at_most, 0.5);
  figures_out->add("bytes in pieces / bytes of the buffer",
                   static_cast<double>(run.covered) / static_cast<double>(bytes), "times", Bound::exactly, 1);
  figures_out->add("registered at a time, at most", static_cast<double>(run.most_held) / kChunk, "pieces",
                   Bound::at_most, kAhead + 2);
  const uint64_t before = session.stats().registered_bytes;
  result = take(session, half, 5, &run);
  figures_out->add("registered after a stop half way", session.stats().registered_bytes - before, "bytes",
                   Bound::exactly, 0);
  return result;
}

namespace {

constexpr size_t kPiece = size_t{1} << 20;   // of one registration
constexpr size_t kBlock = size_t{64} << 10;  // of one operation
constexpr size_t kSmallest = size_t{64} << 20;
constexpr uint32_t kOdpAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_REMOTE_READ;

struct Tally {
  uint64_t verified = 0, wrong = 0, failed = 0;
};

void fill(std::vector<unsigned char>* bytes, uint64_t number, unsigned seed) {
  uint64_t state = number * 0x9e3779b97f4a7c15ULL + seed;
  for (size_t i = 0; i < bytes->size(); i += sizeof(state)) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(bytes->data() + i, &state, sizeof(state));
  }
}

uint64_t differences(const unsigned char* a, const unsigned char* b, size_t length) {
  if (std::memcmp(a, b, length) == 0) return 0;
  uint64_t count = 0;
  for (size_t i = 0; i < length; ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// A working set that the device reads and writes block by block through one pool.
class WorkingSet {
 public:
  WorkingSet(pinrail_mpool_t* pool, FreshMemory* memory, unsigned seed)
      : pool_(pool), memory_(memory), seed_(seed), block_(kBlock), seen_(kBlock) {}

  // The device writes everything, and the processor compares; then the device reads everything, and it is compared.
  Tally run() {
    for_each_piece([this](pinrail_handle_t handle, size_t offset) { write_piece(handle, offset); });
    for_each_piece([this](pinrail_handle_t handle, size_t offset) { read_piece(handle, offset); });
    return tally_;
  }

  // The processor writes the first piece anew, and the device reads it through the registration that there is.
  void read_again(pinrail_handle_t handle) {
    ++seed_;
    for (size_t at = 0; at < kPiece; at += kBlock) {
      fill(&block_, at / kBlock, seed_);
      std::memcpy(memory_->at(at), block_.data(), kBlock);
    }
    read_piece(handle, 0);
  }
  const Tally& tally() const { return tally_; }

 private:
  template <typename Use>
  void for_each_piece(Use&& use) {
    for (size_t offset = 0; offset < memory_->bytes(); offset += kPiece) {
      pinrail_handle_t handle;
      if (pinrail_mpool_register(pool_, memory_->at(offset), kPiece, kOdpAccess, 0, &handle) != PINRAIL_SUCCESS) {
        ++tally_.failed;
        continue;
      }
      use(handle, offset);
      pinrail_mpool_deregister(handle);
    }
  }

  size_t place_of(pinrail_handle_t handle, size_t offset) const {
    return reinterpret_cast<uintptr_t>(memory_->at(offset)) - reinterpret_cast<uintptr_t>(handle.reg->base);
  }

  void write_piece(pinrail_handle_t handle, size_t offset) {
    for (size_t at = offset; at < offset + kPiece; at += kBlock) {
      fill(&block_, at / kBlock, seed_);
      if (pinrail_mpool_device_write(handle, place_of(handle, at), block_.data(), kBlock) != PINRAIL_SUCCESS) {
        ++tally_.failed;
        continue;
      }
      count(reinterpret_cast<const unsigned char*>(memory_->at(at)));
    }
  }

  void read_piece(pinrail_handle_t handle, size_t offset) {
    for (size_t at = offset; at < offset + kPiece; at += kBlock) {
      fill(&block_, at / kBlock, seed_);
      if (pinrail_mpool_device_read(handle, place_of(handle, at), seen_.data(), kBlock) != PINRAIL_SUCCESS) {
        ++tally_.failed;
        continue;
      }
      count(seen_.data());
    }
  }

  void count(const unsigned char* bytes) {
    tally_.wrong += differences(bytes, block_.data(), kBlock);
    tally_.verified += kBlock;
  }

  pinrail_mpool_t* const pool_;
  FreshMemory* const memory_;
  unsigned seed_;
  std::vector<unsigned char> block_, seen_;
  Tally tally_;
};

// Four times what may be pinned, or what --size says.
size_t working_set(const Options& options) {
  if (options.sizes_given) return round_up(options.sizes.front(), kPiece);
  const uint64_t limit = memlock_limit();
  return limit > kSmallest ? kSmallest : round_up(std::max<uint64_t>(4 * limit, kPiece), kPiece);
}

void add_figures(const char* how, const Tally& tally, const pinrail_mpool_stats_t& stats, Figures* figures) {
  figures->add(text("%s: verified", how), tally.verified, "bytes", Bound::at_least, 1);
  figures->add(text("%s: wrong", how), tally.wrong, "bytes", Bound::exactly, 0);
  figures->add(text("%s: failed calls", how), tally.failed, "calls", Bound::exactly, 0);
  figures->add(text("%s: hits", how), stats.hits, "calls");
  figures->add(text("%s: misses", how), stats.misses, "calls");
  figures->add(text("%s: evictions", how), stats.evictions, "calls");
  figures->add(text("%s: most registered", how), stats.peak_registered_bytes, "bytes");
}

// The memory of the first piece is replaced under its registration; no call tells the pool.
void map_anew(const Session& session, FreshMemory* memory, WorkingSet* set, Figures* figures) {
  const uint64_t misses = session.stats().misses;
  const Tally before = set->tally();
  pinrail_handle_t handle;
  if (pinrail_mpool_register(session.pool(), memory->at(), kPiece, kOdpAccess, 0, &handle) != PINRAIL_SUCCESS) return;
  munmap(memory->at(), kPiece);
  void* const again = mmap(memory->at(), kPiece, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (again != MAP_FAILED) set->read_again(handle);
  pinrail_mpool_deregister(handle);
  const Tally& after = set->tally();
  figures->add("mapped anew: verified", after.verified - before.verified, "bytes", Bound::exactly, kPiece);
  figures->add("mapped anew: wrong", after.wrong - before.wrong, "bytes", Bound::exactly, 0);
  figures->add("mapped anew: registrations", session.stats().misses - misses, "calls", Bound::exactly, 0);
}

Result run_pinned(const Session& session, FreshMemory* memory, bool must_evict, Figures* figures) {
  const pinrail_registrar_choice_t choice = {session.registrar_name(), nullptr, nullptr};
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  pinrail_mpool_t* pool;
  const pinrail_status_t status = pinrail_mpool_create("grdma", &choice, nullptr, &options, &pool);
  if (status != PINRAIL_SUCCESS) return failed("a pool grdma", status);
  const Tally tally = WorkingSet(pool, memory, 7).run();
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  (void)pinrail_mpool_read_stats(pool, &stats);
  add_figures("pinned", tally, stats, figures);
  if (must_evict) {
    figures->add("pinned: evictions under the limit", stats.evictions, "calls", Bound::at_least, 1);
  }
  return pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS ? Result::good() : Result::bad("destroying the pool grdma");
}

}  // namespace

Result run_odp(const Options& options, const Session& session, Figures* figures) {
  if (std::strcmp(session.pool_name(), "odp") != 0) return Result::bad("it needs the pool odp");
  FreshMemory memory(working_set(options));
  if (!memory.is_mapped()) return Result::bad("no memory can be mapped");
  const uint64_t limit = memlock_limit();
  figures->add("working set", memory.bytes(), "bytes");
  if (limit != UINT64_MAX) figures->add("limit of pinned memory", limit, "bytes");
  WorkingSet set(session.pool(), &memory, 1);
  const Tally tally = set.run();
  add_figures("on demand", tally, session.stats(), figures);
  figures->add("on demand: pinned", session.stats().pinned_bytes, "bytes", Bound::exactly, 0);
  map_anew(session, &memory, &set, figures);
  const pinrail_status_t advised =
      pinrail_mpool_advise(session.pool(), memory.at(), kPiece, kOdpAccess, PINRAIL_ADVICE_PREFETCH);
  if (advised != PINRAIL_SUCCESS) figures->leave_out("advice (prefetch)", pinrail_status_name(advised));
  return run_pinned(session, &memory, memory.bytes() > limit, figures);
}

}  // namespace pinrail::perf
