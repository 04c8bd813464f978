// SPDX-License-Identifier: BSD-3-Clause
// mooncake.cc - the calls registerLocalMemory, registerLocalMemoryBatch and unregisterLocalMemory of Mooncake's
// transfer engine in their shape: an address, a length, the name of a location ("cpu:0"), whether peers may access it;
// and a batch of buffers. They return 0, and memory is unregistered by its address.
#include <pinrail/pin.h>

#include <map>
#include <string>
#include <vector>

#include "test/adopt/device.h"

namespace {

class Engine {
 public:
  explicit Engine(pinrail_mpool_t* pool) : pool_(pool) {}

  int register_local_memory(void* addr, size_t length, const std::string& location, bool remote_accessible) {
    return register_ranges({{addr, length}}, location, remote_accessible);
  }
  int register_local_memory_batch(const std::vector<pinrail_range_t>& buffers, const std::string& location) {
    return register_ranges(buffers, location, true);
  }
  int unregister_local_memory(void* addr) {
    const auto at = known_.find(addr);
    if (at == known_.end()) return -1;
    const Known known = at->second;
    known_.erase(at);
    return pinrail_mpool_unpin(pool_, &known.range, 1, known.access) == PINRAIL_SUCCESS ? 0 : -1;
  }

 private:
  struct Known {
    pinrail_range_t range;
    uint32_t access;
  };

  int register_ranges(const std::vector<pinrail_range_t>& ranges, const std::string& location, bool remote_accessible) {
    const uint32_t access = PINRAIL_ACCESS_LOCAL_WRITE |
                            (remote_accessible ? PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE : 0u);
    pinrail_register_options_t registration = PINRAIL_REGISTER_OPTIONS_INIT;
    registration.argument = location.c_str();
    pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
    options.registration = &registration;
    if (pinrail_mpool_prepin(pool_, ranges.data(), ranges.size(), access, &options, nullptr) != PINRAIL_SUCCESS) {
      return -1;
    }
    for (const pinrail_range_t& range : ranges) known_[range.addr] = {range, access};
    return 0;
  }

  pinrail_mpool_t* const pool_;
  std::map<void*, Known> known_;
};

char* const kMemory = reinterpret_cast<char*>(0x10000000);
std::string seen_location;

pinrail_status_t register_noting_location(void* context, const pinrail_register_request_t* request,
                                          pinrail_registration_t* reg) {
  seen_location = static_cast<const char*>(request->argument);
  return device_register(context, request, reg);
}

}  // namespace

int main() {
  device_t device{};
  pinrail_registrar_t table = device_table(&device);
  table.register_mem = register_noting_location;
  pinrail_mpool_t* const pool = device_pool(&table);
  Engine engine(pool);
  EXPECT(engine.register_local_memory(kMemory, 1 << 20, "cpu:0", false) == 0);
  EXPECT(seen_location == "cpu:0");
  EXPECT(device.registered == 1);
  std::vector<pinrail_range_t> buffers;
  for (size_t i = 0; i < 1265; ++i) buffers.push_back({kMemory + (size_t{4} << 20) + i * 3000, 3000});
  EXPECT(engine.register_local_memory_batch(buffers, "cpu:1") == 0);
  EXPECT(seen_location == "cpu:1");
  EXPECT(device.registered == 2);
  for (const pinrail_range_t& buffer : buffers) EXPECT(engine.unregister_local_memory(buffer.addr) == 0);
  EXPECT(engine.unregister_local_memory(kMemory) == 0);
  EXPECT(engine.unregister_local_memory(kMemory) == -1);
  device_close(pool, &device);
  return 0;
}
