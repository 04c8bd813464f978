// SPDX-License-Identifier: BSD-3-Clause
// attack - random calls of pools beside a model of the rules; what it finds it can replay and shorten.
#include <pinrail/pinrail.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/core/compiler.h"
#include "framework/mpool/mpool.h"  // the layout of a pool, to reach its check()
#include "test/attack/world.h"
#include "test/fake/fake_registrar.h"

namespace pinrail::attack {
namespace {

constexpr char kHelp[] =
    "attack - random calls of pools beside a model of the rules R1 to R13, E1 and E2\n"
    "  --seed N       the first seed (default 1)\n"
    "  --worlds N     how many seeds, one after the other, each in a process of its own (default 200)\n"
    "  --steps N      steps of each (default 600)\n"
    "  --seconds N    go on with further seeds for so long\n"
    "  --threads N    instead: so many threads at once, with looser checks, for each seed\n"
    "  --only A,B,C   these steps only, by number\n"
    "  --tolerate T   goes on after faults whose text contains this; may be given more than once\n"
    "  --minimise     of the first seed that fails, leave out what can be left out, and print the rest\n"
    "Without an option: the defaults, then ten seeds with four threads.\n"
    "A failure prints what was done last, and the command that does it again. Exit status 1 then.\n";

struct Options {
  uint64_t seed = 1, worlds = 200, steps = 600, seconds = 0;
  size_t threads = 0;
  std::vector<uint64_t> only;
  std::vector<std::string> tolerated;
  bool minimises = false;
};

enum class Output { shown, hidden };

uint64_t seed_of(uint64_t world, uint64_t step) {
  uint64_t mixed = world * 0x9e3779b97f4a7c15 + step;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

// An exit status for each kind of fault, which is what stands before the colon.
int status_of(const std::string& fault) {
  constexpr size_t kStatuses = 120;
  return static_cast<int>(1 + std::hash<std::string>()(fault.substr(0, fault.find(':') + 24)) % kStatuses);
}

// In a process of its own: true if nothing was wrong.
bool run_steps(const Options& given, uint64_t seed, const std::vector<uint64_t>& steps, uint64_t* failed_step_out) {
  World world(seed, given.tolerated);
  for (const uint64_t step : steps) {
    *failed_step_out = step;
    world.step(seed_of(seed, step));
    if (!world.model().fault().empty()) break;
  }
  if (world.model().fault().empty()) world.end();
  if (world.model().fault().empty()) return true;
  for (const std::string& line : world.trace()) std::printf("    %s\n", line.c_str());
  std::printf("seed %" PRIu64 " step %" PRIu64 ": %s\n", seed, *failed_step_out, world.model().fault().c_str());
  std::fflush(stdout);
  // Threads may wait in calls, and pools are as they are.
  _exit(status_of(world.model().fault()));
}

// Forks, for a process that failed is of no use any more, and one that hangs can be ended.
int status_after(const Options& given, uint64_t seed, const std::vector<uint64_t>& steps, Output output) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    constexpr unsigned kMaxSeconds = 120;
    alarm(kMaxSeconds);
    if (output == Output::hidden) {
      (void)!std::freopen("/dev/null", "w", stdout);
      (void)!std::freopen("/dev/null", "w", stderr);
    }
    uint64_t step = 0;
    const bool passed =
        given.threads != 0 ? run_threads(seed, given.threads, given.steps) : run_steps(given, seed, steps, &step);
    std::fflush(stdout);
    _exit(passed ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && output == Output::shown) {
    std::printf("seed %" PRIu64 ": ended by signal %d\n", seed, WTERMSIG(status));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

std::string list_of(const std::vector<uint64_t>& steps) {
  std::string text;
  for (const uint64_t step : steps) text += (text.empty() ? "" : ",") + std::to_string(step);
  return text;
}

// Leaves out pieces as long as it fails in the same way without them, larger ones first.
std::vector<uint64_t> minimised(const Options& given, std::vector<uint64_t> steps, int failure) {
  for (size_t piece = steps.size() / 2; piece != 0; piece /= 2) {
    for (size_t at = 0; at < steps.size();) {
      std::vector<uint64_t> fewer(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(at));
      const size_t end = std::min(at + piece, steps.size());
      fewer.insert(fewer.end(), steps.begin() + static_cast<std::ptrdiff_t>(end), steps.end());
      if (status_after(given, given.seed, fewer, Output::hidden) == failure) {
        steps = std::move(fewer);
      } else {
        at += piece;
      }
    }
  }
  return steps;
}

std::vector<uint64_t> steps_of(const Options& given) {
  if (!given.only.empty()) return given.only;
  std::vector<uint64_t> steps(given.steps);
  for (uint64_t i = 0; i < given.steps; ++i) steps[i] = i;
  return steps;
}

int run(Options given) {
  const std::time_t begin = std::time(nullptr);
  const uint64_t first = given.seed;
  uint64_t done = 0;
  const auto goes_on = [&] {
    if (given.seconds == 0) return done < given.worlds;
    return std::time(nullptr) - begin < static_cast<std::time_t>(given.seconds);
  };
  for (uint64_t seed = first; goes_on(); ++seed, ++done) {
    given.seed = seed;
    const int status = status_after(given, seed, steps_of(given), Output::shown);
    if (status == 0) continue;
    const std::string mode = given.threads != 0 ? " --threads " + std::to_string(given.threads) : "";
    std::printf("failed; again: test/attack/attack --seed %" PRIu64 " --worlds 1 --steps %" PRIu64 "%s\n", seed,
                given.steps, mode.c_str());
    if (given.minimises && given.threads == 0) {
      const std::vector<uint64_t> steps = minimised(given, steps_of(given), status);
      status_after(given, seed, steps, Output::shown);
      std::printf("shortest: test/attack/attack --seed %" PRIu64 " --worlds 1 --only %s\n", seed,
                  list_of(steps).c_str());
    }
    return 1;
  }
  std::printf("attack: %" PRIu64 " seeds from %" PRIu64 " on, %" PRIu64 " steps each, nothing was wrong\n", done, first,
              given.steps);
  return 0;
}

bool parse(int count, char** arguments, Options* options) {
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--minimise") {
      options->minimises = true;
      continue;
    }
    if (i + 1 == count) return false;
    const char* const value = arguments[++i];
    const uint64_t number = std::strtoull(value, nullptr, 10);
    if (name == "--seed") {
      options->seed = number;
    } else if (name == "--worlds") {
      options->worlds = number;
    } else if (name == "--steps") {
      options->steps = number;
    } else if (name == "--seconds") {
      options->seconds = number;
    } else if (name == "--threads") {
      options->threads = number;
    } else if (name == "--tolerate") {
      options->tolerated.emplace_back(value);
    } else if (name == "--only") {
      for (const char* at = value; at != nullptr && *at != '\0'; at = std::strchr(at, ',')) {
        if (*at == ',') ++at;
        options->only.push_back(std::strtoull(at, nullptr, 10));
      }
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace pinrail::attack

int main(int count, char** arguments) {
  pinrail::attack::Options options;
  if (!pinrail::attack::parse(count, arguments, &options)) {
    std::fputs(pinrail::attack::kHelp, stderr);
    return 2;
  }
#ifdef PINRAIL_UNDER_THREAD_SANITIZER
  // A world makes one call at a time, so it has no race; and callbacks call each other's pools in both orders, of which
  // two calls at once would be the caller's deadlock.
  if (count == 1) options.worlds = 0;
#endif
  const int status = pinrail::attack::run(options);
  if (count > 1 || status != 0) return status;
  options.threads = 4;
  options.worlds = 10;
  options.steps = 4000;
  return pinrail::attack::run(options);
}

namespace pinrail::attack {
namespace {

constexpr size_t kPage = 4096;
constexpr uintptr_t kShared = 0x10000000;  // all threads
constexpr size_t kSharedPages = 32;
constexpr uintptr_t kOwn = 0x40000000;  // one thread each
constexpr uintptr_t kOwnStride = 0x1000000;
constexpr size_t kPools = 3;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Held {
  pinrail_handle_t handle;
  size_t pool;
};

class Battle {
 public:
  Battle(uint64_t seed, size_t threads);
  bool fight(uint64_t steps);

 private:
  void work(uint64_t seed, uint64_t steps, size_t number);
  void step(std::mt19937_64* random, std::vector<Held>* held, size_t number);
  void take(std::mt19937_64* random, std::vector<Held>* held);
  void drop_one(std::mt19937_64* random, std::vector<Held>* held);
  void use_own(std::mt19937_64* random, size_t number);
  void drop(const Held& held);
  void hand_over(std::mt19937_64* random, std::vector<Held>* held);
  void end();
  bool is_emptied(size_t pool);
  void note(const std::string& what);
  void hold(pinrail_registration_t* reg, int by);
  bool is_held(pinrail_registration_t* reg);

  const uint64_t seed_;
  const size_t threads_;
  uint64_t limit_ = UINT64_MAX, most_ = UINT64_MAX;  // bytes, registrations
  std::array<std::unique_ptr<fake::FakeRegistrar>, kPools> devices_;
  std::array<pinrail_mpool_t*, kPools> pools_{};
  std::mutex mutex_;  // guards what follows; never held across a call
  std::unordered_map<pinrail_registration_t*, int> holders_;
  std::vector<Held> passed_;  // from thread to thread
  std::string fault_;
};

Battle::Battle(uint64_t seed, size_t threads) : seed_(seed), threads_(threads) {
  std::mt19937_64 random(seed);
  const std::string gc_limit = random() % 2 == 0 ? "64K" : "64M";
  const pinrail_setting_t settings[] = {{"monitor", "external"},
                                        {"mpool_grdma_gc_thread", random() % 2 == 0 ? "never" : "auto"},
                                        {"mpool_grdma_gc_limit", gc_limit.c_str()}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 3;
  if (pinrail_init(&options) != PINRAIL_SUCCESS) {
    note("pinrail_init() failed");
    return;
  }
  if (random() % 2 == 0) limit_ = (64 + random() % 64) * kPage;
  if (random() % 3 == 0) most_ = 12 + random() % 24;
  for (size_t pool = 0; pool < kPools; ++pool) {
    fake::FakeOptions device;
    device.thread_mode = random() % 3 == 0 ? PINRAIL_THREAD_SERIALIZED : PINRAIL_THREAD_CONCURRENT;
    device.tail_size = 64;
    devices_[pool] = std::make_unique<fake::FakeRegistrar>(device);
    devices_[pool]->on_deregister([this](pinrail_registration_t* reg, pinrail_reason_t) {
      if (is_held(reg)) note("R9: a held registration is given back");
    });
    const uint64_t odds = 2 + random() % 30;
    devices_[pool]->on_register([this, odds](const pinrail_register_request_t& request, pinrail_registration_t*) {
      thread_local std::mt19937_64 own(reinterpret_cast<uintptr_t>(&own) ^ seed_);
      if (own() % odds == 0) pinrail_monitor_report(request.addr, 1);
      if (own() % 64 == 0) std::this_thread::yield();
    });
    pinrail_registrar_choice_t choice{};
    choice.table = devices_[pool]->table();
    pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
    wanted.leave_pinned = random() % 4 == 0 ? 0 : 1;
    wanted.flags = random() % 4 == 0 ? PINRAIL_POOL_EXACT : 0;
    wanted.size_limit = limit_ == UINT64_MAX ? 0 : static_cast<int64_t>(limit_);
    wanted.count_limit = most_ == UINT64_MAX ? 0 : static_cast<int64_t>(most_);
    if (pinrail_mpool_create("grdma", &choice, "battle", &wanted, &pools_[pool]) != PINRAIL_SUCCESS)
      note("a pool could not be made");
  }
}

void Battle::note(const std::string& what) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (fault_.empty()) fault_ = what;
}

void Battle::hold(pinrail_registration_t* reg, int by) {
  const std::lock_guard<std::mutex> guard(mutex_);
  holders_[reg] += by;
}

bool Battle::is_held(pinrail_registration_t* reg) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = holders_.find(reg);
  return found != holders_.end() && found->second > 0;
}

void Battle::drop(const Held& held) {
  hold(held.handle.reg, -1);
  if (pinrail_mpool_deregister(held.handle) != PINRAIL_SUCCESS) note("a handle that is held cannot be dropped");
}

void Battle::take(std::mt19937_64* random, std::vector<Held>* held) {
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kShared + (*random)() % kSharedPages * kPage;
  const size_t length = (1 + (*random)() % 6) * kPage;
  const uint32_t access = static_cast<uint32_t>((*random)() % 4);
  const uint64_t chance = (*random)() % 24;
  const uint32_t flags = chance == 0 ? PINRAIL_FLAG_CACHE_BYPASS : chance == 1 ? PINRAIL_FLAG_PERSISTENT : 0;
  pinrail_handle_t handle{};
  const bool finds = (*random)() % 8 == 0;
  const pinrail_status_t status =
      finds ? pinrail_mpool_find(pools_[pool], pointer(base), length, access, &handle)
            : pinrail_mpool_register(pools_[pool], pointer(base), length, access, flags, &handle);
  if (status == PINRAIL_SUCCESS) {
    hold(handle.reg, 1);
    const auto start = reinterpret_cast<uintptr_t>(handle.reg->base);
    const bool covers = start <= base && base + length <= start + handle.reg->length;
    if (!covers || (handle.reg->rights & access) != access || handle.reg->pool != pools_[pool])
      note("R2: a registration that does not cover what was asked for");
    held->push_back({handle, pool});
    return;
  }
  const bool usual = finds ? status == PINRAIL_ERR_NOT_FOUND
                           : status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || status == PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!usual) note(std::string("a call is refused with ") + pinrail_status_name(status));
}

void Battle::drop_one(std::mt19937_64* random, std::vector<Held>* held) {
  if (held->empty()) return;
  const size_t at = (*random)() % held->size();
  drop((*held)[at]);
  held->erase(held->begin() + static_cast<std::ptrdiff_t>(at));
}

// References go to other threads.
void Battle::hand_over(std::mt19937_64* random, std::vector<Held>* held) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!held->empty() && (*random)() % 2 == 0) {
    passed_.push_back(held->back());
    held->pop_back();
  } else if (!passed_.empty()) {
    held->push_back(passed_.front());
    passed_.erase(passed_.begin());
  }
}

// E1, of memory that no other thread uses.
void Battle::use_own(std::mt19937_64* random, size_t number) {
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kOwn + number * kOwnStride;
  pinrail_handle_t before{}, after{};
  if (pinrail_mpool_register(pools_[pool], pointer(base), 4 * kPage, 1, 0, &before) != PINRAIL_SUCCESS) return;
  hold(before.reg, 1);
  pinrail_monitor_report(pointer(base + (*random)() % (4 * kPage)), 1);
  if (pinrail_mpool_find(pools_[pool], pointer(base), 4 * kPage, 1, &after) == PINRAIL_SUCCESS) {
    hold(after.reg, 1);
    note("E1: found after the event");
    drop({after, pool});
  }
  drop({before, pool});
}

void Battle::step(std::mt19937_64* random, std::vector<Held>* held, size_t number) {
  const uint64_t what = (*random)() % 100;
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kShared + (*random)() % kSharedPages * kPage;
  if (what < 45 && held->size() < 6) return take(random, held);
  if (what < 80) return drop_one(random, held);
  if (what < 86) return hand_over(random, held);
  if (what < 90) return use_own(random, number);
  if (what < 94) return pinrail_monitor_report(pointer(base), 1 + (*random)() % (2 * kPage));
  if (what < 96) {
    const pinrail_status_t status = pinrail_mpool_evict(pools_[pool]);
    if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_NOT_FOUND) note("evict fails");
    return;
  }
  if (what < 98) {
    if (pinrail_mpool_progress(pools_[pool]) != PINRAIL_SUCCESS) note("progress fails");
    return;
  }
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pinrail_mpool_read_stats(pools_[pool], &stats) != PINRAIL_SUCCESS || stats.registered_bytes > limit_)
    note("R8: more bytes than the limit");
  if (stats.registered_count > most_) note("R8: more registrations than the limit");
  if (pools_[pool]->ops->check(pools_[pool]->module) != PINRAIL_SUCCESS) note("an invariant is broken");
}

// In several lives: threads end, and what they held is dropped by others.
void Battle::work(uint64_t seed, uint64_t steps, size_t number) {
  constexpr uint64_t kLives = 4;
  for (uint64_t life = 0; life < kLives; ++life) {
    std::thread([&] {
      std::mt19937_64 random(seed * kLives + life);
      std::vector<Held> held;
      for (uint64_t i = 0; i < steps / kLives; ++i) step(&random, &held, number);
      const std::lock_guard<std::mutex> guard(mutex_);
      passed_.insert(passed_.end(), held.begin(), held.end());
    }).join();
  }
}

// What is dead goes back by calls, or by the gc thread, which may have some in its hands.
bool Battle::is_emptied(size_t pool) {
  constexpr int kLooks = 10000;
  for (int looks = 0; looks < kLooks && devices_[pool]->live_count() != 0; ++looks) {
    pinrail_mpool_progress(pools_[pool]);
    while (pinrail_mpool_evict(pools_[pool]) == PINRAIL_SUCCESS) {
    }
    if (looks > 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return devices_[pool]->live_count() == 0;
}

void Battle::end() {
  for (const Held& held : passed_) drop(held);
  for (size_t pool = 0; pool < kPools; ++pool) {
    if (!is_emptied(pool)) note("E4: what is neither indexed nor referenced stays registered");
    pinrail_mpool_stats_t stats{};
    stats.size = sizeof(stats);
    const bool read = pinrail_mpool_read_stats(pools_[pool], &stats) == PINRAIL_SUCCESS;
    if (!read || stats.indexed != 0) note("R9: an unreferenced registration stays in the index");
    if (pinrail_mpool_destroy(pools_[pool], 0) != PINRAIL_SUCCESS) note("R10: an unused pool is BUSY");
    if (devices_[pool]->live_count() != 0) note("R10: the device knows something of a destroyed pool");
    for (const std::string& violation : devices_[pool]->violations()) note("the registrar's contract: " + violation);
    if (devices_[pool]->peak_live_bytes() > limit_) note("R8: the device knew more than the limit");
  }
  if (pinrail_finalize() != PINRAIL_SUCCESS) note("finalize failed");
}

bool Battle::fight(uint64_t steps) {
  if (fault_.empty()) {
    std::vector<std::thread> threads;
    for (size_t number = 0; number < threads_; ++number)
      threads.emplace_back([this, steps, number] { work(seed_ * threads_ + number, steps, number); });
    for (std::thread& thread : threads) thread.join();
    end();
  }
  if (fault_.empty()) return true;
  std::printf("seed %" PRIu64 ": %s\n", seed_, fault_.c_str());
  return false;
}

}  // namespace

bool run_threads(uint64_t seed, size_t threads, uint64_t steps) { return Battle(seed, threads).fight(steps); }

}  // namespace pinrail::attack
