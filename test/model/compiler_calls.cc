// SPDX-License-Identifier: BSD-3-Clause
// What the compiler calls where code is built with -fsanitize=thread, and the few functions of the C library that the
// code under test uses to meet other threads (--wrap of the linker): all goes to the explorer.
#include <malloc.h>
#include <pthread.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "test/model/explorer.h"

namespace {

using pinrail::model::load;
using pinrail::model::modify;
using pinrail::model::read_plainly;
using pinrail::model::store;
using pinrail::model::write_plainly;

// The compiler's numbers.
constexpr int kReleaseOrder = 3, kAcquireRelease = 4, kSeqCst = 5;
unsigned order_of(int order) {
  using pinrail::model::kPlain;
  using pinrail::model::kRelease;
  if (order == kSeqCst) return pinrail::model::kSequential | kRelease;
  return order == kReleaseOrder || order == kAcquireRelease ? kRelease : kPlain;
}

template <typename T>
T read(const volatile void* address, int order) {
  return static_cast<T>(load(const_cast<const void*>(address), sizeof(T), order_of(order)));
}

// An exchange is what a seq_cst store is on x86.
template <typename T, typename Function>
T change(volatile void* address, int order, Function function) {
  return static_cast<T>(
      modify(const_cast<void*>(address), sizeof(T), order_of(order), [&](uint64_t old, uint64_t* value) {
        *value = static_cast<T>(function(static_cast<T>(old)));
        return true;
      }));
}

template <typename T>
void write(volatile void* address, T value, int order) {
  if (order == kSeqCst) {
    change<T>(address, order, [&](T) { return value; });
  } else {
    store(const_cast<void*>(address), sizeof(T), value, order_of(order));
  }
}

template <typename T>
bool exchange_if(volatile void* address, T* expected, T desired, int order) {
  const T wanted = *expected;
  const auto old =
      static_cast<T>(modify(const_cast<void*>(address), sizeof(T), order_of(order), [&](uint64_t now, uint64_t* value) {
        *value = desired;
        return static_cast<T>(now) == wanted;
      }));
  if (old == wanted) return true;
  *expected = old;
  return false;
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define PLAIN(size)                                                                  \
  void __tsan_read##size(void* address) { read_plainly(address, size); }             \
  void __tsan_write##size(void* address) { write_plainly(address, size); }           \
  void __tsan_unaligned_read##size(void* address) { read_plainly(address, size); }   \
  void __tsan_unaligned_write##size(void* address) { write_plainly(address, size); } \
  void __tsan_read_write##size(void* address) { write_plainly(address, size); }      \
  void __tsan_unaligned_read_write##size(void* address) { write_plainly(address, size); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
#undef PLAIN

void __tsan_read_range(void* address, size_t bytes) { read_plainly(address, bytes); }
void __tsan_write_range(void* address, size_t bytes) { write_plainly(address, bytes); }
void __tsan_vptr_read(void* address) { read_plainly(address, sizeof(void*)); }
void __tsan_vptr_update(void* address, void*) { write_plainly(address, sizeof(void*)); }

#define ATOMIC(bits, T)                                                                         \
  T __tsan_atomic##bits##_load(const volatile T* a, int order) { return read<T>(a, order); }    \
  void __tsan_atomic##bits##_store(volatile T* a, T v, int order) { write<T>(a, v, order); }    \
  T __tsan_atomic##bits##_exchange(volatile T* a, T v, int order) {                             \
    return change<T>(a, order, [&](T) { return v; });                                           \
  }                                                                                             \
  T __tsan_atomic##bits##_fetch_add(volatile T* a, T v, int order) {                            \
    return change<T>(a, order, [&](T old) { return old + v; });                                 \
  }                                                                                             \
  T __tsan_atomic##bits##_fetch_sub(volatile T* a, T v, int order) {                            \
    return change<T>(a, order, [&](T old) { return old - v; });                                 \
  }                                                                                             \
  T __tsan_atomic##bits##_fetch_and(volatile T* a, T v, int order) {                            \
    return change<T>(a, order, [&](T old) { return old & v; });                                 \
  }                                                                                             \
  T __tsan_atomic##bits##_fetch_or(volatile T* a, T v, int order) {                             \
    return change<T>(a, order, [&](T old) { return old | v; });                                 \
  }                                                                                             \
  T __tsan_atomic##bits##_fetch_xor(volatile T* a, T v, int order) {                            \
    return change<T>(a, order, [&](T old) { return old ^ v; });                                 \
  }                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* e, T d, int order, int) { \
    return exchange_if(a, e, d, order);                                                         \
  }                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* e, T d, int order, int) {   \
    return exchange_if(a, e, d, order);                                                         \
  }                                                                                             \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* a, T e, T d, int order, int) {       \
    exchange_if(a, &e, d, order);                                                               \
    return e;                                                                                   \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
#undef ATOMIC

void __tsan_atomic_signal_fence(int) {}

// ---- The C library.

int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __real_pthread_mutex_trylock(pthread_mutex_t* mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
void __real_free(void* memory);
void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memmove(void* to, const void* from, size_t bytes);
void* __real_memset(void* memory, int byte, size_t bytes);

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (!pinrail::model::running()) return __real_pthread_mutex_lock(mutex);
  pinrail::model::lock(mutex);
  return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  if (!pinrail::model::running()) return __real_pthread_mutex_trylock(mutex);
  return pinrail::model::try_lock(mutex) ? 0 : EBUSY;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (!pinrail::model::running()) return __real_pthread_mutex_unlock(mutex);
  pinrail::model::unlock(mutex);
  return 0;
}

// The next execution needs it again.
void __wrap_free(void* memory) {
  if (!pinrail::model::running()) return __real_free(memory);
  if (memory != nullptr) pinrail::model::freed(memory, malloc_usable_size(memory));
}

void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  read_plainly(from, bytes);
  write_plainly(to, bytes);
  return __real_memcpy(to, from, bytes);
}

void* __wrap_memmove(void* to, const void* from, size_t bytes) {
  read_plainly(from, bytes);
  write_plainly(to, bytes);
  return __real_memmove(to, from, bytes);
}

void* __wrap_memset(void* memory, int byte, size_t bytes) {
  write_plainly(memory, bytes);
  return __real_memset(memory, byte, bytes);
}

}  // extern "C"
