// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/top/top.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace pinrail::top {
namespace {

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

// The numbers that are names in the folder.
std::vector<int> numbers_in(const std::string& path) {
  std::vector<int> numbers;
  const Folder folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return numbers;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this function's own.
  while (const dirent* entry = readdir(folder.get())) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == 0) numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

bool is_own(int pid) {
  struct stat about {};
  return stat(("/proc/" + std::to_string(pid)).c_str(), &about) == 0 && about.st_uid == geteuid();
}

// The text with something else in place of what could control a terminal, or is no text elsewhere.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return text;
}

std::string command_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string command;
  std::getline(file, command);
  return printable(std::move(command));
}

// A text of another process: up to the first 0.
template <size_t N>
std::string text_of(const char (&text)[N]) {
  return printable({text, strnlen(text, N)});
}

// A mapping of the file for reading; ends with the object.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return;
    map(file);
    close(file);
  }
  ~Mapped() {
    if (figures != nullptr) munmap(const_cast<pinrail_figures_t*>(figures), bytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const pinrail_figures_t* figures = nullptr;  // NULL: it is no such file
  size_t bytes = 0;
  uint64_t inode = 0;

 private:
  // Without the seal the process could shorten the file, which would end this one.
  void map(int file) {
    struct stat about {};
    const int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &about) != 0) return;
    if (static_cast<uint64_t>(about.st_size) < sizeof(pinrail_figures_t)) return;
    bytes = static_cast<size_t>(about.st_size);
    inode = about.st_ino;
    void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) figures = static_cast<const pinrail_figures_t*>(memory);
  }
};

bool lies_within(uint64_t bytes, uint64_t offset, uint64_t count, uint64_t stride) {
  return offset % 8 == 0 && stride % 8 == 0 && offset <= bytes && (stride == 0 || count <= (bytes - offset) / stride);
}

// top/V1, of a copy that does not change any more.
bool is_sound(const pinrail_figures_t& head, size_t bytes) {
  const bool is_ring = (head.ring_count & (head.ring_count - 1)) == 0;
  return head.magic == PINRAIL_FIGURES_MAGIC && head.version == PINRAIL_FIGURES_VERSION && is_ring &&
         lies_within(bytes, head.counts_offset, head.counts_count, sizeof(pinrail_figures_counts_t)) &&
         lies_within(bytes, head.ring_offset, head.ring_count, sizeof(pinrail_figures_event_t));
}

uint64_t load(const void* at) { return __atomic_load_n(static_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE); }

void add_counts(const char* at, uint32_t lines, pinrail_figures_counts_t* counts_inout) {
  auto* const sums = reinterpret_cast<uint64_t*>(counts_inout);
  constexpr size_t kWords = sizeof(*counts_inout) / sizeof(uint64_t);
  for (size_t i = 0; i < lines * kWords; ++i) sums[i % kWords] += load(at + i * sizeof(uint64_t));
}

std::vector<CostlyRange> ranges_of(const pinrail_figures_t& head, const char* file) {
  std::map<uint64_t, CostlyRange> by_base;
  const auto* const ring = reinterpret_cast<const pinrail_figures_event_t*>(file + head.ring_offset);
  for (uint32_t i = 0; i < head.ring_count; ++i) {
    const uint64_t state = load(&ring[i].state);
    pinrail_figures_event_t event;
    uint64_t words[sizeof(event) / sizeof(uint64_t)];
    // Each word before the second look at the state.
    for (size_t word = 0; word < std::size(words); ++word) words[word] = load(&ring[i].state + word);
    std::memcpy(&event, words, sizeof(event));
    if (state == 0 || state == UINT64_MAX || load(&ring[i].state) != state || event.kind != PINRAIL_EVENT_MISS)
      continue;
    CostlyRange& range = by_base[event.base];
    range.base = event.base;
    range.length = std::max(range.length, event.length);
    range.reason = event.reason;
    ++range.misses;
  }
  std::vector<CostlyRange> ranges;
  ranges.reserve(by_base.size());
  for (const auto& each : by_base) ranges.push_back(each.second);
  const auto cost = [](const CostlyRange& range) {
    return static_cast<double>(range.misses) * (4096.0 + static_cast<double>(range.length));
  };
  std::sort(ranges.begin(), ranges.end(), [&](const auto& a, const auto& b) { return cost(a) > cost(b); });
  constexpr size_t kMost = 16;
  if (ranges.size() > kMost) ranges.resize(kMost);
  return ranges;
}

