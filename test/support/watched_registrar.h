// SPDX-License-Identifier: BSD-3-Clause
// watched_registrar.h - a registrar that knows which process may call it, and tells all of its kin who did.
//
// Threads  every call on any thread; the counts are shared with forked children.
#ifndef PINRAIL_TEST_SUPPORT_WATCHED_REGISTRAR_H
#define PINRAIL_TEST_SUPPORT_WATCHED_REGISTRAR_H

#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "test/support/host_table.h"
#include "test/support/lent_pool.h"

namespace pinrail::test {

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
    table_.register_mem = register_mem;
    table_.deregister_mem = deregister_mem;
    table_.device_read = device_read;
  }
  ~WatchedRegistrar() { munmap(counts_, sizeof(Counts)); }
  WatchedRegistrar(const WatchedRegistrar&) = delete;
  WatchedRegistrar& operator=(const WatchedRegistrar&) = delete;

  const Counts& counts() const { return *counts_; }
  uint64_t live() const { return counts_->registered - counts_->deregistered; }

  // A pool over it. NULL if there is none to be had.
  pinrail_mpool_t* make_pool(int64_t leave_pinned = 1, const char* cache_name = nullptr) const {
    return make_grdma(table_, leave_pinned, cache_name);
  }

 private:
  void called(std::atomic<uint64_t>* what) {
    ++*what;
    if (getpid() != owner_) ++counts_->by_strangers;
    if (nap_ != 0) usleep(nap_);
  }
  static WatchedRegistrar* of(void* context) { return static_cast<WatchedRegistrar*>(context); }
  static pinrail_status_t register_mem(void* context, const pinrail_register_request_t*, pinrail_registration_t*) {
    of(context)->called(&of(context)->counts_->registered);
    return PINRAIL_SUCCESS;
  }
  static pinrail_status_t deregister_mem(void* context, pinrail_registration_t*, pinrail_reason_t) {
    of(context)->called(&of(context)->counts_->deregistered);
    return PINRAIL_SUCCESS;
  }
  static pinrail_status_t device_read(void* context, const pinrail_registration_t*, size_t, void*, size_t) {
    if (getpid() != of(context)->owner_) ++of(context)->counts_->by_strangers;
    return PINRAIL_SUCCESS;
  }

  const pid_t owner_;
  const unsigned nap_;
  Counts* counts_;
  pinrail_registrar_t table_{};
};

}  // namespace pinrail::test

#endif
