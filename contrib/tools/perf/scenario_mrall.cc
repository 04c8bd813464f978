// SPDX-License-Identifier: BSD-3-Clause
// scenario_mrall.cc - eight threads map, remap and unmap memory; the device reads and writes what they have mapped,
// through registrations that none of them asked for. Then what is registered is compared with what is mapped.
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ;
constexpr uint32_t kWrite = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | kRead;
constexpr size_t kMostPages = 64;
constexpr unsigned kThreads = 8;
constexpr uint64_t kLeastLooks = 25;  // of each thread, however slow the machine

// Random bytes, in memory and in a file. Each mapping has those from some page on.
class Contents {
 public:
  Contents() : bytes_(2 * kMostPages * page_size()), file_(memfd_create("pinrail_perf", MFD_CLOEXEC)) {
    std::mt19937 random(1);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    if (file_ < 0) return;
    const ssize_t written = write(file_, bytes_.data(), bytes_.size());
    if (written == static_cast<ssize_t>(bytes_.size())) return;
    close(file_);
    file_ = -1;
  }
  ~Contents() {
    if (file_ >= 0) close(file_);
  }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  const char* from(size_t page) const { return bytes_.data() + page * page_size(); }
  // A mapping that may only be read; MAP_FAILED if there is none.
  void* map_read_only(size_t page, size_t length) const {
    return mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file_, static_cast<off_t>(page * page_size()));
  }

 private:
  std::vector<char> bytes_;
  int file_;
};

struct Mapped {
  char* at;
  size_t length;
  size_t page;  // from which its contents are
  bool is_read_only;
};

// What the threads counted.
struct Counts {
  uint64_t looks = 0, missing = 0, failed = 0, verified = 0, wrong = 0, writable = 0;
  std::vector<double> waits_us;

  void add(const Counts& other) {
    looks += other.looks;
    missing += other.missing;
    failed += other.failed;
    verified += other.verified;
    wrong += other.wrong;
    writable += other.writable;
    waits_us.insert(waits_us.end(), other.waits_us.begin(), other.waits_us.end());
  }
};

// What the registrar can do.
struct Abilities {
  bool moves_bytes;
  bool takes_read_only;
};

class Mapper {
 public:
  Mapper(pinrail_mpool_t* pool, const Contents& contents, Abilities abilities, unsigned seed)
      : pool_(pool), contents_(contents), abilities_(abilities), random_(seed), seen_(kMostPages * page_size()) {}

  void run(Clock::time_point end) {
    while (Clock::now() < end || counts.looks < kLeastLooks) {
      change();
      look();
    }
    for (const Mapped& one : live_) munmap(one.at, one.length);
  }

  Counts counts;

 private:
  size_t any_length() { return (1 + random_() % kMostPages) * page_size(); }

  void change() {
    const unsigned what = live_.empty() ? 0 : random_() % 4;
    if (what == 0 && live_.size() < 16) return map();
    Mapped& one = live_[random_() % live_.size()];
    if (what == 1) {
      remap(&one);
    } else if (what == 2 && !one.is_read_only) {
      constexpr int kInPlace = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
      if (mmap(one.at, one.length, PROT_READ | PROT_WRITE, kInPlace, -1, 0) != MAP_FAILED) fill(&one);
    } else {
      munmap(one.at, one.length);
      one = live_.back();
      live_.pop_back();
    }
  }

