// SPDX-License-Identifier: BSD-3-Clause
// soak - frees and allocates GPU memory at the same address for a long time, and looks whether a peer ever sees the old
// bytes through its cache. Two real processes; soak --help tells the rest.
#include <dirent.h>
#include <pinrail/pinrail.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "test/gpu/driver.h"

namespace pinrail::gpu_test {
namespace {

// What soak was asked to do.

struct SoakOptions {
  bool is_double = false;
  int mode = 3;
  Kind kind = Kind::ipc;
  const char* kind_name = "ipc";
  uint64_t rounds = 100000;
  size_t unit = size_t{16} << 10;  // bytes that lengths are multiples of; physical memory comes in larger pieces
  const char* monitor = "external";
  const char* free = "notify";
  bool defers() const { return *free == 'd'; }
};

constexpr char kUsage[] =
    "Usage: soak [--double] [--mode 1|2|3|4] [--rounds N] [--kind ipc|vmm|pool] [--monitor NAME]\n"
    "            [--free notify|defer] [--unit BYTES]\n"
    "Two processes: one allocates GPU memory, exports and frees it in a loop, at the same address, smaller, larger "
    "and\n"
    "shifted; the other opens it through rgpusm and compares every byte.\n"
    "  --double        the driver double instead of a real driver\n"
    "  --mode N        leave_pinned and size_limit: 1 no, none; 2 no, limited; 3 yes, none (default); 4 yes, limited\n"
    "  --kind NAME     of the memory: ipc, cuMemAlloc's (default); vmm, cuMemCreate's; pool, of a stream-ordered pool\n"
    "  --rounds N      default 100000\n"
    "  --monitor NAME  how the exporter learns of frees: external (default; every other one is reported) or cuda\n"
    "  --free NAME     what a free that the exporter sees does: notify peers (default), or wait until they have\n"
    "                  closed; then each free is reported\n"
    "  --unit BYTES    what lengths are multiples of, 16384; 2097152: the driver has a block of its own for each "
    "allocation\n"
    "The last line: soak: N rounds, N bytes verified, N stale, N open handles left. Exit: 0 no stale byte and no "
    "handle\n"
    "left; 1 otherwise; 2 usage; 77 no driver here, or not that kind.\n";

bool number(const char* text, uint64_t least, uint64_t most, uint64_t* out) {
  char* end = nullptr;
  *out = std::strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && *out >= least && *out <= most;
}

bool kind_of(const char* text, Kind* kind_out) {
  const char* const names[] = {"ipc", "vmm", "pool"};
  for (const Kind kind : {Kind::ipc, Kind::vmm, Kind::pool}) {
    if (std::strcmp(text, names[static_cast<int>(kind)]) != 0) continue;
    *kind_out = kind;
    return true;
  }
  return false;
}

// False: there is no such option, or not with that value.
bool take(const std::string& name, const char* text, SoakOptions* options) {
  uint64_t value = 0;
  if (name == "--mode" && number(text, 1, 4, &value)) {
    options->mode = static_cast<int>(value);
  } else if (name == "--rounds" && number(text, 1, UINT32_MAX, &value)) {
    options->rounds = value;
  } else if (name == "--unit" && number(text, 16384, 1 << 30, &value) && value % 16384 == 0) {
    options->unit = value;
  } else if (name == "--kind" && kind_of(text, &options->kind)) {
    options->kind_name = text;
  } else if (name == "--monitor" && *text != '\0') {
    options->monitor = text;
  } else if (name == "--free" && (std::strcmp(text, "notify") == 0 || std::strcmp(text, "defer") == 0)) {
    options->free = text;
  } else {
    return false;
  }
  return true;
}

// False: the program ends, with exit_out: help was asked for, or an option is wrong (said on stderr).
bool read_options(int argc, char** argv, SoakOptions* options, int* exit_out) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--double") {
      options->is_double = true;
      continue;
    }
    if (name == "--help") {
      std::fputs(kUsage, stdout);
      *exit_out = 0;
      return false;
    }
    const char* const text = i + 1 < argc ? argv[++i] : "";
    if (take(name, text, options)) continue;
    *exit_out = 2;
    std::fprintf(stderr, "soak: %s does not take \"%s\", or does not exist\n%s", name.c_str(), text, kUsage);
    return false;
  }
  return true;
}

}  // namespace
}  // namespace pinrail::gpu_test

