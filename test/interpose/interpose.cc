// SPDX-License-Identifier: BSD-3-Clause
// interpose - Pinrail's hooks under allocators that others brought along (LD_PRELOAD) and beside other runtimes' hooks.
// Several threads allocate, free and let a device see their memory, with leave_pinned=1; nothing stale may be seen, no
// thread may get stuck, and the other runtime must see its events too. test/interpose_test.sh has the combinations.
#include <dlfcn.h>
#include <getopt.h>

#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "test/interpose/worker.h"

namespace pinrail::interpose {
namespace {

constexpr int kFailed = 1, kWrongUsage = 2, kSkipped = 77;
constexpr auto kWindow = std::chrono::milliseconds(300);  // three looks of the monitor

enum class When : uint8_t { before, after, running };

struct Options {
  double seconds = 2;
  unsigned threads = 8;
  unsigned patience_s = 60;
  Peer peer = Peer::none;
  When when = When::before;
  const char* monitor = nullptr;
  bool writes = true;
  bool hangs = false;
};

const char kHelp[] =
    "usage: interpose [--seconds S | --minutes M] [--threads N] [--peer none|ucx|openmpi]\n"
    "                 [--when before|after|running] [--monitor LIST] [--no-writes] [--patience S]\n"
    "                 [--hang]\n"
    "  --peer       another runtime with memory hooks, loaded by dlopen\n"
    "  --when       before pinrail_init, after it, or when the threads have run for half of the time\n"
    "  --monitor    Pinrail's parameter; \"external\" reports nothing here, and so must lead to differences\n"
    "  --no-writes  the device only reads: where stale registrations are expected, its writes would end in the heap\n"
    "  --patience   a thread that gets no further for so many seconds is stuck (60): status 3\n"
    "  --hang       one thread after the other stops, to show that this is found\n"
    "The last line: interpose: N operations, N bytes verified, N differences, N in the window, N events missed\n"
    "Status 0: no difference outside of the window, no failed call, no event missed.\n";

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
    case 'w': return number(optarg, 1, &value) && (options->patience_s = static_cast<unsigned>(value)) >= 1;
    case 'p': return choose(optarg, kPeers, &options->peer);
    case 'o': return choose(optarg, kWhens, &options->when);
    case 'l': options->monitor = optarg; return true;
    case 'r': options->writes = false; return true;
    case 'x': options->hangs = true; return true;
    default: return false;
  }
}

bool parse(int argc, char** argv, Options* options) {
  constexpr option kOptions[] = {
      {"seconds", required_argument, nullptr, 's'},  {"minutes", required_argument, nullptr, 'm'},
      {"threads", required_argument, nullptr, 't'},  {"peer", required_argument, nullptr, 'p'},
      {"when", required_argument, nullptr, 'o'},     {"monitor", required_argument, nullptr, 'l'},
      {"patience", required_argument, nullptr, 'w'}, {"no-writes", no_argument, nullptr, 'r'},
      {"hang", no_argument, nullptr, 'x'},           {nullptr, 0, nullptr, 0}};
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
  std::vector<Beat> beats(options.threads);
  Watchdog watchdog(&beats, options.patience_s);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.threads; ++i) {
    threads.emplace_back([shared, &beats, i] { Worker(shared, &beats[i], 7919 * (i + 1)).run(); });
  }
  const auto time = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  const auto begin = Clock::now();
  bool peer_awaited = options.peer != Peer::none && options.when == When::running;
  bool came = true;
  auto next_look = begin + std::chrono::seconds(1);
  const auto pause = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (Clock::now() < next_look) return;
    watchdog.look();
    next_look += std::chrono::seconds(1);
  };
  while (came && Clock::now() < begin + time) {
    pause();
    if (peer_awaited && Clock::now() > begin + time / 2) {
      peer_awaited = false;
      came = bring_peer(options, shared);
      close_window(shared, options.peer);
    }
  }
  shared->stop.store(true);
  for (unsigned i = 0; i < options.threads; ++i) {
    while (!beats[i].done.load()) pause();
    threads[i].join();
  }
  return came ? finish(options, shared) : kFailed;
}

int run(const Options& options) {
  static Shared shared;
  shared.hangs = options.hangs;
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
