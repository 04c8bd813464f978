// SPDX-License-Identifier: BSD-3-Clause
// nixl.cc - a backend of NIXL in its shape: registerMem() gets one descriptor (address, length, device and a string of
// the backend's own) and the kind of memory, and returns an object that deregisterMem() gets back. What peers need is
// the key.
#include <cstdint>
#include <memory>
#include <string>

#include "test/adopt/device.h"

namespace {

enum class Memory { dram, vram };

struct Descriptor {
  uintptr_t addr;
  size_t len;
  uint64_t device;
  std::string meta;  // here: the descriptor of a dmabuf and an offset, "42:4096"; empty: none
};

struct Metadata {
  pinrail_handle_t handle{};
  uint64_t key = 0;
};

class Backend {
 public:
  explicit Backend(pinrail_mpool_t* pool) : pool_(pool) {}

  bool register_mem(const Descriptor& mem, Memory kind, std::unique_ptr<Metadata>* out) const {
    pinrail_register_options_t options = PINRAIL_REGISTER_OPTIONS_INIT;
    options.user_value = mem.device;
    if (kind == Memory::vram && !mem.meta.empty()) {
      const size_t colon = mem.meta.find(':');
      options.dmabuf_fd = std::stoi(mem.meta.substr(0, colon));
      options.dmabuf_offset = std::stoull(mem.meta.substr(colon + 1));
    }
    auto metadata = std::make_unique<Metadata>();
    constexpr uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;
    if (pinrail_mpool_register_with(pool_, reinterpret_cast<void*>(mem.addr), mem.len, kAccess, PINRAIL_FLAG_PERSISTENT,
                                    &options, &metadata->handle) != PINRAIL_SUCCESS) {
      return false;
    }
    pinrail_registration_details_t details;
    EXPECT(pinrail_registration_read_details(metadata->handle.reg, &details) == PINRAIL_SUCCESS);
    EXPECT(details.user_value == mem.device);
    EXPECT(details.iova == reinterpret_cast<uintptr_t>(metadata->handle.reg->base));
    metadata->key = details.rkey;
    *out = std::move(metadata);
    return true;
  }

  static bool deregister_mem(const Metadata& metadata) {
    return pinrail_mpool_deregister(metadata.handle) == PINRAIL_SUCCESS;
  }

 private:
  pinrail_mpool_t* const pool_;
};

}  // namespace

int main() {
  device_t device{};
  const pinrail_registrar_t table = device_table(&device);
  pinrail_mpool_t* const pool = device_pool(&table);
  const Backend backend(pool);
  std::unique_ptr<Metadata> dram, vram;
  EXPECT(backend.register_mem({0x10000000, 1 << 20, 0, ""}, Memory::dram, &dram));
  EXPECT(device.last.kind == PINRAIL_KIND_HOST);
  EXPECT(backend.register_mem({0x7f0000200000, 1 << 20, 5, "42:4096"}, Memory::vram, &vram));
  EXPECT(device.last.kind == PINRAIL_KIND_DMABUF && device.last.fd == 42 && device.last.fd_offset == 4096);
  EXPECT(dram->key != vram->key);
  // A transfer inside the registered memory calls no device.
  pinrail_handle_t handle;
  EXPECT(pinrail_mpool_register(pool, reinterpret_cast<void*>(0x10004000), 8192, PINRAIL_ACCESS_LOCAL_WRITE, 0,
                                &handle) == PINRAIL_SUCCESS);
  EXPECT(device.registered == 2);
  EXPECT(pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS);
  EXPECT(Backend::deregister_mem(*dram));
  EXPECT(Backend::deregister_mem(*vram));
  device_close(pool, &device);
  return 0;
}
