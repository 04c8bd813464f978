// SPDX-License-Identifier: BSD-3-Clause
// ofi_mr_cache.cc - a provider of libfabric in its shape: it gave ofi_mr_cache two functions, add_region and
// delete_region, for an entry with data of its own, and calls search, find, reg, delete, flush and notify.
#include <cstdint>

#include "test/adopt/device.h"

namespace {

// What the provider keeps for each region, behind the cache's own part in libfabric: the registrar's tail.
struct EntryData {
  uint64_t key;
};

class MrCache {
 public:
  explicit MrCache(device_t* device) : table_(device_table(device)) {
    table_.tail_size = sizeof(EntryData);
    table_.register_mem = add_region;
    pool_ = device_pool(&table_);
  }
  void cleanup(const device_t* device) { device_close(pool_, device); }

  bool search(uintptr_t base, size_t length, pinrail_handle_t* entry_out) {
    return pinrail_mpool_register(pool_, pointer(base), length, kAccess, 0, entry_out) == PINRAIL_SUCCESS;
  }
  bool find(uintptr_t base, size_t length, pinrail_handle_t* entry_out) {
    return pinrail_mpool_find(pool_, pointer(base), length, kAccess, entry_out) == PINRAIL_SUCCESS;
  }
  bool reg(uintptr_t base, size_t length, pinrail_handle_t* entry_out) {  // not cached
    return pinrail_mpool_register(pool_, pointer(base), length, kAccess, PINRAIL_FLAG_CACHE_BYPASS, entry_out) ==
           PINRAIL_SUCCESS;
  }
  static void remove(pinrail_handle_t entry) { EXPECT(pinrail_mpool_deregister(entry) == PINRAIL_SUCCESS); }
  bool flush(bool flushes_lru) {
    const pinrail_status_t done = pinrail_mpool_progress(pool_);  // what events have ended
    return flushes_lru ? pinrail_mpool_evict(pool_) == PINRAIL_SUCCESS : done == PINRAIL_SUCCESS;
  }
  void notify(uintptr_t base, size_t length) {
    EXPECT(pinrail_mpool_invalidate_range(pool_, pointer(base), length) == PINRAIL_SUCCESS);
  }
  static uint64_t key_of(pinrail_handle_t entry) {
    return static_cast<const EntryData*>(pinrail_registration_tail(entry.reg))->key;
  }

 private:
  static constexpr uint32_t kAccess =
      PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

  // NOLINTNEXTLINE(performance-no-int-to-ptr): an iovec's address
  static void* pointer(uintptr_t base) { return reinterpret_cast<void*>(base); }

  static pinrail_status_t add_region(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
    const pinrail_status_t status = device_register(context, request, reg);
    static_cast<EntryData*>(pinrail_registration_tail(reg))->key = UINT64_C(0x100000000) + reg->rkey;
    return status;
  }

  pinrail_registrar_t table_;
  pinrail_mpool_t* pool_ = nullptr;
};

}  // namespace

int main() {
  constexpr uintptr_t kBase = 0x10000000;
  constexpr size_t kLength = 1 << 20;
  device_t device{};
  MrCache cache(&device);
  pinrail_handle_t entry, inside, own;
  EXPECT(!cache.find(kBase, kLength, &entry));
  EXPECT(cache.search(kBase, kLength, &entry));
  EXPECT(MrCache::key_of(entry) == UINT64_C(0x100000001));
  EXPECT(cache.search(kBase + 4096, 8192, &inside));
  EXPECT(pinrail_handle_equal(entry, inside) && device.registered == 1);
  EXPECT(cache.reg(kBase, kLength, &own));
  EXPECT(device.registered == 2 && MrCache::key_of(own) != MrCache::key_of(entry));
  MrCache::remove(own);
  EXPECT(device.live == 1);  // what is not cached ends with its last reference
  MrCache::remove(inside);
  MrCache::remove(entry);
  EXPECT(cache.find(kBase, kLength, &entry));
  MrCache::remove(entry);
  cache.notify(kBase, 4096);
  EXPECT(!cache.find(kBase, kLength, &entry));
  EXPECT(cache.flush(false) && device.live == 0);
  EXPECT(cache.search(kBase, kLength, &entry));
  EXPECT(!cache.flush(true));  // it is referenced
  MrCache::remove(entry);
  EXPECT(cache.flush(true) && device.live == 0);
  cache.cleanup(&device);
  return 0;
}
