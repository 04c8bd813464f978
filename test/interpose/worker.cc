// SPDX-License-Identifier: BSD-3-Clause
#include "test/interpose/worker.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pinrail::interpose {
namespace {

constexpr int kMaxFrames = 40;

// The program is lost already: nothing here has to be safe, but it has to come out.
void print_frames(int) {
  void* frames[kMaxFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMaxFrames), STDERR_FILENO);
}

}  // namespace

Watchdog::Watchdog(std::vector<Beat>* beats, unsigned patience_s)
    : beats_(*beats), patience_s_(patience_s), last_(beats->size()), still_s_(beats->size()) {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs, while that can be loaded
  struct sigaction action {};
  action.sa_handler = print_frames;
  sigaction(SIGUSR2, &action, nullptr);
}

void Watchdog::look() {
  for (size_t i = 0; i < beats_.size(); ++i) {
    const uint64_t count = beats_[i].count.load();
    still_s_[i] = count != last_[i] || beats_[i].done.load() ? 0 : still_s_[i] + 1;
    last_[i] = count;
    if (still_s_[i] >= patience_s_) give_up(i);
  }
}

void Watchdog::give_up(size_t stuck) {
  std::fprintf(stderr, "interpose: thread %zu got no further for %u s; all threads:\n", stuck, patience_s_);
  for (size_t i = 0; i < beats_.size(); ++i) {
    const pid_t thread = beats_[i].thread.load();
    std::fprintf(stderr, "thread %zu (%d), after %llu operations, in: %s\n", i, thread,
                 static_cast<unsigned long long>(beats_[i].count.load()), beats_[i].doing.load());
    if (thread == 0 || beats_[i].done.load()) continue;
    syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
    usleep(200000);  // one after the other
  }
  _exit(kStuckStatus);
}

namespace {

std::atomic<uint64_t> events{0};

// initial-exec: it is looked at inside munmap.
struct Expected {
  uintptr_t base, end;
  bool came;
};
__thread Expected expected __attribute__((tls_model("initial-exec"))) = {0, 0, false};

void note(uintptr_t base, size_t length) {
  events.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  if (base <= expected.base && expected.end <= base + length) expected.came = true;
}

// As ucm.h has it: what UCX hands to a callback for unmapped memory begins so.
struct UcxUnmapped {
  void* address;
  size_t size;
};
constexpr int kUcxUnmapped = 1 << 17;
using UcxCallback = void (*)(int type, UcxUnmapped* event, void* arg);
using UcxSetHandler = int (*)(int events, int priority, UcxCallback callback, void* arg);

void on_ucx_event(int, UcxUnmapped* event, void*) { note(reinterpret_cast<uintptr_t>(event->address), event->size); }

// As opal/memoryhooks/memory.h has it.
using OpalCallback = void (*)(void* base, size_t length, void* data, bool from_alloc);
using OpalRegister = int (*)(OpalCallback callback, void* data);

void on_opal_event(void* base, size_t length, void*, bool) { note(reinterpret_cast<uintptr_t>(base), length); }

template <typename Function>
bool find(void* library, const char* name, Function* function_out, std::string* why_out) {
  *function_out = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  if (*function_out == nullptr) *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is each thread's own
  return *function_out != nullptr;
}

bool load_ucx(std::string* why_out) {
  UcxSetHandler set_handler;
  dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL);  // libucm asks for its symbols, but not for it
  if (!find(dlopen("libucm.so.0", RTLD_NOW | RTLD_GLOBAL), "ucm_set_event_handler", &set_handler, why_out))
    return false;
  if (set_handler(kUcxUnmapped, 1000, on_ucx_event, nullptr) == 0) return true;
  *why_out = "ucm_set_event_handler failed";
  return false;
}

// Of Open MPI 4 or 5.
void* open_opal() {
  void* const library = dlopen("libopen-pal.so.40", RTLD_NOW | RTLD_GLOBAL);
  return library != nullptr ? library : dlopen("libopen-pal.so.80", RTLD_NOW | RTLD_GLOBAL);
}