bool read_pool(const Mapped& mapped, int pid, bool with_ranges, Pool* pool_out) {
  Pool pool;
  std::memcpy(&pool.figures, mapped.figures, sizeof(pool.figures));
  if (!is_sound(pool.figures, mapped.bytes)) return false;
  const char* const file = reinterpret_cast<const char*>(mapped.figures);
  add_counts(file + pool.figures.counts_offset, pool.figures.counts_count, &pool.counts);
  for (size_t i = 0; i < pool.reasons.size(); ++i) {
    pool.reasons[i] = pool.counts.misses[i];
    pool.misses += pool.reasons[i];
  }
  // A thread may have counted a release, and another one not yet its registration.
  const auto difference = [](uint64_t made, uint64_t gone) { return made > gone ? made - gone : 0; };
  uint64_t released = 0;
  for (const uint64_t count : pool.counts.released) released += count;
  pool.registered_count = difference(pool.counts.registered, released);
  pool.registered_bytes = difference(pool.counts.registered_bytes, pool.counts.released_bytes);
  if (with_ranges) pool.ranges = ranges_of(pool.figures, file);
  pool.pid = pid;
  pool.file = mapped.inode;
  pool.command = command_of(pid);
  pool.name = text_of(pool.figures.pool);
  pool.registrar = text_of(pool.figures.registrar);
  pool.monitors = text_of(pool.figures.monitors);
  *pool_out = std::move(pool);
  return true;
}

// The file of one pool, and what process has it open.
struct File {
  int pid;
  std::unique_ptr<Mapped> mapped;
  uint64_t looks;  // before the bell rang
};

void add_files_of(int pid, std::vector<File>* files) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  for (const int number : numbers_in(folder)) {
    const std::string path = folder + std::to_string(number);
    char target[64] = "";
    if (readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (std::strncmp(target, "/memfd:" PINRAIL_FIGURES_NAME, sizeof("/memfd:" PINRAIL_FIGURES_NAME) - 1) != 0) continue;
    auto mapped = std::make_unique<Mapped>(path);
    if (mapped->figures != nullptr) files->push_back({pid, std::move(mapped), 0});
  }
}

// Asks all processes for what they must walk for, and waits a moment for their answers.
void ring(std::vector<File>* files) {
  constexpr std::chrono::milliseconds kPatience{20}, kPause{1};
  for (File& file : *files) {
    file.looks = load(&file.mapped->figures->looks);
    (void)syscall(SYS_futex, &file.mapped->figures->bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  const auto has_answered = [](const File& file) { return load(&file.mapped->figures->looks) != file.looks; };
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!std::all_of(files->begin(), files->end(), has_answered) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

double Pool::hit_rate() const {
  const uint64_t all = counts.hits + misses;
  return all == 0 ? 0 : 100.0 * static_cast<double>(counts.hits) / static_cast<double>(all);
}

// A forked child has its parent's file open: each file counts once, for the process that it is of.
std::vector<Pool> read_pools(int pid, bool with_ranges) {
  std::vector<File> files;
  if (pid != 0) {
    add_files_of(pid, &files);
  } else {
    for (const int each : numbers_in("/proc")) {
      if (is_own(each)) add_files_of(each, &files);
    }
  }
  ring(&files);
  std::vector<Pool> pools;
  for (const File& file : files) {
    Pool pool;
    if (read_pool(*file.mapped, file.pid, with_ranges, &pool)) pools.push_back(std::move(pool));
  }
  const auto is_first = [](const Pool& a, const Pool& b) {
    const bool a_is_owner = a.figures.pid == static_cast<uint32_t>(a.pid);
    const bool b_is_owner = b.figures.pid == static_cast<uint32_t>(b.pid);
    if (a.file != b.file) return a.file < b.file;
    return a_is_owner != b_is_owner ? a_is_owner : a.pid < b.pid;
  };
  std::sort(pools.begin(), pools.end(), is_first);
  pools.erase(std::unique(pools.begin(), pools.end(), [](const Pool& a, const Pool& b) { return a.file == b.file; }),
              pools.end());
  std::stable_sort(pools.begin(), pools.end(), [](const Pool& a, const Pool& b) { return a.pid < b.pid; });
  return pools;
}

uint64_t Pool::idle_bytes() const {
  const uint64_t others = figures.held_bytes + figures.dead_bytes;
  return registered_bytes > others ? registered_bytes - others : 0;
}

Rates rates_of(const Pool& now, const std::vector<Pool>& before, double seconds) {
  Rates rates;
  for (const Pool& old : before) {
    if (old.file != now.file || seconds <= 0) continue;
    const auto rate = [seconds](uint64_t to, uint64_t from) {
      return to > from ? static_cast<double>(to - from) / seconds : 0;
    };
    rates.hits = rate(now.counts.hits, old.counts.hits);
    rates.misses = rate(now.misses, old.misses);
    rates.evictions = rate(now.evictions(), old.evictions());
    rates.registrar_ns = rate(now.counts.registrar_ns, old.counts.registrar_ns);
    rates.events = rate(now.figures.memory_events, old.figures.memory_events);
    for (size_t i = 0; i < PINRAIL_MISS_REASONS; ++i) {
      rates.reasons[i] = rate(now.reasons[i], old.reasons[i]);
    }
  }
  return rates;
}

}  // namespace pinrail::top
