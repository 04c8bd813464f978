// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_match.h - rounds in which every way plays every kind and length of buffer, and what they took.
//
// Owns     buffers and figures; not the link, nor the ways.
// Threads  one at a time.
//
// In a round each kind of buffers of each length is dealt to each way in turn, which begins in turn; a sample is what
// a way's messages took on average. All ways have the same number of samples.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_MATCH_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_MATCH_H

#include <infiniband/verbs.h>
#include <pinrail/pinrail.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/verbs/rdma_device.h"

namespace pinrail::pingpong {

// How a buffer is registered for one message, and given back after it.
//
// Threads  one at a time.

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

// The memory of the messages of one length, and what stands in it.
//
// Owns     the memory that is kept; of fresh memory, what was taken and not released.
// Threads  one at a time.

enum class Kind : uint8_t { fresh, reused, shuffled };

const char* kind_name(Kind kind);

class Buffers {
 public:
  // bytes: of one buffer, a multiple of the page size.
  Buffers(Kind kind, size_t bytes);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Kind kind() const { return kind_; }
  size_t bytes() const { return bytes_; }
  bool good() const;  // there was memory for what is kept

  size_t kept() const { return 2 * per_side_; }
  unsigned char* kept_at(size_t index) const { return memory_ + index * bytes_; }

  // From here on the same buffers are drawn as after the last call with that seed.
  void deal(uint64_t seed) { random_.seed(seed); }
  // side: 0 or 1; the two never share memory. NULL: there is none to be had.
  unsigned char* take(unsigned side);
  void release(unsigned char* buffer) const;

 private:
  const Kind kind_;
  const size_t bytes_;
  const size_t per_side_;
  unsigned char* memory_ = nullptr;
  std::mt19937_64 random_;
};

// A message's bytes follow from its number: no 8 bytes of two messages that follow one another are alike at one place.
void fill(unsigned char* buffer, size_t bytes, uint64_t number);
// The first byte that is another than fill() writes; bytes if there is none.
size_t first_difference(const unsigned char* buffer, size_t bytes, uint64_t number);

// Two connected queue pairs of this process, over which messages go either way.
//
// Owns     queue pairs and completion queues; not the device.
// Threads  one at a time.

class Link {
 public:
  // Empty if all is well, else what is wrong.
  std::string open(const test::RdmaDevice& device);
  void close();

  // One SEND from that side (0 or 1) to the other, into a receive that was posted before it. False, and a line on
  // stderr, if it failed; the link is of no use then.
  bool move(unsigned side, const ibv_sge& from, const ibv_sge& into);

 private:
  struct Side {
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
  };
  Side sides_[2];
  uint64_t moves_ = 0;
};

// Nanoseconds for a message.
struct Sample {
  double message = 0;       // both registrations, the transfer, both deregistrations; fresh: and both unmappings
  double registration = 0;  // of that, without the transfer and the munmap calls themselves
};

struct Row {
  Buffers* buffers;
  Way* way;
  std::vector<Sample> samples;
  uint64_t messages = 0;
  Counts counts;
};

class Match {
 public:
  Match(Link* link, std::vector<Way*> ways);

  // Plays for so long, and two rounds at least, the first of which does not count. Empty, or what went wrong first.
  std::string play(double seconds);

  const std::vector<Row>& rows() const { return rows_; }  // the ways of one kind and length follow one another
  uint64_t rounds() const { return rounds_; }             // those that count
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  std::string warm_up();
  std::string play_round(uint64_t round, double until);
  std::string play_sample(Row* row);
  std::string play_message(const Row& row, unsigned side, Sample* sum);
  std::string exchange(const Row& row, unsigned side, unsigned char* from, unsigned char* into, Sample* sum);
  std::string check_counts() const;
  void forget();

  Link* const link_;
  const std::vector<Way*> ways_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<Row> rows_;
  uint64_t rounds_ = 0;
  uint64_t messages_ = 0;
  uint64_t bytes_verified_ = 0;
};

}  // namespace pinrail::pingpong

#endif
