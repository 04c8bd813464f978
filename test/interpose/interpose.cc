// SPDX-License-Identifier: BSD-3-Clause
// interpose - Pinrail's hooks under allocators that others brought along (LD_PRELOAD) and beside other runtimes' hooks.
// Several threads allocate, free and let a device see their memory, with leave_pinned=1; nothing stale may be seen, no
// thread may get stuck, and the other runtime must see its events too. test/interpose_test.sh has the combinations.
#include <dlfcn.h>
#include <getopt.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pinrail::interpose {
namespace {

// ---- Another runtime with memory hooks in the same process: Debian's UCX or Open MPI, loaded when asked.

enum class Peer : uint8_t { none, ucx, openmpi };

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

// Loads it, installs its hooks and asks it for events. False and the reason.
bool load_peer(Peer peer, std::string* why_out) {
  switch (peer) {
    case Peer::none: return true;
    case Peer::ucx: return load_ucx(why_out);
    case Peer::openmpi: return load_openmpi(why_out);
  }
  return false;
}

// From where munmap() leads to it: it has patched.
uint64_t peer_events() { return events.load(); }

// Between the two the peer must have told of all of the range, on this thread.
void expect_event(const void* base, size_t length) {
  expected = {reinterpret_cast<uintptr_t>(base), reinterpret_cast<uintptr_t>(base) + length, false};
}

bool event_came() {
  const bool came = expected.came;
  expected = {0, 0, false};
  return came;
}

// ---- One thread that allocates, frees, maps and unmaps at random, and lets a device see its memory.
//
// Each buffer is full of bytes that can be computed again from its seed and the place in it. What the device reads
// through a registration must be those bytes, and what it writes must be seen by the processor: a registration of pages
// that are no longer there shows itself.
//
// Threads  a Worker is one thread's; what they have in common is Shared.

struct Tally {
  std::atomic<uint64_t> operations{0}, bytes_verified{0};
  std::atomic<uint64_t> differences{0};            // transfers with a wrong byte
  std::atomic<uint64_t> differences_in_window{0};  // the same, while another runtime's patches may lie over ours
  std::atomic<uint64_t> failures{0};               // calls that failed
  std::atomic<uint64_t> events_missed{0};          // munmap calls that the peer was not told of
};

// Memory on its way from one thread to another, which frees it.
struct Block {
  unsigned char* base = nullptr;
  size_t length = 0;
  uint64_t seed = 0;
  bool is_mapped = false;  // by mmap; else by malloc
};

struct Shared {
  pinrail_mpool_t* pool = nullptr;
  Tally tally;
  std::atomic<bool> stop{false};
  std::atomic<bool> peer_is_there{false};  // and must see every munmap
  std::atomic<bool> in_window{false};
  bool device_writes = true;
  static constexpr size_t kExchange = 16;
  std::atomic<Block*> exchange[kExchange] = {};
};

class Worker {
 public:
  Worker(Shared* shared, uint64_t seed) : shared_(*shared), random_(seed) {}
  void run();

 private:
  void step();
  Block* new_block();
  void end(Block* block);
  void reallocate(Block* block);
  void drop_pages(Block* block);
  void let_device_read(const Block& block);
  void let_device_write(Block* block);
  bool enter(const Block& block, pinrail_handle_t* handle_out, size_t* offset_out);
  void fail(const char* what, pinrail_status_t status);
  void count_difference();
  size_t random_length();

  Shared& shared_;
  std::mt19937_64 random_;
  static constexpr size_t kBlocks = 24;
  Block* blocks_[kBlocks] = {};
  std::vector<unsigned char> scratch_;
};

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

void Worker::run() {
  scratch_.resize(2 * kLongest);
  while (!shared_.stop.load()) {
    step();
    shared_.tally.operations.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  }
  for (Block* block : blocks_) end(block);
}

void Worker::step() {
  Block*& block = blocks_[random_() % kBlocks];
  const unsigned die = static_cast<unsigned>(random_() % 100);
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
    block->length = (block->length + kPage - 1) / kPage * kPage;
    void* const got = mmap(nullptr, block->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) std::abort();
    block->base = static_cast<unsigned char*>(got);
  } else {
    block->base = static_cast<unsigned char*>(std::malloc(block->length));
    if (block->base == nullptr) std::abort();
  }
  fill(block->base, block->length, block->seed);
  return block;
}

void Worker::end(Block* block) {
  if (block == nullptr) return;
  if (!block->is_mapped) {
    std::free(block->base);
  } else {
    const bool must_be_told = shared_.peer_is_there.load();
    expect_event(block->base, block->length);
    if (munmap(block->base, block->length) != 0) std::abort();
    if (!event_came() && must_be_told) ++shared_.tally.events_missed;
  }
  delete block;
}

