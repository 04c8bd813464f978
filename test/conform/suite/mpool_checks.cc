// SPDX-License-Identifier: BSD-3-Clause
// What every pool must do. The library loads the component from a folder with a link to the file, and pools of it are
// used by the public calls, over a registrar that watches what reaches the device (test/fake/fake_registrar.h).
#include <pinrail/pinrail.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/loader/loader.h"
#include "test/conform/suite/component.h"
#include "test/fake/fake_registrar.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::conform {
namespace {

using fake::FakeRegistrar;
using test::Mapping;
using test::page_size;

constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ, kWrite = PINRAIL_ACCESS_REMOTE_WRITE;
constexpr size_t kPages = 64;
const size_t kPage = page_size();

const pinrail_mpool_options_t kDefault = PINRAIL_MPOOL_OPTIONS_INIT;

std::string said;  // by the library, in this process

void hear(void*, int, const char*, const char* text) {
  if (said.size() < 4096) said += std::string(text) + "\n";
}

// A folder with a link to the file under the name that the loader expects.
std::string folder_of(const File& file, const std::string& name) {
  std::string folder = (std::filesystem::temp_directory_path() / "pinrail_conform.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return "";
  char* const real = realpath(file.path.c_str(), nullptr);
  const std::string link = folder + "/" + file.framework + "_" + name + ".so";
  const bool made = real != nullptr && symlink(real, link.c_str()) == 0;
  std::free(real);
  if (!made) rmdir(folder.c_str());
  return made ? folder : "";
}

// A pool of the component in a library of its own. The process ends after the check, so little is undone.
class Pool {
 public:
  Pool(const File& file, const pinrail_mpool_options_t& pool_options, Verdict* verdict) : verdict_(verdict) {
    const pinrail_component_t* component = load(file, verdict);
    if (component == nullptr) return;
    name_ = loader::text_of(component->name);
    pinrail_set_message_function(hear, nullptr);
    folder_ = folder_of(file, name_);
    std::string path = folder_;
    if (!file.other_components.empty()) path += ":" + file.other_components;
    path += ":" + loader::default_component_path();
    if (!begin(path.c_str(), "external", verdict)) return;
    pinrail_status_t made = create(registrar_.table(), "checked", pool_options, &pool_);
    // One that follows the mappings refuses "external", which reports before memory is gone.
    if (made == PINRAIL_ERR_NOT_SUPPORTED && pinrail_finalize() == PINRAIL_SUCCESS) {
      if (!begin(path.c_str(), "^external", verdict)) return;
      made = create(registrar_.table(), "checked", pool_options, &pool_);
      registers_ahead_ = true;
    }
    end_folder();
    if (made == PINRAIL_ERR_NOT_SUPPORTED) {
      verdict->skipped = "it makes no such pools for a registrar of host memory";
    } else if (made != PINRAIL_SUCCESS) {
      verdict->breaks("R2", std::string("create() returns ") + pinrail_status_name(made) + ": " + said);
    }
  }
  ~Pool() { end_folder(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Starts the library. False: it does not start, which is a finding.
  bool begin(const char* path, const char* monitor, Verdict* verdict) const {
    const pinrail_setting_t settings[] = {
        {"mca_base_component_path", path}, {"mpool", name_.c_str()}, {"monitor", monitor}, {"registrar", "none"}};
    pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
    init.settings = settings;
    init.setting_count = sizeof(settings) / sizeof(settings[0]);
    if (pinrail_init(&init) == PINRAIL_SUCCESS) return true;
    verdict->breaks("C3", "the library does not start with it: " + said);
    return false;
  }
  pinrail_status_t create(const pinrail_registrar_t* table, const char* cache, const pinrail_mpool_options_t& options,
                          pinrail_mpool_t** pool_out) const {
    pinrail_registrar_choice_t choice{};
    choice.table = table;
    return pinrail_mpool_create(name_.c_str(), &choice, cache, &options, pool_out);
  }
  bool usable() const { return pool_ != nullptr; }
  // Whether its pools register what is mapped, on a thread of the library's, at any time.
  bool registers_ahead() const { return registers_ahead_; }
  pinrail_mpool_t* pool() const { return pool_; }
  FakeRegistrar& device() { return registrar_; }

  pinrail_status_t add(void* addr, size_t length, uint32_t access, pinrail_handle_t* handle, uint32_t flags = 0) {
    const pinrail_handle_t before = *handle;
    const pinrail_status_t status = pinrail_mpool_register(pool_, addr, length, access, flags, handle);
    if (!is_status(status)) verdict_->breaks("C5", "register_mem() returns a code that does not exist");
    if (status != PINRAIL_SUCCESS && std::memcmp(&before, handle, sizeof(before)) != 0) {
      verdict_->breaks("C4", "register_mem() fails and writes handle_out");
    }
    return status;
  }
  // Registers, and looks that the result covers the request and that the device knows it.
  pinrail_handle_t get(void* addr, size_t length, uint32_t access, uint32_t flags = 0) {
    pinrail_handle_t handle{};
    const pinrail_status_t status = add(addr, length, access, &handle, flags);
    if (status != PINRAIL_SUCCESS) {
      verdict_->breaks("R2", std::string("a valid request returns ") + pinrail_status_name(status) + ": " + said);
      return handle;
    }
    const auto base = reinterpret_cast<uintptr_t>(handle.reg->base), from = reinterpret_cast<uintptr_t>(addr);
    if (base > from || from + length > base + handle.reg->length) {
      verdict_->breaks("R2", "the registration does not cover the range that was asked for");
    }
    if ((handle.reg->rights & access) != (access & PINRAIL_RIGHTS_MASK)) {
      verdict_->breaks("R2", "the registration lacks rights that were asked for");
    }
    if (!registrar_.is_live(handle.reg)) {
      verdict_->breaks("R9", "the registration that is returned is not registered with the device");
    }
    return handle;
  }
  void put(pinrail_handle_t handle) {
    if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) verdict_->breaks("R9", "deregister of a handle fails");
  }
  pinrail_mpool_stats_t stats() {
    pinrail_mpool_stats_t stats{};
    stats.size = sizeof(stats);
    if (pinrail_mpool_read_stats(pool_, &stats) != PINRAIL_SUCCESS) verdict_->breaks("R8", "stats() fails");
    return stats;
  }
  pinrail_status_t destroy(uint32_t flags) {
    const pinrail_status_t status = pinrail_mpool_destroy(pool_, flags);
    if (status == PINRAIL_SUCCESS) pool_ = nullptr;
    return status;
  }
  // Destroys the pool, and looks that the device has everything back and saw no wrong call.
  void finish() {
    if (!verdict_->kept() || !verdict_->skipped.empty() || pool_ == nullptr) return;
    registrar_.clear_script();  // it may refer to what the check had
    const pinrail_status_t status = destroy(0);
    if (status != PINRAIL_SUCCESS) {
      verdict_->breaks("R10", std::string("destroy() without references returns ") + pinrail_status_name(status));
    } else if (registrar_.live_count() != 0) {
      verdict_->breaks("R10", "destroy() leaves registrations with the device");
    } else if (!registrar_.violations().empty()) {
      verdict_->breaks("R9", "the device saw: " + registrar_.violations().front());
    } else if (pinrail_finalize() != PINRAIL_SUCCESS) {
      verdict_->breaks("R10", "the library cannot be finalized");
    }
  }

 private:
  void end_folder() {
    if (folder_.empty()) return;
    unlink((folder_ + "/mpool_" + name_ + ".so").c_str());
    rmdir(folder_.c_str());
    folder_.clear();
  }

  Verdict* verdict_;
  FakeRegistrar registrar_;
  std::string name_, folder_;
  pinrail_mpool_t* pool_ = nullptr;
  bool registers_ahead_ = false;
};

void a_registration_covers_its_request(Pool& pool, const Mapping& memory, Verdict* verdict) {
  for (const size_t offset : {size_t{0}, size_t{1}, kPage - 1, 3 * kPage + 100}) {
    for (const size_t length : {size_t{1}, kPage, kPage + 1, 5 * kPage}) {
      for (const uint32_t access : {0u, kRead, kRead | kWrite}) {
        const pinrail_handle_t handle = pool.get(memory.at(offset), length, access);
        if (!verdict->kept()) return;
        KEEPS("R2", reinterpret_cast<uintptr_t>(handle.reg->base) % kPage == 0 && handle.reg->length % kPage == 0,
              "the range is not rounded to the registrar's granularity");
        KEEPS("C6", handle.reg->pool == pool.pool(), "the registration's pool is not the pool that was asked");
        pool.put(handle);
      }
    }
  }
}

void what_the_registrar_refuses_leaves_nothing(Pool& pool, const Mapping& memory, Verdict* verdict) {
  for (const auto refusal : {PINRAIL_ERR_ERROR, PINRAIL_ERR_PERM, PINRAIL_ERR_NOT_SUPPORTED}) {
    pool.device().fail_every_register(refusal);
    pinrail_handle_t handle{};
    KEEPS("R2", pool.add(memory.base(), kPage, kRead, &handle) == refusal, "the registrar's error is not returned");
    if (!verdict->kept()) return;
    KEEPS("R2", pool.stats().registered_count == 0 && pool.stats().registered_bytes == 0,
          "after an error the pool counts a registration");
  }
  pool.device().fail_every_register(PINRAIL_SUCCESS);
  pool.put(pool.get(memory.base(), kPage, kRead));
}

void a_handle_serves_once(Pool& pool, const Mapping& memory, Verdict* verdict) {
  const pinrail_handle_t handle = pool.get(memory.base(), kPage, kRead, PINRAIL_FLAG_CACHE_BYPASS);
  if (!verdict->kept()) return;
  pool.put(handle);
  KEEPS("R9", pinrail_mpool_deregister(handle) == PINRAIL_ERR_BAD_PARAM, "a second deregister is not BAD_PARAM");
}

void what_is_referenced_stays_with_the_device(Pool& pool, const Mapping& memory, Verdict* verdict) {
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < 8; ++i) held.push_back(pool.get(memory.at(i * kPage), kPage, kRead));
  if (!verdict->kept()) return;
  while (pinrail_mpool_evict(pool.pool()) == PINRAIL_SUCCESS) {
  }
  pinrail_monitor_report(memory.base(), 4 * kPage);
  static_cast<void>(pinrail_mpool_progress(pool.pool()));
  for (const pinrail_handle_t& handle : held) {
    KEEPS("R9", pool.device().is_live(handle.reg), "evict, an event or progress deregisters what is referenced");
  }
  for (const pinrail_handle_t& handle : held) pool.put(handle);
}

void bypass_is_registered_and_deregistered_at_once(Pool& pool, const Mapping& memory, Verdict* verdict) {
  const size_t before = pool.device().live_count();
  const pinrail_handle_t handle = pool.get(memory.base(), kPage, kRead, PINRAIL_FLAG_CACHE_BYPASS);
  if (!verdict->kept()) return;
  pool.put(handle);
  KEEPS("R1", pool.device().live_count() == before, "CACHE_BYPASS: the last deregister leaves it with the device");
  KEEPS("R12", pool.device().deregistered(PINRAIL_REASON_RELEASED) == 1, "its reason is not RELEASED");
}

void destroy_is_busy_while_something_is_referenced(Pool& pool, const Mapping& memory, Verdict* verdict) {
  const pinrail_handle_t handle = pool.get(memory.base(), kPage, kRead);
  if (!verdict->kept()) return;
  KEEPS("R10", pool.destroy(0) == PINRAIL_ERR_BUSY, "destroy() with a reference is not BUSY");
  KEEPS("R10", pool.device().is_live(handle.reg), "destroy() is BUSY and deregisters all the same");
  pool.put(handle);
}

void forced_destroy_returns_all_and_handles_stay_harmless(Pool& pool, const Mapping& memory, Verdict* verdict) {
  const pinrail_handle_t handle = pool.get(memory.base(), kPage, kRead);
  const pinrail_handle_t second = pool.get(memory.at(8 * kPage), kPage, kRead | kWrite);
  if (!verdict->kept()) return;
  KEEPS("R10", pool.destroy(PINRAIL_DESTROY_FORCE) == PINRAIL_SUCCESS, "forced destroy() fails");
  KEEPS("R10", pool.device().live_count() == 0, "forced destroy() leaves registrations with the device");
  const uint64_t calls = pool.device().deregister_calls();
  KEEPS("R10",
        pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS && pinrail_mpool_deregister(second) == PINRAIL_SUCCESS,
        "after a forced destroy() a handle is not good for one deregister");
  KEEPS("R10", pool.device().deregister_calls() == calls, "after a forced destroy() the registrar is called");
  KEEPS("R9", pool.device().violations().empty(), "the device saw a wrong call");
}

void after_an_event_nothing_old_is_returned(Pool& pool, const Mapping& memory, Verdict* verdict) {
  for (const bool by_call : {false, true}) {
    const pinrail_handle_t old_one = pool.get(memory.base(), 4 * kPage, kRead);
    if (!verdict->kept()) return;
    pool.put(old_one);
    const uint64_t registered = pool.device().register_calls();
    if (by_call) {
      KEEPS("E1", pinrail_mpool_invalidate_range(pool.pool(), memory.at(kPage), 1) == PINRAIL_SUCCESS,
            "invalidate_range_hook() fails");
    } else {
      pinrail_monitor_report(memory.at(kPage), 1);
    }
    pinrail_handle_t found{};
    KEEPS("E1", pinrail_mpool_find(pool.pool(), memory.base(), kPage, kRead, &found) == PINRAIL_ERR_NOT_FOUND,
          "after an event a find returns a registration that overlaps its range");
    const pinrail_handle_t new_one = pool.get(memory.base(), 4 * kPage, kRead);
    if (!verdict->kept()) return;
    KEEPS("E1", pool.device().register_calls() > registered,
          "after an event a register call returns a registration that overlaps its range");
    pool.put(new_one);
    pinrail_monitor_report(memory.base(), 4 * kPage);
  }
}

void what_an_event_took_is_deregistered_as_invalidated(Pool& pool, const Mapping& memory, Verdict* verdict) {
  const pinrail_handle_t held = pool.get(memory.base(), kPage, kRead);
  if (!verdict->kept()) return;
  pinrail_monitor_report(memory.base(), kPage);
  pool.put(held);
  static_cast<void>(pinrail_mpool_progress(pool.pool()));
  KEEPS("R12", pool.device().deregistered(PINRAIL_REASON_INVALIDATED) == 1,
        "what an event took is deregistered with another reason than INVALIDATED");
}

void a_registration_that_an_event_overtook_is_not_returned(Pool& pool, const Mapping& memory, Verdict* verdict) {
  std::atomic<int> events{1};
  pool.device().on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (events.fetch_sub(1) > 0) pinrail_monitor_report(request.addr, request.length);
  });
  const pinrail_handle_t handle = pool.get(memory.base(), kPage, kRead);
  if (!verdict->kept()) return;
  KEEPS("E2", pool.device().register_calls() == 2 && pool.device().deregistered(PINRAIL_REASON_INVALIDATED) == 1,
        "a registration whose memory had an event while the registrar ran is returned");
  pool.put(handle);
  events.store(1000000);
  pinrail_handle_t never{};
  const uint64_t calls = pool.device().register_calls();
  pinrail_monitor_report(memory.base(), kPage);
  KEEPS("R13", pool.add(memory.base(), kPage, kRead, &never) == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
        "with an event in each registrar call, the result is not TEMP_OUT_OF_RESOURCE");
  KEEPS("R13", pool.device().register_calls() <= calls + 5, "the registrar is called more often than 3 times again");
  events.store(0);
}