// Its hooks are a framework that a subscriber of events opens, as rcache does.
bool load_openmpi(std::string* why_out) {
  void* const library = open_opal();
  int (*init)(int*, char***);
  int (*open_framework)(void* framework, int flags);
  OpalRegister subscribe;
  const bool whole = find(library, "opal_init", &init, why_out) &&
                     find(library, "mca_base_framework_open", &open_framework, why_out) &&
                     find(library, "opal_mem_hooks_register_release", &subscribe, why_out);
  void* const memory = whole ? dlsym(library, "opal_memory_base_framework") : nullptr;
  if (!whole) return false;
  const bool works = memory != nullptr && init(nullptr, nullptr) == 0 && open_framework(memory, 0) == 0 &&
                     subscribe(on_opal_event, nullptr) == 0;
  if (!works) *why_out = "its memory hooks are refused";
  return works;
}

}  // namespace

bool load_peer(Peer peer, std::string* why_out) {
  switch (peer) {
    case Peer::none: return true;
    case Peer::ucx: return load_ucx(why_out);
    case Peer::openmpi: return load_openmpi(why_out);
  }
  return false;
}

uint64_t peer_events() { return events.load(); }

void expect_event(const void* base, size_t length) {
  expected = {reinterpret_cast<uintptr_t>(base), reinterpret_cast<uintptr_t>(base) + length, false};
}

bool event_came() {
  const bool came = expected.came;
  expected = {0, 0, false};
  return came;
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLongest = size_t{1} << 20;
constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

// Eight bytes at a time, so that filling does not take longer than what is tested.
void fill(unsigned char* base, size_t length, uint64_t seed) {
  uint64_t word = seed | 1;
  for (size_t i = 0; i < length; i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(base + i, &word, length - i < sizeof(word) ? length - i : sizeof(word));
  }
}

}  // namespace