  void map() {
    Mapped one = {nullptr, any_length(), random_() % kMostPages, abilities_.takes_read_only && random_() % 4 == 0};
    void* const at = one.is_read_only
                         ? contents_.map_read_only(one.page, one.length)
                         : mmap(nullptr, one.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    one.at = static_cast<char*>(at);
    if (!one.is_read_only) fill(&one);
    live_.push_back(one);
  }

  void remap(Mapped* one) {
    const size_t length = any_length();
    void* const at = mremap(one->at, one->length, length, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) return;
    one->at = static_cast<char*>(at);
    one->length = length;
    if (!one->is_read_only) fill(one);
  }

  void fill(Mapped* one) {
    one->page = random_() % kMostPages;
    std::memcpy(one->at, contents_.from(one->page), one->length);
  }

  // From any live address.
  void look() {
    if (live_.empty()) return;
    const Mapped& one = live_[random_() % live_.size()];
    const size_t offset = random_() % one.length, length = 1 + random_() % (one.length - offset);
    pinrail_handle_t handle;
    const auto began = Clock::now();
    ++counts.looks;
    if (pinrail_mpool_find(pool_, one.at + offset, length, one.is_read_only ? kRead : kWrite, &handle) !=
        PINRAIL_SUCCESS) {
      ++counts.missing;
      return;
    }
    counts.waits_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    if (abilities_.moves_bytes) move(one, offset, length, handle);
    pinrail_mpool_deregister(handle);
  }

  void move(const Mapped& one, size_t offset, size_t length, pinrail_handle_t handle) {
    const size_t place = reinterpret_cast<uintptr_t>(one.at) + offset - reinterpret_cast<uintptr_t>(handle.reg->base);
    const char* const expected = contents_.from(one.page) + offset;
    expect(pinrail_mpool_device_read(handle, place, seen_.data(), length), seen_.data(), expected, length);
    if (one.is_read_only) {
      const bool is_refused = pinrail_mpool_device_write(handle, place, expected, length) != PINRAIL_SUCCESS;
      if (handle.reg->rights != kRead || !is_refused) ++counts.writable;
      return;
    }
    std::memset(one.at + offset, 0, length);
    // Beside these bytes nothing may have changed, either.
    expect(pinrail_mpool_device_write(handle, place, expected, length), one.at, contents_.from(one.page), one.length);
  }

  void expect(pinrail_status_t status, const char* seen, const char* expected, size_t length) {
    if (status != PINRAIL_SUCCESS) {
      ++counts.failed;
      return;
    }
    counts.verified += length;
    if (std::memcmp(seen, expected, length) == 0) return;
    for (size_t i = 0; i < length; ++i) counts.wrong += seen[i] != expected[i] ? 1 : 0;
  }

  pinrail_mpool_t* const pool_;
  const Contents& contents_;
  const Abilities abilities_;
  std::mt19937 random_;
  std::vector<Mapped> live_;
  std::vector<char> seen_;
};

bool moves_bytes(pinrail_mpool_t* pool, void* at, size_t length) {
  pinrail_handle_t handle;
  char seen = 0;
  if (pinrail_mpool_find(pool, at, length, kWrite, &handle) != PINRAIL_SUCCESS) return false;
  const auto place = static_cast<size_t>(static_cast<char*>(at) - static_cast<char*>(handle.reg->base));
  const bool moves = pinrail_mpool_device_read(handle, place, &seen, 1) == PINRAIL_SUCCESS;
  return pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS && moves;
}

bool is_registered(pinrail_mpool_t* pool, const void* at, size_t length) {
  pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
  return pinrail_mpool_progress(pool) == PINRAIL_SUCCESS &&
         pinrail_mpool_query(pool, at, length, kRead, &pinned, nullptr, 0, nullptr) == PINRAIL_SUCCESS &&
         pinned == PINRAIL_PINNED_WHOLLY;
}

Abilities abilities_of(pinrail_mpool_t* pool, const Contents& contents) {
  const size_t length = page_size();
  void* const own = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const read_only = contents.map_read_only(0, length);
  const Abilities abilities = {own != MAP_FAILED && moves_bytes(pool, own, length),
                               read_only != MAP_FAILED && is_registered(pool, read_only, length)};
  if (own != MAP_FAILED) munmap(own, length);
  if (read_only != MAP_FAILED) munmap(read_only, length);
  return abilities;
}

Counts run_mappers(const Session& session, Abilities abilities, const Contents& contents) {
  const auto end = Clock::now() + std::chrono::seconds(2);
  std::vector<Mapper> mappers;
  mappers.reserve(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) mappers.emplace_back(session.pool(), contents, abilities, i);
  std::vector<std::thread> team;
  team.reserve(kThreads);
  for (Mapper& mapper : mappers) team.push_back(start_thread([&mapper, end] { mapper.run(end); }));
  for (std::thread& thread : team) thread.join();
  Counts counts;
  for (const Mapper& mapper : mappers) counts.add(mapper.counts);
  std::sort(counts.waits_us.begin(), counts.waits_us.end());
  return counts;
}

// Bytes that the mappings permit to be registered; the tool's own reading, not the pool's.
uint64_t registrable_bytes() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long base = 0, end = 0;
    char rights[5] = "";
    // NOLINTNEXTLINE(cert-err34-c): the kernel wrote it
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &base, &end, rights) != 3 || rights[0] != 'r') continue;
    const bool is_kernels = line.find(" [v") != std::string::npos || line.find(" anon_inode:") != std::string::npos;
    const bool is_devices = line.find(" /dev/") != std::string::npos && line.find(" /dev/shm/") == std::string::npos &&
                            line.find(" /dev/zero") == std::string::npos;
    if (!is_kernels && !is_devices) bytes += end - base;
  }
  return bytes;
}

