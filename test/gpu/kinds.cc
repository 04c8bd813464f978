// SPDX-License-Identifier: BSD-3-Clause
// kinds - what the driver says of each kind of memory that can be exported; whether a peer can have two allocations of
// it open at a time, and one of them after the other was closed; and whether two pools of a peer can have one open, and
// one of them after the other has closed it. Then what the cache is worth, and when the owner's memory comes back:
// cuIpcOpenMemHandle beside a register + deregister that hits; and how long after a free the GPU has the bytes again
// that a peer had open and idle. Two processes; prints one JSON object. Errors are the driver's numbers, 0: none;
// statuses are Pinrail's; null: the driver has no memory of that kind.
//   kinds [--double]
// Exit: 0; 1 a peer did not see what the owner wrote, freed memory never came back, or (real driver) a hit is not 500
// times cheaper than an open; 2 usage; 77 no driver or no GPU here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "test/gpu/driver.h"

using namespace pinrail::gpu_test;

namespace {

struct Case {
  const char* name;
  Kind kind;
  size_t bytes;  // at least
};
// What cuMemAlloc takes from a larger block of its own, and what has one to itself.
constexpr Case kCases[] = {{"ipc", Kind::ipc, size_t{32} << 10},
                           {"ipc_large", Kind::ipc, size_t{4} << 20},
                           {"vmm", Kind::vmm, size_t{2} << 20},
                           {"pool", Kind::pool, size_t{32} << 10},
                           {"pool_large", Kind::pool, size_t{4} << 20}};

// What the driver says in the process whose memory it is.
struct Said {
  CUresult error;  // of all
  CUdeviceptr start;
  size_t size;
  unsigned long long id, handle_types;
  int is_legacy;
};

struct Told {
  bool is_there;
  bool is_replaced;  // by other memory at the same address; that is `after`
  CUdeviceptr at;
  size_t bytes;
  Said before, after;
  pinrail_status_t exported[2];
  pinrail_gpu_block_t blocks[2];
};

Said ask(const Driver& driver, CUdeviceptr at) {
  Said said{};
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&said.start, &said.size, &said.id, &said.handle_types, &said.is_legacy};
  said.error = driver.attributes(sizeof(names) / sizeof(names[0]), names, values, at);
  return said;
}

// Two allocations, filled with numbers of their own; the first one takes the place of one that was freed.
bool make_two(const Driver& driver, const Memory& memory, Told* told, CUdeviceptr both[2]) {
  CUdeviceptr first = 0;
  if (!memory.allocate(told->bytes, &first)) return false;
  told->before = ask(driver, first);
  if (!memory.free(first, told->bytes)) return false;
  std::vector<uint64_t> words;
  for (unsigned i = 0; i < 2; ++i) {
    fill(&words, i + 1, told->bytes);
    if (!memory.allocate(told->bytes, &both[i]) || !driver.put(both[i], words.data(), told->bytes)) return false;
  }
  told->at = both[0];
  told->is_replaced = both[0] == first;
  told->after = ask(driver, both[0]);
  return true;
}

// False: the two cannot go on. What the driver refuses is printed.
bool show(const Driver& driver, pinrail_mpool_t* pool, const Case& what, int socket) {
  Memory memory(driver, what.kind);
  Told told{};
  CUdeviceptr both[2] = {};
  size_t offset = 0;
  char go = 0;
  const bool started = memory.start();
  told.bytes = std::max(what.bytes, memory.unit());
  told.is_there = started && make_two(driver, memory, &told, both);
  for (unsigned i = 0; told.is_there && i < 2; ++i) {
    told.exported[i] = pinrail_mpool_export(pool, pointer_of(both[i]), told.bytes, &told.blocks[i], &offset);
  }
  if (!send_all(socket, &told, sizeof(told)) || !receive_all(socket, &go, 1)) return false;
  if (!told.is_there) return true;
  bool well = true;
  for (const CUdeviceptr at : both) {
    pinrail_monitor_report(pointer_of(at), told.bytes);
    well = memory.free(at, told.bytes) && well;
  }
  return memory.stop() && well;
}