void when_the_device_is_full_idle_ones_make_room(Pool& pool, const Mapping& memory, Verdict* verdict) {
  for (size_t i = 0; i < 8; ++i) pool.put(pool.get(memory.at(i * kPage), kPage, kRead));
  if (!verdict->kept()) return;
  pool.device().set_capacity(SIZE_MAX, 8);
  pool.put(pool.get(memory.at(20 * kPage), kPage, kRead));
  if (!verdict->kept()) {
    verdict->rule = "R7";
    return;
  }
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < 8; ++i) held.push_back(pool.get(memory.at((24 + i) * kPage), kPage, kRead));
  if (!verdict->kept()) {
    verdict->rule = "R7";
    return;
  }
  pinrail_handle_t none{};
  const pinrail_status_t full = pool.add(memory.at(40 * kPage), kPage, kRead, &none);
  KEEPS("R7", full == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || full == PINRAIL_ERR_OUT_OF_RESOURCE,
        "when the device is full of referenced registrations, the result is not (TEMP_)OUT_OF_RESOURCE");
  for (const pinrail_handle_t& handle : held) {
    KEEPS("R9", pool.device().is_live(handle.reg), "to make room, a referenced registration is deregistered");
  }
  for (const pinrail_handle_t& handle : held) pool.put(handle);
}