using namespace pinrail::gpu_test;

namespace {

constexpr int64_t kLimitUnits = 8;  // of modes 2 and 4: two of the largest

// What the exporter sends, and 0 bytes at the end.
struct Message {
  uint64_t round;
  size_t offset;
  size_t length;
  pinrail_gpu_block_t block;
};

struct Figures {
  uint64_t rounds = 0;
  uint64_t bytes = 0;
  uint64_t stale = 0;  // words that were not this round's
  uint64_t left = 0;
};

// Of this process; -1: the system does not tell.
int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = -3;                              // ".", "..", and this one
  while (readdir(folder) != nullptr) ++count;  // NOLINT(concurrency-mt-unsafe): the stream is this call's own
  closedir(folder);
  return count;
}

// What pools leave open is a fault. The real driver opens files whenever it likes: there it is only told.
bool same_descriptors(const SoakOptions& options, const char* who, int before) {
  const int after = open_descriptors();
  std::printf("soak: %s, kind %s: %d descriptors before, %d after\n", who, options.kind_name, before, after);
  return after == before || !options.is_double;
}

// The exporter. One allocation at a time is exported; a pad before it moves the next one's address.
struct Exporter {
  const Driver& driver;
  const SoakOptions& options;
  int socket;
  Memory memory;
  pinrail_mpool_t* pool = nullptr;
  CUdeviceptr pad = 0;
  std::vector<uint64_t> words;

  // Same, smaller, larger, in turn; every fourth time shifted.
  size_t length_of(uint64_t round) const {
    constexpr size_t kUnits[] = {2, 2, 1, 4, 2, 4, 3};
    const size_t which = round % (sizeof(kUnits) / sizeof(kUnits[0]));
    const size_t more = which == 4 ? std::max(memory.unit(), size_t{4096}) : 0;
    return kUnits[which] * std::max(memory.unit(), options.unit) + more;
  }

  bool shift(uint64_t round) {
    if (round % 4 != 3) return true;
    if (pad == 0) return driver.alloc(&pad, 4096) == CUDA_SUCCESS;
    const bool freed = driver.free(pad) == CUDA_SUCCESS;
    pad = 0;
    return freed;
  }

  bool one_round(uint64_t round) {
    CUdeviceptr at = 0;
    Message message{};
    message.round = round;
    const size_t length = length_of(round);
    fill(&words, round, length);
    if (!shift(round) || !memory.allocate(length, &at)) return false;
    if (!driver.put(at, words.data(), length)) return false;
    // Any pointer inside will do.
    const size_t inside = round % 2 == 0 ? 0 : 4096;
    message.length = length - inside;
    if (pinrail_mpool_export(pool, pointer_of(at + inside), message.length, &message.block, &message.offset) !=
        PINRAIL_SUCCESS) {
      return false;
    }
    char answer = 0;
    if (!send_all(socket, &message, sizeof(message)) || !receive_all(socket, &answer, 1) || answer != 'k') return false;
    const bool is_told = std::strcmp(options.monitor, "external") == 0 && (round % 2 == 0 || options.defers());
    if (is_told) pinrail_monitor_report(pointer_of(at), length);
    return memory.free(at, length);
  }

  int run() {
    const char* why = "";
    if (!driver.start(&why) || !memory.start()) return 77;
    if (!initialise({{"monitor", options.monitor}, {"mpool_gpusm_free", options.free}})) return 1;
    const int before = open_descriptors();
    pool = make_pool("gpusm", 1, PINRAIL_UNSET);
    if (pool == nullptr) return 1;
    bool well = true;
    for (uint64_t round = 0; well && round < options.rounds; ++round) well = one_round(round);
    if (pad != 0) driver.free(pad);
    well = pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
    well = same_descriptors(options, "exporter", before) && well;
    well = pinrail_finalize() == PINRAIL_SUCCESS && memory.stop() && well;
    return well ? 0 : 1;
  }
};

