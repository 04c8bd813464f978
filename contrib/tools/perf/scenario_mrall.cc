// SPDX-License-Identifier: BSD-3-Clause
// scenario_mrall.cc - eight threads map, remap and unmap memory and look for it; then what is registered is compared
// with what is mapped.
#include <pinrail/listing.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "contrib/tools/perf/process.h"
#include "contrib/tools/perf/scenario.h"
#include "contrib/tools/perf/text.h"

namespace pinrail::perf {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE;

struct Mapped {
  char* at;
  size_t length;
};

class Mapper {
 public:
  Mapper(pinrail_mpool_t* pool, unsigned seed) : pool_(pool), random_(seed) {}

  void run(Clock::time_point end) {
    while (Clock::now() < end) {
      change();
      look();
    }
    for (const Mapped& one : live_) munmap(one.at, one.length);
  }

  uint64_t looks = 0, missing = 0;
  std::vector<double> waits_us;

 private:
  size_t any_length() { return (1 + random_() % 64) * page_size(); }

  void change() {
    const unsigned what = live_.empty() ? 0 : random_() % 4;
    const size_t length = any_length();
    if (what == 0 && live_.size() < 16) {
      void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at != MAP_FAILED) live_.push_back({static_cast<char*>(at), length});
      return;
    }
    Mapped& one = live_[random_() % live_.size()];
    if (what == 1) {
      void* const at = mremap(one.at, one.length, length, MREMAP_MAYMOVE);
      if (at != MAP_FAILED) one = {static_cast<char*>(at), length};
    } else if (what == 2) {
      mmap(one.at, one.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    } else {
      munmap(one.at, one.length);
      one = live_.back();
      live_.pop_back();
    }
  }

  void look() {
    if (live_.empty()) return;
    const Mapped& one = live_[random_() % live_.size()];
    pinrail_handle_t handle;
    const auto began = Clock::now();
    ++looks;
    if (pinrail_mpool_find(pool_, one.at, one.length, kAccess, &handle) != PINRAIL_SUCCESS) {
      ++missing;
      return;
    }
    waits_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    pinrail_mpool_deregister(handle);
  }

  pinrail_mpool_t* const pool_;
  std::mt19937 random_;
  std::vector<Mapped> live_;
};

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

}  // namespace

Result run_mrall(const Options& /*options*/, const Session& session, Figures* figures) {
  if (std::strcmp(session.pool_name(), "mrall") != 0) return Result::bad("it needs the pool mrall");
  constexpr unsigned threads = 8;
  const auto end = Clock::now() + std::chrono::seconds(2);
  std::vector<Mapper> mappers;
  for (unsigned i = 0; i < threads; ++i) mappers.emplace_back(session.pool(), i);
  std::vector<std::thread> team;
  for (Mapper& mapper : mappers) team.emplace_back([&mapper, end] { mapper.run(end); });
  for (std::thread& thread : team) thread.join();
  uint64_t looks = 0, missing = 0;
  std::vector<double> waits;
  for (const Mapper& mapper : mappers) {
    looks += mapper.looks;
    missing += mapper.missing;
    waits.insert(waits.end(), mapper.waits_us.begin(), mapper.waits_us.end());
  }
  if (waits.empty()) return Result::bad("nothing was found");
  std::sort(waits.begin(), waits.end());
  double registered = 0, refused = 0;
  const double differs = difference(session, &registered, &refused);
  figures->add("threads", threads, "");
  figures->add("finds in live memory", static_cast<double>(looks), "calls", Bound::at_least, 1000);
  figures->add("of these, not found", static_cast<double>(missing), "calls", Bound::at_most, 0);
  figures->add("a find, median", waits[waits.size() / 2], "us");
  figures->add("a find, 99 of 100", waits[waits.size() * 99 / 100], "us");
  figures->add("registered", registered, "bytes");
  figures->add("refused by the registrar, a monitor or a limit", refused, "bytes");
  figures->add("registered + refused - what maps permit", differs, "bytes", Bound::at_most, 0);
  return Result::good();
}

}  // namespace pinrail::perf