void another_error_evicts_nothing(Pool& pool, const Mapping& memory, Verdict* verdict) {
  for (size_t i = 0; i < 8; ++i) pool.put(pool.get(memory.at(i * kPage), kPage, kRead));
  if (!verdict->kept()) return;
  const size_t live = pool.device().live_count();
  pool.device().fail_every_register(PINRAIL_ERR_ERROR);  // also what is asked for with fewer rights
  pinrail_handle_t none{};
  KEEPS("R7", pool.add(memory.at(20 * kPage), kPage, kRead, &none) == PINRAIL_ERR_ERROR, "the error is not returned");
  pool.device().fail_every_register(PINRAIL_SUCCESS);
  KEEPS("R7", pool.device().live_count() == live, "an error other than OUT_OF_RESOURCE evicts");
}

void limits_bound_what_is_registered(Pool& pool, const Mapping& memory, Verdict* verdict) {
  APPLIES_IF(pool.stats().count_limit == 4, "it has no limits, and its statistics say so");
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < 12; ++i) pool.put(pool.get(memory.at(2 * i * kPage), kPage, kRead));
  KEEPS("R8", pool.device().live_count() <= 4, "more registrations than count_limit are with the device");
  for (size_t i = 0; i < 4; ++i) held.push_back(pool.get(memory.at((30 + 2 * i) * kPage), kPage, kRead));
  if (!verdict->kept()) return;
  pinrail_handle_t none{};
  KEEPS("R8", pool.add(memory.at(50 * kPage), kPage, kRead, &none) == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
        "when referenced registrations use up the limit, the result is not TEMP_OUT_OF_RESOURCE");
  for (const pinrail_handle_t& handle : held) pool.put(handle);
}