// Opens, reads all of it, looks. Twice, so that the cache has its chance to answer.
bool look(pinrail_mpool_t* pool, const Message& message, std::vector<uint64_t>* words, Figures* figures) {
  for (int again = 0; again < 2; ++again) {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pinrail_mpool_register_remote(pool, &message.block, message.offset, message.length,
                                                                  PINRAIL_ACCESS_REMOTE_READ, 0, &handle);
    if (status != PINRAIL_SUCCESS) {
      std::fprintf(stderr, "soak: register_remote in round %" PRIu64 ": %s\n", message.round,
                   pinrail_status_name(status));
      return false;
    }
    words->assign(message.length / sizeof(uint64_t), 0);
    const pinrail_status_t read = pinrail_mpool_device_read(handle, message.offset, words->data(), message.length);
    const pinrail_status_t released = pinrail_mpool_deregister(handle);
    if (released != PINRAIL_SUCCESS || read != PINRAIL_SUCCESS) {
      std::fprintf(stderr, "soak: round %" PRIu64 ": device_read %s, deregister %s\n", message.round,
                   pinrail_status_name(read), pinrail_status_name(released));
      return false;
    }
    figures->stale += strangers(*words, message.round, message.offset / sizeof(uint64_t));
    figures->bytes += message.length;
  }
  return true;
}

bool import_all(const Driver& driver, const SoakOptions& options, int socket, Figures* figures) {
  Memory kind(driver, options.kind);  // what the exporter has
  if (!kind.start()) return false;
  const auto limit = kLimitUnits * static_cast<int64_t>(std::max(kind.unit(), options.unit));
  const int before = open_descriptors();
  const bool keep = options.mode >= 3, limited = options.mode % 2 == 0;
  pinrail_mpool_t* pool = make_pool("rgpusm", keep ? 1 : 0, limited ? limit : 0);
  if (pool == nullptr) return false;
  std::vector<uint64_t> words;
  Message message;
  bool well = true;
  while (well && figures->rounds < options.rounds && receive_all(socket, &message, sizeof(message))) {
    well = look(pool, message, &words, figures);
    const char answer = well ? 'k' : 'n';
    well = send_all(socket, &answer, 1) && well;
    ++figures->rounds;
  }
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  pinrail_mpool_read_stats(pool, &stats);
  std::printf("soak: mode %d: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64 " evictions, %" PRIu64
              " invalidations, %" PRIu64 " retries, peak %" PRIu64 " bytes\n",
              options.mode, stats.hits, stats.misses, stats.evictions, stats.invalidations, stats.retries,
              stats.peak_registered_bytes);
  if (limited && stats.peak_registered_bytes > static_cast<uint64_t>(limit)) well = false;
  well = pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  well = same_descriptors(options, "importer", before) && kind.stop() && well;
  return well && figures->rounds == options.rounds;
}

bool import(const Driver& driver, const SoakOptions& options, int socket, Figures* figures) {
  const char* why = "";
  if (!driver.start(&why)) {
    std::fprintf(stderr, "soak: %s\n", why);
    return false;
  }
  bool well = initialise({{"monitor", "external"}, {"mpool_rgpusm_gc_interval", options.defers() ? "1" : "100"}}) &&
              import_all(driver, options, socket, figures);
  if (driver.open_handles != nullptr) figures->left = driver.open_handles();
  well = pinrail_finalize() == PINRAIL_SUCCESS && well;
  return well && figures->stale == 0 && figures->left == 0;
}

}  // namespace

int main(int argc, char** argv) {
  SoakOptions options;
  Driver driver;
  int code = 0;
  if (!read_options(argc, argv, &options, &code)) return code;
  if (!driver.load("soak", options.is_double)) return 77;
  // Before the driver is started: it does not survive a fork.
  const TwoProcesses both([&](int socket) {
    return Exporter{driver, options, socket, Memory(driver, options.kind), nullptr, 0, {}}.run();
  });
  Figures figures;
  code = both.end(import(driver, options, both.socket(), &figures) ? 0 : 1);
  std::printf("soak: %" PRIu64 " rounds, %" PRIu64 " bytes verified, %" PRIu64 " stale, %" PRIu64
              " open handles left\n",
              figures.rounds, figures.bytes, figures.stale, figures.left);
  return code;
}
