// SPDX-License-Identifier: BSD-3-Clause
// kinds - what the driver says of each kind of memory that can be exported; whether a peer can have two allocations of
// it open at a time, and one of them after the other was closed; and whether two pools of a peer can have one open, and
// one of them after the other has closed it. Two processes; prints one JSON object. Errors are the driver's numbers, 0:
// none; statuses are Pinrail's; null: the driver has no memory of that kind.
//   kinds [--double]
// Exit: 0; 1 a peer did not see what the owner wrote; 2 usage; 77 no driver or no GPU here.
#include <algorithm>
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
  CUresult attributes;  // of the next five
  CUdeviceptr start;
  size_t size;
  unsigned long long id, handle_types;
  int is_legacy;
  CUmemoryPool pool;
  CUresult range, range_without_context;  // cuMemGetAddressRange
  CUdeviceptr range_start;
  size_t range_size;
  CUresult block;
  unsigned long long block_id;
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
  constexpr auto kMemoryBlockId = static_cast<CUpointer_attribute>(20);  // older headers lack the name
  Said said{};
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&said.start, &said.size, &said.id, &said.handle_types, &said.is_legacy, &said.pool};
  said.attributes = driver.attributes(sizeof(names) / sizeof(names[0]), names, values, at);
  said.range = driver.range(&said.range_start, &said.range_size, at);
  said.block = driver.attribute(&said.block_id, kMemoryBlockId, at);
  CUcontext own = nullptr;
  CUdeviceptr start = 0;
  size_t size = 0;
  driver.pop(&own);
  said.range_without_context = driver.range(&start, &size, at);
  driver.push(own);
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

bool free_two(const Memory& memory, size_t bytes, const CUdeviceptr both[2]) {
  bool well = true;
  for (unsigned i = 0; i < 2; ++i) {
    pinrail_monitor_report(pointer_of(both[i]), bytes);
    well = memory.free(both[i], bytes) && well;
  }
  return well;
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
  return !told.is_there || (free_two(memory, told.bytes, both) && memory.stop());
}

int show_all(const Driver& driver, int socket) {
  const char* why = "";
  if (!driver.start(&why) || !driver.has_kinds) return 77;
  if (!initialise({{"monitor", "external"}})) return 1;
  pinrail_mpool_t* pool = make_pool("gpusm", 1, PINRAIL_UNSET);
  bool well = pool != nullptr;
  for (const Case& what : kCases) well = well && show(driver, pool, what, socket);
  well = pool != nullptr && pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS && well;
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
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

const char* text_of(bool is) { return is ? "true" : "false"; }

void print(const Told& told) {
  const Said& said = told.after;
  std::printf(
      "\"bytes\": %zu, \"attributes\": %d, \"legacy\": %d, \"handle_types\": %llu, \"has_pool\": %s, "
      "\"attributes_begin_before\": %lld, \"attributes_size\": %zu, ",
      told.bytes, said.attributes, said.is_legacy, said.handle_types, text_of(said.pool != nullptr),
      static_cast<long long>(told.at - said.start), said.size);
  std::printf(
      "\"range\": %d, \"range_without_context\": %d, \"range_begins_before\": %lld, \"range_size\": %zu, "
      "\"block_id\": %d, ",
      said.range, said.range_without_context, static_cast<long long>(told.at - said.range_start), said.range_size,
      said.block);
  std::printf("\"is_replaced_there\": %s, \"other_buffer_id\": %s, \"other_block_id\": %s, ", text_of(told.is_replaced),
              text_of(said.id != told.before.id), text_of(said.block_id != told.before.block_id));
}

// The importer's pools, which keep nothing open.
struct Pools {
  pinrail_mpool_t* const first = make_pool("rgpusm", 0, PINRAIL_UNSET);
  pinrail_mpool_t* const second = make_pool("rgpusm", 0, PINRAIL_UNSET);
  bool are_there() const { return first != nullptr && second != nullptr; }
  bool destroy() const {
    return pinrail_mpool_destroy(first, 0) == PINRAIL_SUCCESS && pinrail_mpool_destroy(second, 0) == PINRAIL_SUCCESS;
  }
};

bool look_twice(const Pools& pools, const Told& told) {
  Opened first(pools.first, told, 0), again(pools.second, told, 0);
  const bool both = first.is_right() && again.is_right();
  const pinrail_status_t closed = first.close();
  const bool rest = again.is_right();
  std::printf("\"open_again\": %d, \"close_one\": %d, \"the_other_is_right_still\": %s", again.status(), closed,
              text_of(rest));
  return both && rest && closed == PINRAIL_SUCCESS && again.close() == PINRAIL_SUCCESS;
}

bool look(pinrail_mpool_t* pool, const Told& told) {
  Opened first(pool, told, 0), second(pool, told, 1);
  const bool both = first.is_right() && second.is_right();
  std::printf("\"open_first\": %d, \"open_second\": %d, \"both_are_right\": %s, ", first.status(), second.status(),
              text_of(both));
  const pinrail_status_t closed = first.close();
  const bool rest = second.is_right();
  const pinrail_status_t closed_second = second.close();
  std::printf("\"close_first\": %d, \"second_is_right_still\": %s, \"close_second\": %d, ", closed, text_of(rest),
              closed_second);
  return both && rest && closed == PINRAIL_SUCCESS && closed_second == PINRAIL_SUCCESS;
}

bool look_at_all(const Pools& pools, int socket) {
  bool well = true;
  const char* before = "{";
  Told told;
  for (const Case& what : kCases) {
    if (!receive_all(socket, &told, sizeof(told))) return false;
    std::printf("%s\"%s\": %s", before, what.name, told.is_there ? "{" : "null");
    before = ", ";
    if (told.is_there) {
      print(told);
      well = look(pools.first, told) && well;
      well = look_twice(pools, told) && well;
      std::printf("}");
    }
    if (!send_all(socket, "g", 1)) return false;
  }
  std::printf("}\n");
  return well;
}

int import_all(const Driver& driver, int socket) {
  const char* why = "";
  if (!driver.start(&why)) return 77;
  if (!initialise({{"monitor", "external"}})) return 1;
  const Pools pools;
  bool well = pools.are_there() && look_at_all(pools, socket);
  well = pools.are_there() && pools.destroy() && well;
  return pinrail_finalize() == PINRAIL_SUCCESS && well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Driver driver;
  bool is_double = false;
  if (!read_double(argc, argv, "kinds", &is_double)) return 2;
  if (!driver.load("kinds", is_double)) return 77;
  const TwoProcesses both([&](int socket) { return show_all(driver, socket); });  // before the driver is started
  return both.end(import_all(driver, both.socket()));
}