void Worker::reallocate(Block* block) {
  if (block->is_mapped) return;
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
  if (madvise(block->base, block->length, MADV_DONTNEED) != 0) std::abort();
  block->seed = random_();
  fill(block->base, block->length, block->seed);
}

bool Worker::enter(const Block& block, pinrail_handle_t* handle_out, size_t* offset_out) {
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
  const pinrail_status_t status = pinrail_mpool_device_read(handle, offset, scratch_.data(), block.length);
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
  const pinrail_status_t status = pinrail_mpool_device_write(handle, offset, scratch_.data(), block->length);
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

// ---- The program.

constexpr int kFailed = 1, kWrongUsage = 2, kSkipped = 77;
constexpr unsigned kPatience_s = 60;
constexpr auto kWindow = std::chrono::milliseconds(300);  // three looks of the monitor

enum class When : uint8_t { before, after, running };

struct Options {
  double seconds = 2;
  unsigned threads = 8;
  Peer peer = Peer::none;
  When when = When::before;
  const char* monitor = nullptr;
  bool writes = true;
};

const char kHelp[] =
    "usage: interpose [--seconds S | --minutes M] [--threads N] [--peer none|ucx|openmpi]\n"
    "                 [--when before|after|running] [--monitor LIST] [--no-writes]\n"
    "  --peer       another runtime with memory hooks, loaded by dlopen\n"
    "  --when       before pinrail_init, after it, or when the threads have run for half of the time\n"
    "  --monitor    Pinrail's parameter; \"external\" reports nothing here, and so must lead to differences\n"
    "  --no-writes  the device only reads: where stale registrations are expected, its writes would end in the heap\n"
    "The last line: interpose: N operations, N bytes verified, N differences, N in the window, N events missed\n"
    "Status 0: no difference outside of the window, no failed call, no event missed. Threads that get stuck end the\n"
    "program: SIGALRM comes a minute after its time is up.\n";

template <typename Value, size_t N>
bool choose(const char* text, const std::array<const char*, N>& names, Value* value_out) {
  for (size_t i = 0; i < N; ++i) {
    if (std::strcmp(text, names[i]) != 0) continue;
    *value_out = static_cast<Value>(i);
    return true;
  }
  return false;
}

bool number(const char* text, double scale, double* value_out) {
  char* end = nullptr;
  *value_out = std::strtod(text, &end) * scale;
  return end != text && *end == 0 && *value_out > 0 && *value_out < 1e6;
}

bool take(int code, Options* options) {
  constexpr std::array<const char*, 3> kPeers = {"none", "ucx", "openmpi"}, kWhens = {"before", "after", "running"};
  double value = 0;
  switch (code) {
    case 's': return number(optarg, 1, &options->seconds);
    case 'm': return number(optarg, 60, &options->seconds);
    case 't': return number(optarg, 1, &value) && (options->threads = static_cast<unsigned>(value)) >= 1;
    case 'p': return choose(optarg, kPeers, &options->peer);
    case 'o': return choose(optarg, kWhens, &options->when);
    case 'l': options->monitor = optarg; return true;
    case 'r': options->writes = false; return true;
    default: return false;
  }
}

bool parse(int argc, char** argv, Options* options) {
  constexpr option kOptions[] = {
      {"seconds", required_argument, nullptr, 's'}, {"minutes", required_argument, nullptr, 'm'},
      {"threads", required_argument, nullptr, 't'}, {"peer", required_argument, nullptr, 'p'},
      {"when", required_argument, nullptr, 'o'},    {"monitor", required_argument, nullptr, 'l'},
      {"no-writes", no_argument, nullptr, 'r'},     {nullptr, 0, nullptr, 0}};
  int code = 0;
  while ((code = getopt_long(argc, argv, "", kOptions, nullptr)) !=
         -1) {  // NOLINT(concurrency-mt-unsafe): no threads yet
    if (!take(code, options)) return false;
  }
  return optind == argc;
}

// Whose malloc it is.
std::string allocator() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&malloc), &info) == 0) return "?";
  Dl_info freeing{};
  dladdr(dlsym(RTLD_DEFAULT, "free"), &freeing);
  return freeing.dli_fname != nullptr ? freeing.dli_fname : info.dli_fname;
}

