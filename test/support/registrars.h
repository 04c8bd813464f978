// SPDX-License-Identifier: BSD-3-Clause
// registrars.h - registrars whose functions throw, and registrars that know which process may call them.
#ifndef PINRAIL_TEST_SUPPORT_REGISTRARS_H
#define PINRAIL_TEST_SUPPORT_REGISTRARS_H

#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include "test/support/host_table.h"

namespace pinrail::test {

// A registrar of which one function throws, once.
class LeavingRegistrar {
 public:
  enum class In : uint8_t { none, register_mem, deregister_mem, tail_init, tail_fini };

  explicit LeavingRegistrar(pinrail_thread_mode_t mode = PINRAIL_THREAD_CONCURRENT,
                            uint32_t kinds = PINRAIL_KIND_HOST) {
    table_ = host_table(nullptr, this);
    table_.thread_mode = mode;
    table_.kinds = kinds;
    table_.tail_size = 64;
    table_.register_mem = [](void* self, const pinrail_register_request_t*, pinrail_registration_t*) {
      return of(self)->pass(In::register_mem);
    };
    table_.deregister_mem = [](void* self, pinrail_registration_t*, pinrail_reason_t) {
      return of(self)->pass(In::deregister_mem);
    };
    table_.tail_init = [](void* self, void*) {
      const pinrail_status_t status = of(self)->pass(In::tail_init);
      ++of(self)->tails;  // one that does not return has made nothing
      return status;
    };
    table_.tail_fini = [](void* self, void*) {
      --of(self)->tails;
      of(self)->pass(In::tail_fini);
    };
  }
  const pinrail_registrar_t& table() const { return table_; }
  void leave_in(In where) { where_ = where; }
  bool has_left() const { return where_ == In::none; }

  std::atomic<int> tails{0};

 private:
  static LeavingRegistrar* of(void* self) { return static_cast<LeavingRegistrar*>(self); }
  pinrail_status_t pass(In here) {
    if (where_ != here) return PINRAIL_SUCCESS;
    where_ = In::none;
    throw std::bad_alloc();
  }

  pinrail_registrar_t table_{};
  std::atomic<In> where_{In::none};
};
using In = LeavingRegistrar::In;

// Not std::thread, which ends the process if its function is left by forced unwinding under some compilers.
inline void on_a_thread(std::function<void()> body) {
  pthread_t thread;
  const auto run = [](void* pointer) -> void* {
    (*static_cast<std::function<void()>*>(pointer))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, run, &body), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
}

// A registrar that knows which process may call it, and tells all of its kin who did.
//
// Threads  every call on any thread; the counts are shared with forked children.

class WatchedRegistrar {
 public:
  struct Counts {
    std::atomic<uint64_t> registered{0}, deregistered{0}, by_strangers{0};
  };

  // nap_microseconds: how long each call sleeps.
  explicit WatchedRegistrar(unsigned nap_microseconds = 0) : owner_(getpid()), nap_(nap_microseconds) {
    void* const shared = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    counts_ = new (shared) Counts;
    table_ = host_table("watched", this);
    table_.register_mem = [](void* self, const pinrail_register_request_t*, pinrail_registration_t*) {
      return of(self)->count(&of(self)->counts_->registered);
    };
    table_.deregister_mem = [](void* self, pinrail_registration_t*, pinrail_reason_t) {
      return of(self)->count(&of(self)->counts_->deregistered);
    };
    table_.device_read = [](void* self, const pinrail_registration_t*, size_t, void*, size_t) {
      return of(self)->note_caller();
    };
  }
  ~WatchedRegistrar() { munmap(counts_, sizeof(Counts)); }
  WatchedRegistrar(const WatchedRegistrar&) = delete;
  WatchedRegistrar& operator=(const WatchedRegistrar&) = delete;

  const pinrail_registrar_t& table() const { return table_; }
  const Counts& counts() const { return *counts_; }
  uint64_t live() const { return counts_->registered - counts_->deregistered; }

 private:
  static WatchedRegistrar* of(void* context) { return static_cast<WatchedRegistrar*>(context); }
  pinrail_status_t note_caller() {
    if (getpid() != owner_) ++counts_->by_strangers;
    return PINRAIL_SUCCESS;
  }
  pinrail_status_t count(std::atomic<uint64_t>* what) {
    ++*what;
    if (nap_ != 0) usleep(nap_);
    return note_caller();
  }

  const pid_t owner_;
  const unsigned nap_;
  Counts* counts_;
  pinrail_registrar_t table_{};
};

}  // namespace pinrail::test

#endif