void statistics_say_what_the_device_has(Pool& pool, const Mapping& memory, Verdict* verdict) {
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < 6; ++i) {
    held.push_back(pool.get(memory.at(4 * i * kPage), (1 + i % 3) * kPage, kRead));
    if (!verdict->kept()) return;
    const pinrail_mpool_stats_t stats = pool.stats();
    KEEPS("R8", stats.registered_count == pool.device().live_count(), "registered_count is not what the device has");
    KEEPS("R8", stats.registered_bytes == pool.device().live_bytes(), "registered_bytes is not what the device has");
  }
  for (const pinrail_handle_t& handle : held) pool.put(handle);
  KEEPS("R8", pool.stats().registered_count == pool.device().live_count(),
        "registered_count is not what the device has");
}

// If the pool holds a lock meanwhile, the second thread never comes back.
void a_slow_registrar_delays_no_other_range(Pool& pool, const Mapping& memory, Verdict* verdict) {
  pinrail_handle_t cached = pool.get(memory.base(), kPage, kRead);
  if (!verdict->kept()) return;
  pool.put(cached);
  std::atomic<bool> inside{false}, leave{false};
  const void* const slow = memory.at(16 * kPage);
  pool.device().on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (request.addr != slow) return;
    inside.store(true);
    while (!leave.load()) std::this_thread::yield();
  });
  pinrail_handle_t late{};
  std::thread blocked([&] { late = pool.get(memory.at(16 * kPage), kPage, kRead); });
  while (!inside.load()) std::this_thread::yield();
  verdict->at = "while a register_mem of the registrar runs";
  pool.put(pool.get(memory.base(), kPage, kRead));
  pool.put(pool.get(memory.at(32 * kPage), kPage, kRead));
  pinrail_monitor_report(memory.at(32 * kPage), kPage);
  static_cast<void>(pool.stats());
  leave.store(true);
  blocked.join();
  if (verdict->kept()) pool.put(late);
  verdict->at.clear();
}