void Worker::run() {
  beat_.thread.store(static_cast<pid_t>(syscall(SYS_gettid)));
  scratch_.resize(2 * kLongest);
  while (!shared_.stop.load()) {
    step();
    beat_.count.fetch_add(1);
    shared_.tally.operations.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
  beat_.doing.store("ending");
  for (Block* block : blocks_) end(block);
  beat_.done.store(true);
}

void Worker::step() {
  Block*& block = blocks_[random_() % kBlocks];
  const unsigned die = static_cast<unsigned>(random_() % 100);
  if (shared_.hangs && beat_.count.load() > 100) {
    beat_.doing.store("hanging, as ordered");
    for (;;) pause();
  }
  if (block == nullptr) {
    block = new_block();
  } else if (die < 12) {
    end(block);
    block = nullptr;
  } else if (die < 20) {
    reallocate(block);
  } else if (die < 28) {
    drop_pages(block);
  } else if (die < 34) {
    beat_.doing.store("exchange");
    block = shared_.exchange[random_() % Shared::kExchange].exchange(block);
  } else if (die < 75 || !shared_.device_writes) {
    let_device_read(*block);
  } else {
    let_device_write(block);
  }
}

// Short and long ones alike: allocators treat them differently.
size_t Worker::random_length() {
  const size_t most = kLongest >> (random_() % 9);
  return 64 + random_() % (most - 63);
}

Block* Worker::new_block() {
  auto* const block = new Block;
  block->is_mapped = random_() % 3 == 0;
  block->length = random_length();
  block->seed = random_();
  if (block->is_mapped) {
    beat_.doing.store("mmap");
    block->length = (block->length + kPage - 1) / kPage * kPage;
    void* const got = mmap(nullptr, block->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) std::abort();
    block->base = static_cast<unsigned char*>(got);
  } else {
    beat_.doing.store("malloc");
    block->base = static_cast<unsigned char*>(std::malloc(block->length));
    if (block->base == nullptr) std::abort();
  }
  fill(block->base, block->length, block->seed);
  return block;
}

void Worker::end(Block* block) {
  if (block == nullptr) return;
  if (!block->is_mapped) {
    beat_.doing.store("free");
    std::free(block->base);
  } else {
    beat_.doing.store("munmap");
    const bool must_be_told = shared_.peer_is_there.load();
    expect_event(block->base, block->length);
    if (munmap(block->base, block->length) != 0) std::abort();
    if (!event_came() && must_be_told) ++shared_.tally.events_missed;
  }
  delete block;
}

void Worker::reallocate(Block* block) {
  if (block->is_mapped) return;
  beat_.doing.store("realloc");
  const size_t length = random_length();
  auto* const base = static_cast<unsigned char*>(std::realloc(block->base, length));
  if (base == nullptr) std::abort();
  // What was there must have come along; fill() gives the same beginning for every length.
  const size_t kept = (length < block->length ? length : block->length) & ~(sizeof(uint64_t) - 1);
  fill(scratch_.data(), kept, block->seed);
  if (std::memcmp(base, scratch_.data(), kept) != 0) count_difference();
  block->base = base;
  block->length = length;
  fill(base, length, block->seed);
}

void Worker::drop_pages(Block* block) {
  if (!block->is_mapped) return;
  beat_.doing.store("madvise");
  if (madvise(block->base, block->length, MADV_DONTNEED) != 0) std::abort();
  block->seed = random_();
  fill(block->base, block->length, block->seed);
}

bool Worker::enter(const Block& block, pinrail_handle_t* handle_out, size_t* offset_out) {
  beat_.doing.store("pinrail_mpool_register");
  const pinrail_status_t status =
      pinrail_mpool_register(shared_.pool, block.base, block.length, kAccess, 0, handle_out);
  if (status != PINRAIL_SUCCESS) {
    // Others hold all that the limit allows just now.
    if (status != PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) fail("register", status);
    return false;
  }
  *offset_out = static_cast<size_t>(block.base - static_cast<unsigned char*>(handle_out->reg->base));
  return true;
}

void Worker::let_device_read(const Block& block) {
  pinrail_handle_t handle{};
  size_t offset = 0;
  if (!enter(block, &handle, &offset)) return;
  beat_.doing.store("the device reads");
  const pinrail_status_t status = pinrail_mpool_device_read(handle, offset, scratch_.data(), block.length);
  beat_.doing.store("pinrail_mpool_deregister");
  pinrail_mpool_deregister(handle);
  if (status != PINRAIL_SUCCESS) return fail("device read", status);
  fill(scratch_.data() + kLongest, block.length, block.seed);
  if (std::memcmp(scratch_.data(), scratch_.data() + kLongest, block.length) != 0) count_difference();
  shared_.tally.bytes_verified.fetch_add(block.length, std::memory_order_relaxed);  // relaxed: a figure
}

void Worker::let_device_write(Block* block) {
  pinrail_handle_t handle{};
  size_t offset = 0;
  if (!enter(*block, &handle, &offset)) return;
  block->seed = random_();
  fill(scratch_.data(), block->length, block->seed);
  beat_.doing.store("the device writes");
  const pinrail_status_t status = pinrail_mpool_device_write(handle, offset, scratch_.data(), block->length);
  beat_.doing.store("pinrail_mpool_deregister");
  pinrail_mpool_deregister(handle);
  if (status != PINRAIL_SUCCESS) fail("device write", status);
  if (std::memcmp(block->base, scratch_.data(), block->length) != 0) {
    count_difference();
    fill(block->base, block->length, block->seed);
  }
  shared_.tally.bytes_verified.fetch_add(block->length, std::memory_order_relaxed);  // relaxed: a figure
}

void Worker::count_difference() {
  ++(shared_.in_window.load() ? shared_.tally.differences_in_window : shared_.tally.differences);
}

void Worker::fail(const char* what, pinrail_status_t status) {
  constexpr uint64_t kShown = 5;
  if (shared_.tally.failures++ < kShown) std::fprintf(stderr, "%s: %s\n", what, pinrail_status_name(status));
}

}  // namespace pinrail::interpose