uint64_t refused_bytes(pinrail_mpool_t* pool) {
  std::vector<pinrail_left_out_t> entries(65536);
  size_t count = 0;
  if (pinrail_mpool_left_out(pool, entries.data(), entries.size(), &count) != PINRAIL_SUCCESS) return 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < std::min(count, entries.size()); ++i) {
    if (entries[i].reason >= PINRAIL_LEFT_OUT_UNSEEN) bytes += entries[i].length;
  }
  return bytes;
}

// Registered bytes and refused ones, less registrable ones, at a moment when nothing changes.
double difference(const Session& session, double* registered_out, double* refused_out) {
  double least = 1e18;
  for (int i = 0; i < 50 && least > 0; ++i) {
    (void)pinrail_mpool_progress(session.pool());
    const uint64_t refused = refused_bytes(session.pool()), registered = session.stats().pinned_bytes;
    const double now = static_cast<double>(registered + refused) - static_cast<double>(registrable_bytes());
    if ((now < 0 ? -now : now) >= least) continue;
    least = now < 0 ? -now : now;
    *registered_out = static_cast<double>(registered);
    *refused_out = static_cast<double>(refused);
  }
  return least;
}

void add_transfers(const Counts& counts, Abilities abilities, Figures* figures) {
  if (!abilities.moves_bytes) return figures->leave_out("transfers", "the registrar moves no bytes");
  figures->add("moved by the device, and compared", counts.verified, "bytes", Bound::at_least, 1);
  figures->add("  of these, wrong", counts.wrong, "bytes", Bound::at_most, 0);
  figures->add("  transfers that failed", counts.failed, "calls", Bound::at_most, 0);
  if (!abilities.takes_read_only) return figures->leave_out("read-only memory", "the registrar refuses it");
  figures->add("read-only memory that a device could write", counts.writable, "calls", Bound::at_most, 0);
}

}  // namespace

Result run_mrall(const Options& /*options*/, const Session& session, Figures* figures) {
  if (std::strcmp(session.pool_name(), "mrall") != 0) return Result::bad("it needs the pool mrall");
  const Contents contents;
  const Abilities abilities = abilities_of(session.pool(), contents);
  const Counts counts = run_mappers(session, abilities, contents);
  const std::vector<double>& waits = counts.waits_us;
  if (waits.empty()) return Result::bad("nothing was found");
  double registered = 0, refused = 0;
  const double differs = difference(session, &registered, &refused);
  figures->add("threads", kThreads, "");
  figures->add("finds in live memory", counts.looks, "calls", Bound::at_least, kThreads * kLeastLooks);
  figures->add("of these, not found", counts.missing, "calls", Bound::at_most, 0);
  figures->add("a find, median", waits[waits.size() / 2], "us");
  figures->add("a find, 99 of 100", waits[waits.size() * 99 / 100], "us");
  add_transfers(counts, abilities, figures);
  figures->add("registered", registered, "bytes");
  figures->add("refused by the registrar, a monitor or a limit", refused, "bytes");
  figures->add("registered + refused - what maps permit", differs, "bytes", Bound::at_most, 0);
  return Result::good();
}

}  // namespace pinrail::perf