void a_registrar_may_call_the_pool(Pool& pool, const Mapping& memory, Verdict* verdict) {
  pinrail_handle_t inner{};
  bool once = true;
  pool.device().on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (!once) return;
    once = false;
    inner = pool.get(request.addr, kPage, kRead);
  });
  const pinrail_handle_t outer = pool.get(memory.base(), 4 * kPage, kRead);
  if (!verdict->kept()) {
    verdict->rule = "R5";
    return;
  }
  pool.put(outer);
  pool.put(inner);
}

void an_event_allocates_nothing(Pool& pool, const Mapping& memory, Verdict* verdict) {
  APPLIES_IF(allocations_of_thread() >= 0, "allocations cannot be counted in this build");
  std::vector<pinrail_handle_t> held;
  for (size_t i = 0; i < 16; ++i) held.push_back(pool.get(memory.at(2 * i * kPage), kPage, kRead));
  if (!verdict->kept()) return;
  for (size_t i = 8; i < 16; ++i) pool.put(held[i]);
  static_cast<void>(allocations_of_thread());
  pinrail_monitor_report(memory.base(), kPages * kPage);
  KEEPS("E3", allocations_of_thread() == 0, "an event makes the pool allocate or free");
  const uint64_t calls = pool.device().deregister_calls();
  pinrail_monitor_report(memory.base(), kPages * kPage);
  KEEPS("E3", pool.registers_ahead() || pool.device().deregister_calls() == calls,
        "an event makes the pool call the registrar");
  for (size_t i = 0; i < 8; ++i) pool.put(held[i]);
}