pinrail_status_t start(const Options& options, Shared* shared) {
  const pinrail_setting_t settings[] = {{"monitor", options.monitor}};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.settings = settings;
  init.setting_count = options.monitor != nullptr ? 1 : 0;
  const pinrail_status_t status = pinrail_init(&init);
  if (status != PINRAIL_SUCCESS) return status;
  pinrail_registrar_choice_t choice{};
  choice.name = "iouring";
  pinrail_mpool_options_t pool = PINRAIL_MPOOL_OPTIONS_INIT;
  pool.leave_pinned = 1;
  pool.size_limit = int64_t{64} << 20;
  return pinrail_mpool_create("grdma", &choice, nullptr, &pool, &shared->pool);
}

bool bring_peer(const Options& options, Shared* shared) {
  std::string why;
  shared->in_window.store(true);
  if (!load_peer(options.peer, &why)) {
    std::fprintf(stderr, "interpose: the other runtime does not come up: %s\n", why.c_str());
    return false;
  }
  return true;
}

void close_window(Shared* shared, Peer peer) {
  std::this_thread::sleep_for(kWindow);
  shared->in_window.store(false);
  shared->peer_is_there.store(peer != Peer::none);
}

int finish(const Options& options, Shared* shared) {
  const pinrail_status_t destroyed = pinrail_mpool_destroy(shared->pool, 0);
  const pinrail_status_t finalized = pinrail_finalize();
  const Tally& tally = shared->tally;
  std::printf("allocator %s, %" PRIu64 " failures, %" PRIu64 " events of the other runtime\n", allocator().c_str(),
              tally.failures.load(), peer_events());
  std::printf("interpose: %" PRIu64 " operations, %" PRIu64 " bytes verified, %" PRIu64 " differences, %" PRIu64
              " in the window, %" PRIu64 " events missed\n",
              tally.operations.load(), tally.bytes_verified.load(), tally.differences.load(),
              tally.differences_in_window.load(), tally.events_missed.load());
  const bool told = options.peer == Peer::none || (tally.events_missed == 0 && peer_events() != 0);
  const bool ended = destroyed == PINRAIL_SUCCESS && finalized == PINRAIL_SUCCESS;
  return tally.differences == 0 && tally.failures == 0 && tally.bytes_verified != 0 && told && ended ? 0 : kFailed;
}

int work(const Options& options, Shared* shared) {
  using Clock = std::chrono::steady_clock;
  alarm(static_cast<unsigned>(options.seconds) + kPatience_s);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.threads; ++i) {
    threads.emplace_back([shared, i] { Worker(shared, 7919 * (i + 1)).run(); });
  }
  const auto time = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  const auto begin = Clock::now();
  bool peer_awaited = options.peer != Peer::none && options.when == When::running;
  bool came = true;
  // However little of the time is ours: what shows that it has worked. SIGALRM is the end.
  const auto has_worked = [&] {
    return shared->tally.bytes_verified != 0 && (options.peer == Peer::none || peer_events() != 0);
  };
  while (came && (Clock::now() < begin + time || !has_worked())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (peer_awaited && Clock::now() > begin + time / 2) {
      peer_awaited = false;
      came = bring_peer(options, shared);
      close_window(shared, options.peer);
    }
  }
  shared->stop.store(true);
  for (std::thread& thread : threads) thread.join();
  return came ? finish(options, shared) : kFailed;
}

int run(const Options& options) {
  static Shared shared;
  shared.device_writes = options.writes;
  const bool has_peer = options.peer != Peer::none;
  if (has_peer && options.when == When::before && !bring_peer(options, &shared)) return kFailed;
  const pinrail_status_t status = start(options, &shared);
  if (status == PINRAIL_ERR_NOT_AVAILABLE) {
    std::puts("interpose: skipped: the registrar iouring, or every monitor, is not available here");
    return kSkipped;
  }
  if (status != PINRAIL_SUCCESS) {
    std::fprintf(stderr, "interpose: Pinrail does not start: %s\n", pinrail_status_name(status));
    return kFailed;
  }
  if (has_peer && options.when == When::after && !bring_peer(options, &shared)) return kFailed;
  if (has_peer && options.when != When::running) close_window(&shared, options.peer);
  return work(options, &shared);
}

}  // namespace
}  // namespace pinrail::interpose

int main(int argc, char** argv) {
  pinrail::interpose::Options options;
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(pinrail::interpose::kHelp, stdout);
    return 0;
  }
  if (!pinrail::interpose::parse(argc, argv, &options)) {
    std::fputs(pinrail::interpose::kHelp, stderr);
    return pinrail::interpose::kWrongUsage;
  }
  return pinrail::interpose::run(options);
}
