// SPDX-License-Identifier: BSD-3-Clause
// scenario_odp.cc - a working set that is larger than what may be pinned is written and read by the device: through
// registrations on demand, and through pinned ones that are evicted. All bytes are compared.
#include <pinrail/pin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

constexpr size_t kPiece = size_t{1} << 20;   // of one registration
constexpr size_t kBlock = size_t{64} << 10;  // of one operation
constexpr size_t kSmallest = size_t{64} << 20;
constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_REMOTE_READ;

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
      if (pinrail_mpool_register(pool_, memory_->at(offset), kPiece, kAccess, 0, &handle) != PINRAIL_SUCCESS) {
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
  if (pinrail_mpool_register(session.pool(), memory->at(), kPiece, kAccess, 0, &handle) != PINRAIL_SUCCESS) return;
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
      pinrail_mpool_advise(session.pool(), memory.at(), kPiece, kAccess, PINRAIL_ADVICE_PREFETCH);
  if (advised != PINRAIL_SUCCESS) figures->leave_out("advice (prefetch)", pinrail_status_name(advised));
  return run_pinned(session, &memory, memory.bytes() > limit, figures);
}

}  // namespace pinrail::perf