void two_pools_share_no_registrations(Pool& pool, const Mapping& memory, Verdict* verdict) {
  FakeRegistrar other_device;
  pinrail_mpool_t* other = nullptr;
  KEEPS("R11", pool.create(other_device.table(), "checked", kDefault, &other) == PINRAIL_SUCCESS,
        "a second pool of the same cache name cannot be made");
  const pinrail_handle_t mine = pool.get(memory.base(), kPage, kRead);
  pinrail_handle_t theirs{};
  KEEPS("R11", pinrail_mpool_register(other, memory.base(), kPage, kRead, 0, &theirs) == PINRAIL_SUCCESS,
        "the second pool refuses what the first one has");
  KEEPS("R11", other_device.is_live(theirs.reg) && !pool.device().is_live(theirs.reg),
        "two pools share a registration");
  pool.put(mine);
  pool.put(theirs);
  KEEPS("R10", pinrail_mpool_destroy(other, 0) == PINRAIL_SUCCESS && other_device.live_count() == 0,
        "destroy() of the second pool fails or leaves registrations with its device");
}

void an_exact_pool_hits_only_equals(Pool& pool, const Mapping& memory, Verdict* verdict) {
  pool.put(pool.get(memory.base(), 4 * kPage, kRead));
  const pinrail_handle_t inner = pool.get(memory.at(kPage), kPage, kRead);
  if (!verdict->kept()) return;
  KEEPS("R3", inner.reg->length == kPage, "an EXACT pool returns a registration of another range");
  pool.put(inner);
}

