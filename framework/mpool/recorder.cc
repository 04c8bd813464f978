// SPDX-License-Identifier: BSD-3-Clause
// The memory of a pool's figures, and reading of its events. API context; takes no lock.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/core/files.h"
#include "framework/mpool/recorder.h"

namespace pinrail::mpool {
namespace {

constexpr uint64_t kPage = 4096;
static_assert(sizeof(pinrail_figures_t) <= kPage, "the counts come after one page");
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
#ifdef F_SEAL_FUTURE_WRITE
constexpr int kFutureWrite = F_SEAL_FUTURE_WRITE;
#else
constexpr int kFutureWrite = 0x0010;
#endif

uint64_t ring_of(uint64_t events) {
  uint64_t count = events == 0 ? 0 : 2;
  while (count < events) count *= 2;
  return count;
}

int make_file() { return memfd_create(PINRAIL_FIGURES_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING); }

// Gives the file its length and memory, without which a write would end the process.
bool extend(int file, uint64_t bytes) {
  const auto length = static_cast<off_t>(bytes);
  return ftruncate(file, length) == 0 && allocate_in_file(file, 0, length);
}

}  // namespace

Recorder::~Recorder() {
  if (figures_ != nullptr) munmap(figures_, bytes_);
}

// Without a file no other process can look: the figures are this process's alone.
bool Recorder::map(uint64_t bytes) {
  bytes_ = bytes;
  void* memory = MAP_FAILED;
  if (may_make_file(bytes) && file_.open(FileKind::has_inode, make_file) && extend(file_.number(), bytes)) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
    const bool is_sealed = fcntl(file_.number(), F_ADD_SEALS, kSeals | kFutureWrite) == 0;  // recorder/J3
    if (memory != MAP_FAILED && !is_sealed) file_.close();
  } else {
    file_.close();
  }
  if (memory == MAP_FAILED) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory == MAP_FAILED) return false;
  figures_ = static_cast<pinrail_figures_t*>(memory);
  return true;
}

Status Recorder::start(uint64_t events, PoolCounts* counts) {
  const uint64_t ring = ring_of(events), ring_offset = kPage + PoolCounts::kBytes;
  if (!map(ring_offset + ring * sizeof(pinrail_figures_event_t))) return PINRAIL_ERR_OUT_OF_RESOURCE;
  char* const memory = reinterpret_cast<char*>(figures_);
  figures_->version = PINRAIL_FIGURES_VERSION;
  figures_->pid = static_cast<uint32_t>(getpid());
  figures_->size = bytes_;
  figures_->counts_offset = kPage;
  figures_->counts_count = PoolCounts::kBytes / sizeof(PoolCounts::Line);
  figures_->ring_count = static_cast<uint32_t>(ring);
  figures_->ring_offset = static_cast<uint32_t>(ring_offset);
  ring_ = reinterpret_cast<pinrail_figures_event_t*>(memory + ring_offset);
  counts->use(memory + kPage);
  return success();
}

void Recorder::show(const std::string& pool, const std::string& registrar, const char* monitors,
                    const pinrail_mpool_stats_t& limits) {
  std::snprintf(figures_->pool, sizeof(figures_->pool), "%s", pool.c_str());
  std::snprintf(figures_->registrar, sizeof(figures_->registrar), "%s", registrar.c_str());
  std::snprintf(figures_->monitors, sizeof(figures_->monitors), "%s", monitors);
  figures_->size_limit = limits.size_limit;
  figures_->count_limit = limits.count_limit;
  __atomic_store_n(&figures_->magic, PINRAIL_FIGURES_MAGIC, __ATOMIC_RELEASE);  // readers look at it first
}

