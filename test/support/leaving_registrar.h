// SPDX-License-Identifier: BSD-3-Clause
// leaving_registrar.h - a registrar whose functions throw.
#ifndef PINRAIL_TEST_SUPPORT_LEAVING_REGISTRAR_H
#define PINRAIL_TEST_SUPPORT_LEAVING_REGISTRAR_H

#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>

namespace pinrail::test {

// A registrar of which one function throws, once.
class LeavingRegistrar {
 public:
  enum class In : uint8_t { none, register_mem, deregister_mem, tail_init, tail_fini };

  explicit LeavingRegistrar(pinrail_thread_mode_t mode = PINRAIL_THREAD_CONCURRENT,
                            uint32_t kinds = PINRAIL_KIND_HOST) {
    table_.size = sizeof(table_);
    table_.context = this;
    table_.thread_mode = mode;
    table_.kinds = kinds;
    table_.granularity = 4096;
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
  void page_on_demand() {
    table_.on_demand = PINRAIL_ON_DEMAND_EXPLICIT;
    table_.advise = [](void*, const pinrail_registration_t*, size_t, size_t, pinrail_advice_t) {
      return PINRAIL_SUCCESS;
    };
  }
  // From now on register_mem() waits until may_go_on; is_inside: a call has come there.
  void hold_registrations() {
    in_register = [this] {
      is_inside = true;
      while (!may_go_on) usleep(100);
    };
  }
  void leave_in(In where) { where_ = where; }
  bool has_left() const { return where_ == In::none; }

  std::atomic<int> tails{0};
  std::function<void()> in_register;                     // runs first
  std::atomic<bool> is_inside{false}, may_go_on{false};  // of hold_registrations()

 private:
  static LeavingRegistrar* of(void* self) { return static_cast<LeavingRegistrar*>(self); }
  pinrail_status_t pass(In here) {
    if (here == In::register_mem && in_register) in_register();
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

}  // namespace pinrail::test

#endif