void four_threads_get_what_they_ask_for(Pool& pool, const Mapping& memory, Verdict* verdict) {
  std::atomic<int> wrong{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < 800; ++step) {
      const size_t first = random() % 48;
      void* const addr = memory.at(first * kPage);
      pinrail_handle_t handle{};
      const pinrail_status_t status =
          pinrail_mpool_register(pool.pool(), addr, (1 + random() % 8) * kPage, step % 3 == 0 ? kRead : 0, 0, &handle);
      if (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) continue;  // events of other threads, R13
      if (status != PINRAIL_SUCCESS || handle.reg->base > addr || !pool.device().is_live(handle.reg)) ++wrong;
      if (step % 8 == 0) pinrail_monitor_report(addr, kPage);
      if (step % 32 == 0) static_cast<void>(pinrail_mpool_evict(pool.pool()));
      if (status == PINRAIL_SUCCESS && pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++wrong;
    }
  };
  test::on_threads(4u, work);
  KEEPS("R9", wrong.load() == 0,
        "with four threads, a referenced registration is not with the device, or a call fails");
}

enum class For : uint8_t {
  all,
  requests  // pools that call the registrar inside the calls that need it; others, as mpool/mrall, register ahead
};

// On a pool of its own, which must end well.
template <void (*check)(Pool& pool, const Mapping& memory, Verdict* verdict), For whom, uint32_t flags = 0,
          int64_t count_limit = PINRAIL_UNSET>
void on_pool(const File& file, Verdict* verdict) {
  pinrail_mpool_options_t options = kDefault;
  options.flags = flags;
  options.count_limit = count_limit;
  Pool pool(file, options, verdict);
  if (!pool.usable()) return;
  APPLIES_IF(whom == For::all || !pool.registers_ahead(), "it registers ahead of requests");
  const Mapping memory(kPages * kPage);
  check(pool, memory, verdict);
  pool.finish();
}

}  // namespace

const std::vector<FileCheck>& mpool_checks() {
#define CHECK_OF(rule, function, ...) \
  { rule, #function, on_pool<function, __VA_ARGS__> }
  static const auto* const checks =
      new std::vector<FileCheck>{CHECK_OF("R2", a_registration_covers_its_request, For::all),
                                 CHECK_OF("R2", what_the_registrar_refuses_leaves_nothing, For::requests),
                                 CHECK_OF("R9", a_handle_serves_once, For::requests),
                                 CHECK_OF("R9", what_is_referenced_stays_with_the_device, For::all),
                                 CHECK_OF("R1", bypass_is_registered_and_deregistered_at_once, For::requests),
                                 CHECK_OF("R10", destroy_is_busy_while_something_is_referenced, For::all),
                                 CHECK_OF("R10", forced_destroy_returns_all_and_handles_stay_harmless, For::all),
                                 CHECK_OF("E1", after_an_event_nothing_old_is_returned, For::requests),
                                 CHECK_OF("R12", what_an_event_took_is_deregistered_as_invalidated, For::requests),
                                 CHECK_OF("E2", a_registration_that_an_event_overtook_is_not_returned, For::requests),
                                 CHECK_OF("R7", when_the_device_is_full_idle_ones_make_room, For::requests),
                                 CHECK_OF("R7", another_error_evicts_nothing, For::requests),
                                 CHECK_OF("R8", limits_bound_what_is_registered, For::requests, 0, 4),
                                 CHECK_OF("R8", statistics_say_what_the_device_has, For::requests),
                                 CHECK_OF("R6", a_slow_registrar_delays_no_other_range, For::requests),
                                 CHECK_OF("R5", a_registrar_may_call_the_pool, For::requests),
                                 CHECK_OF("E3", an_event_allocates_nothing, For::all),
                                 CHECK_OF("R11", two_pools_share_no_registrations, For::all),
                                 CHECK_OF("R3", an_exact_pool_hits_only_equals, For::all, PINRAIL_POOL_EXACT),
                                 CHECK_OF("R9", four_threads_get_what_they_ask_for, For::all)};
#undef CHECK_OF
  return *checks;
}

}  // namespace pinrail::conform