void Recorder::note_call(uint64_t ns) {
  uint64_t longest = __atomic_load_n(&figures_->longest_call_ns, __ATOMIC_RELAXED);
  while (ns > longest && !__atomic_compare_exchange_n(&figures_->longest_call_ns, &longest, ns, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}

void Recorder::show_use(const pinrail_mpool_stats_t& stats) {
  const auto put = [](uint64_t* figure, uint64_t value) { __atomic_store_n(figure, value, __ATOMIC_RELAXED); };
  put(&figures_->held_bytes, stats.held_bytes);
  put(&figures_->held_count, stats.held_count);
  put(&figures_->dead_bytes, stats.dead_bytes);
  put(&figures_->dead_count, stats.dead_count);
  // release: a reader that sees the new count sees the figures; pairs with the reader's acquire.
  __atomic_fetch_add(&figures_->looks, 1, __ATOMIC_RELEASE);
}

bool Recorder::read(uint64_t number, pinrail_mpool_event_t* event_out) const {
  const pinrail_figures_event_t& slot = ring_[number & (figures_->ring_count - 1)];
  if (__atomic_load_n(&slot.state, __ATOMIC_ACQUIRE) != number + 1) return false;
  constexpr size_t kWords = sizeof(slot) / sizeof(uint64_t);
  uint64_t words[kWords];
  for (size_t i = 1; i < kWords; ++i) words[i] = __atomic_load_n(&slot.state + i, __ATOMIC_ACQUIRE);
  if (__atomic_load_n(&slot.state, __ATOMIC_RELAXED) != number + 1) return false;  // recorder/J1
  pinrail_figures_event_t read;
  std::memcpy(&read, words, sizeof(read));
  *event_out = {sizeof(*event_out),
                number,
                read.time_ns,
                read.base,
                read.length,
                read.kind,
                read.reason,
                read.status,
                read.error,
                static_cast<uint32_t>(read.count),
                {}};
  std::memcpy(event_out->call, read.call, sizeof(read.call));
  return true;
}

uint64_t Recorder::oldest() const {
  const uint64_t recorded = recorded_hook();
  return recorded > figures_->ring_count ? recorded - figures_->ring_count : 0;
}

// Records a pool's events, without a lock and without allocating. Hook or API context.

namespace {

// relaxed: figures, each right by itself.
void add_hook(uint64_t* figure, uint64_t amount) { __atomic_fetch_add(figure, amount, __ATOMIC_RELAXED); }
uint64_t two_hook(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

// The text, as far as it fits.
uint64_t word_of_hook(const char* text) {
  char bytes[sizeof(uint64_t)] = {};
  for (size_t i = 0; i + 1 < sizeof(bytes) && text[i] != 0; ++i) bytes[i] = text[i];
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

}  // namespace

// The place of the next event; NULL: another thread still writes there (recorder/J2).
pinrail_figures_event_t* Recorder::take_slot_hook(uint64_t* number_out) {
  const uint64_t mask = figures_->ring_count - 1;
  uint64_t number = __atomic_load_n(&figures_->events, __ATOMIC_RELAXED);
  for (;;) {
    pinrail_figures_event_t* const slot = &ring_[number & mask];
    // acquire: pairs with the last store of the thread that wrote here before.
    const uint64_t complete = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    if (complete == (number > mask ? number - mask : 0)) {
      if (!__atomic_compare_exchange_n(&figures_->events, &number, number + 1, true, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED))
        continue;
      *number_out = number;
      return slot;
    }
    const uint64_t again = __atomic_load_n(&figures_->events, __ATOMIC_RELAXED);
    if (again == number) return nullptr;
    number = again;
  }
}

void Recorder::record_hook(const pinrail_mpool_event_t& event, const char* cause) {
  if (event.kind == PINRAIL_EVENT_MEMORY) {
    add_hook(&figures_->memory_events, 1);
    add_hook(&figures_->invalidations, event.count);
  } else if (event.kind == PINRAIL_EVENT_REFUSED) {
    add_hook(&figures_->refusals, 1);
  }
  if (figures_->ring_count == 0) return;
  uint64_t number;
  pinrail_figures_event_t* const slot = take_slot_hook(&number);
  if (slot == nullptr) return;
  __atomic_store_n(&slot->state, kBusy, __ATOMIC_RELAXED);  // before the words, each of which is a release
  uint64_t* word = &slot->time_ns;
  const auto put_hook = [&word](uint64_t value) { __atomic_store_n(word++, value, __ATOMIC_RELEASE); };
  put_hook(event.time_ns != 0 ? event.time_ns : now_hook());
  put_hook(event.base);
  put_hook(event.length);
  put_hook(two_hook(event.kind, event.reason));
  put_hook(two_hook(static_cast<uint32_t>(event.status), static_cast<uint32_t>(event.error)));
  put_hook(event.count);
  put_hook(cause == nullptr ? 0 : word_of_hook(cause));
  __atomic_store_n(&slot->state, number + 1, __ATOMIC_RELEASE);  // pairs with read() and with the next writer
}

}  // namespace pinrail::mpool
