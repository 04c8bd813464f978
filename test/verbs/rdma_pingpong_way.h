// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_way.h - how a buffer is registered for one message, and given back after it.
//
// Threads  one at a time.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_WAY_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_WAY_H

#include <infiniband/verbs.h>
#include <pinrail/pinrail.h>

#include <cstddef>
#include <cstdint>

namespace pinrail::pingpong {

// One registered buffer; of mr and handle the one that its way has made.
struct Pin {
  uint32_t lkey = 0;
  ibv_mr* mr = nullptr;
  pinrail_handle_t handle{};
};

struct Counts {
  uint64_t registrations = 0;  // calls that went to the device
  uint64_t hits = 0;
  uint64_t evictions = 0;
};

class Way {
 public:
  Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;

  virtual const char* name() const = 0;
  virtual bool keeps() const = 0;  // what was registered stays so
  virtual bool pin(void* address, size_t bytes, Pin* out) = 0;
  virtual bool unpin(const Pin& pin) = 0;
  virtual void report_unmap(void*, size_t) {}
  virtual Counts counts() const = 0;  // since the beginning
};

class PlainWay : public Way {
 public:
  explicit PlainWay(ibv_pd* pd) : pd_(pd) {}
  const char* name() const override { return "plain"; }
  bool keeps() const override { return false; }
  bool pin(void* address, size_t bytes, Pin* out) override;
  bool unpin(const Pin& pin) override;
  Counts counts() const override { return counts_; }

 private:
  ibv_pd* const pd_;
  Counts counts_;
};

// A pool of its own over the lent protection domain.
class PoolWay : public Way {
 public:
  enum class LeavePinned : uint8_t { no, yes };
  enum class Reports : uint8_t { no, yes };

  PoolWay(LeavePinned leave_pinned, Reports reports) : leave_pinned_(leave_pinned), reports_(reports) {}
  // Between pinrail_init() and pinrail_finalize(), in pairs where open() was successful.
  pinrail_status_t open(ibv_pd* pd);
  pinrail_status_t close();

  const char* name() const override { return keeps() ? "leave_pinned 1" : "leave_pinned 0"; }
  bool keeps() const override { return leave_pinned_ == LeavePinned::yes; }
  bool pin(void* address, size_t bytes, Pin* out) override;
  bool unpin(const Pin& pin) override;
  void report_unmap(void* address, size_t bytes) override;
  Counts counts() const override;

 private:
  const LeavePinned leave_pinned_;
  const Reports reports_;
  pinrail_mpool_t* pool_ = nullptr;
};

}  // namespace pinrail::pingpong

#endif