// A peer's memory, open as long as this lives: the pool keeps nothing.
class Opened {
 public:
  Opened(pinrail_mpool_t* pool, const Told& told, unsigned which) : bytes_(told.bytes), number_(which + 1) {
    status_ = told.exported[which];
    if (status_ != PINRAIL_SUCCESS) return;
    status_ =
        pinrail_mpool_register_remote(pool, &told.blocks[which], 0, bytes_, PINRAIL_ACCESS_REMOTE_READ, 0, &handle_);
    is_open_ = status_ == PINRAIL_SUCCESS;
  }
  ~Opened() { close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  pinrail_status_t status() const { return status_; }
  pinrail_status_t close() {
    if (!is_open_) return PINRAIL_SUCCESS;
    is_open_ = false;
    return pinrail_mpool_deregister(handle_);
  }
  // Whether all of it is what its owner wrote.
  bool is_right() const {
    std::vector<uint64_t> words(bytes_ / sizeof(uint64_t));
    return is_open_ && pinrail_mpool_device_read(handle_, 0, words.data(), bytes_) == PINRAIL_SUCCESS &&
           strangers(words, number_, 0) == 0;
  }

 private:
  const size_t bytes_;
  const uint64_t number_;
  pinrail_status_t status_ = PINRAIL_SUCCESS;
  bool is_open_ = false;
  pinrail_handle_t handle_{};
};

// Looks at both, closes the first, and looks at the other.
bool look_at(const char* what, Opened* first, Opened* second) {
  const bool both = first->is_right() && second->is_right();
  const pinrail_status_t opened = first->status(), also_opened = second->status(), closed = first->close();
  const bool rest = second->is_right();
  const pinrail_status_t also_closed = second->close();
  std::printf(
      ", \"%s\": {\"open\": %d, \"open_other\": %d, \"both_are_right\": %s, \"close\": %d, \"other_is_right_still\": "
      "%s, "
      "\"close_other\": %d}",
      what, opened, also_opened, text_of(both), closed, text_of(rest), also_closed);
  return both && rest && closed == PINRAIL_SUCCESS && also_closed == PINRAIL_SUCCESS;
}

// pools: two that keep nothing.
bool look_at_all(pinrail_mpool_t* const pools[2], int socket) {
  bool well = true;
  Told told;
  for (const Case& what : kCases) {
    if (!receive_all(socket, &told, sizeof(told))) return false;
    std::printf("\"%s\": ", what.name);
    if (told.is_there) {
      const Said& said = told.after;
      std::printf(
          "{\"bytes\": %zu, \"attributes\": %d, \"legacy\": %d, \"handle_types\": %llu, \"begins_before\": %lld, "
          "\"size\": %zu, \"is_replaced_there\": %s, \"other_buffer_id\": %s",
          told.bytes, said.error, said.is_legacy, said.handle_types, static_cast<long long>(told.at - said.start),
          said.size, text_of(told.is_replaced), text_of(said.id != told.before.id));
      Opened first(pools[0], told, 0), second(pools[0], told, 1);
      well = look_at("two_allocations", &first, &second) && well;
      Opened again(pools[0], told, 0), of_other_pool(pools[1], told, 0);
      well = look_at("one_in_two_pools", &again, &of_other_pool) && well;
      std::printf("}, ");
    } else {
      std::printf("null, ");
    }
    if (!send_all(socket, "g", 1)) return false;
  }
  return well;
}

// What a hit saves, and when memory comes back.

constexpr size_t kBytes = size_t{256} << 20;  // large enough to be seen beside what else happens on the GPU
constexpr int kOpens = 200, kHits = 1000000;
constexpr double kLeastRatio = 500;
constexpr uint32_t kGiveUpMs = 30000;

using Clock = std::chrono::steady_clock;
double ns_since(Clock::time_point before, double count) {
  return std::chrono::duration<double, std::nano>(Clock::now() - before).count() / count;
}

// What the exporter sees of its own free.
struct Freed {
  double released_ms;   // until the GPU had the bytes again; below 0: never
  size_t free_at_once;  // bytes that were there again when cuMemFree returned: the peer still had them open
};

// Nine tenths of the bytes: others may use the GPU too.
bool watch_release(const Driver& driver, CUdeviceptr at, Freed* freed) {
  size_t before = 0, now = 0, total = 0;
  if (driver.info(&before, &total) != CUDA_SUCCESS) return false;
  pinrail_monitor_report(pointer_of(at), kBytes);
  const auto begin = Clock::now();
  if (driver.free(at) != CUDA_SUCCESS || driver.info(&now, &total) != CUDA_SUCCESS) return false;
  freed->free_at_once = now > before ? now - before : 0;
  freed->released_ms = -1;
  while (now < before + kBytes / 10 * 9) {
    if (ns_since(begin, 1e6) > kGiveUpMs) return true;
    usleep(1000);
    if (driver.info(&now, &total) != CUDA_SUCCESS) return false;
  }
  freed->released_ms = ns_since(begin, 1e6);
  return true;
}

bool lend_and_free(const Driver& driver, pinrail_mpool_t* pool, int socket) {
  pinrail_gpu_block_t block{};
  CUdeviceptr at = 0;
  size_t offset = 0;
  char go = 0;
  Freed freed{};
  return driver.alloc(&at, kBytes) == CUDA_SUCCESS &&
         pinrail_mpool_export(pool, pointer_of(at), kBytes, &block, &offset) == PINRAIL_SUCCESS &&
         send_all(socket, &block, sizeof(block)) && receive_all(socket, &go, 1) && watch_release(driver, at, &freed) &&
         send_all(socket, &freed, sizeof(freed));
}

bool measure_opens(const Driver& driver, const pinrail_gpu_block_t& block, double* open_ns, double* close_ns) {
  CUipcMemHandle handle;
  std::memcpy(&handle, block.driver, sizeof(handle));
  *open_ns = *close_ns = 0;
  for (int i = 0; i < kOpens; ++i) {
    CUdeviceptr at = 0;
    const auto before = Clock::now();
    if (driver.open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return false;
    *open_ns += ns_since(before, kOpens);
    const auto opened = Clock::now();
    if (driver.close(at) != CUDA_SUCCESS) return false;
    *close_ns += ns_since(opened, kOpens);
  }
  return true;
}

bool use(pinrail_mpool_t* pool, const pinrail_gpu_block_t& block) {
  pinrail_handle_t handle{};
  return pinrail_mpool_register_remote(pool, &block, 0, kBytes, PINRAIL_ACCESS_REMOTE_READ, 0, &handle) ==
             PINRAIL_SUCCESS &&
         pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
}

bool measure_hits(pinrail_mpool_t* pool, const pinrail_gpu_block_t& block, double* hit_ns) {
  if (!use(pool, block)) return false;
  const auto before = Clock::now();
  for (int i = 0; i < kHits; ++i) {
    if (!use(pool, block)) return false;
  }
  *hit_ns = ns_since(before, kHits);
  return true;
}

// keeping: a pool that keeps what is idle.
bool measure(const Driver& driver, pinrail_mpool_t* keeping, int socket, bool is_double) {
  pinrail_gpu_block_t block{};
  double open_ns = 0, close_ns = 0, hit_ns = 0;
  Freed freed{};
  if (!receive_all(socket, &block, sizeof(block)) || !measure_opens(driver, block, &open_ns, &close_ns) ||
      !measure_hits(keeping, block, &hit_ns) || !send_all(socket, "g", 1) ||
      !receive_all(socket, &freed, sizeof(freed))) {
    return false;
  }
  std::printf(
      "\"cache\": {\"open_ns\": %.0f, \"close_ns\": %.0f, \"hit_and_release_ns\": %.1f, \"open_to_hit\": %.0f, "
      "\"bytes\": %zu, \"free_at_once\": %zu, \"released_ms\": %.1f}",
      open_ns, close_ns, hit_ns, open_ns / hit_ns, kBytes, freed.free_at_once, freed.released_ms);
  if (freed.released_ms < 0) std::fprintf(stderr, "kinds: the memory did not come back in %u ms\n", kGiveUpMs);
  return freed.released_ms >= 0 && (is_double || open_ns / hit_ns >= kLeastRatio);
}

int export_all(const Driver& driver, int socket) {
  const char* why = "";
  if (!driver.start(&why) || !driver.has_kinds) return 77;
  if (!initialise({{"monitor", "external"}})) return 1;
  pinrail_mpool_t* pool = make_pool("gpusm", 1, PINRAIL_UNSET);
  bool well = pool != nullptr;
  for (const Case& what : kCases) well = well && show(driver, pool, what, socket);
  well = well && lend_and_free(driver, pool, socket);
  well = pool != nullptr && pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}

int import_all(const Driver& driver, int socket, bool is_double) {
  const char* why = "";
  if (!driver.start(&why)) return 77;
  if (!initialise({{"monitor", "external"}})) return 1;
  pinrail_mpool_t* const pools[] = {make_pool("rgpusm", 0, PINRAIL_UNSET), make_pool("rgpusm", 0, PINRAIL_UNSET),
                                    make_pool("rgpusm", 1, PINRAIL_UNSET)};
  const bool are_there = std::find(std::begin(pools), std::end(pools), nullptr) == std::end(pools);
  std::printf("{");
  bool well = are_there && look_at_all(pools, socket);
  well = are_there && measure(driver, pools[2], socket, is_double) && well;
  std::printf("}\n");
  for (pinrail_mpool_t* const pool : pools) well = pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Driver driver;
  const bool is_double = argc == 2 && std::strcmp(argv[1], "--double") == 0;
  if (argc != 1 && !is_double) {
    std::fprintf(stderr, "usage: kinds [--double]\n");
    return 2;
  }
  if (!driver.load("kinds", is_double)) return 77;
  const TwoProcesses both([&](int socket) { return export_all(driver, socket); });  // before the driver is started
  return both.end(import_all(driver, both.socket(), is_double));
}
