// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_match.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "test/bench/measure.h"

namespace pinrail::pingpong {

bool PlainWay::pin(void* address, size_t bytes, Pin* out) {
  out->mr = ibv_reg_mr(pd_, address, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (out->mr == nullptr) return false;
  out->lkey = out->mr->lkey;
  ++counts_.registrations;
  return true;
}

bool PlainWay::unpin(const Pin& pin) { return ibv_dereg_mr(pin.mr) == 0; }

pinrail_status_t PoolWay::open(ibv_pd* pd) {
  pinrail_registrar_choice_t choice{};
  choice.name = "verbs";
  choice.native = pd;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = keeps() ? 1 : 0;
  // A cache name of its own: neither pool evicts from the other one.
  return pinrail_mpool_create("grdma", &choice, name(), &options, &pool_);
}

pinrail_status_t PoolWay::close() { return pool_ == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(pool_, 0); }

bool PoolWay::pin(void* address, size_t bytes, Pin* out) {
  if (pinrail_mpool_register(pool_, address, bytes, PINRAIL_ACCESS_LOCAL_WRITE, 0, &out->handle) != PINRAIL_SUCCESS)
    return false;
  out->lkey = out->handle.reg->lkey;
  return true;
}

bool PoolWay::unpin(const Pin& pin) { return pinrail_mpool_deregister(pin.handle) == PINRAIL_SUCCESS; }

void PoolWay::report_unmap(void* address, size_t bytes) {
  if (reports_ == Reports::yes) pinrail_monitor_report(address, bytes);
}

Counts PoolWay::counts() const {
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pinrail_mpool_read_stats(pool_, &stats) != PINRAIL_SUCCESS) return {};
  return {stats.misses + stats.retries, stats.hits, stats.evictions};
}

namespace {

constexpr size_t kShuffled = 64;

unsigned char* map(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

size_t kept_per_side(Kind kind) {
  switch (kind) {
    case Kind::reused: return 1;
    case Kind::shuffled: return kShuffled;
    default: return 0;
  }
}

// Odd factors: a step in either number changes the low bits, so a message is never like its neighbour, nor a word.
uint64_t word(uint64_t number, size_t index) {
  const uint64_t mixed = number * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u;
  return mixed ^ (mixed >> 29);
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::fresh: return "fresh";
    case Kind::reused: return "reused";
    default: return "shuffled";
  }
}

Buffers::Buffers(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes), per_side_(kept_per_side(kind)) {
  if (per_side_ != 0) memory_ = map(kept() * bytes_);
}

Buffers::~Buffers() {
  if (memory_ != nullptr) munmap(memory_, kept() * bytes_);
}

bool Buffers::good() const { return per_side_ == 0 || memory_ != nullptr; }

unsigned char* Buffers::take(unsigned side) {
  if (kind_ == Kind::fresh) return map(bytes_);
  return kept_at(side * per_side_ + random_() % per_side_);
}

void Buffers::release(unsigned char* buffer) const {
  if (kind_ == Kind::fresh) munmap(buffer, bytes_);
}

void fill(unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t value = word(number, i);
    std::memcpy(buffer + i * sizeof(value), &value, sizeof(value));
  }
}

size_t first_difference(const unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t value = word(number, i);
    const unsigned char* const at = buffer + i * sizeof(value);
    if (std::memcmp(at, &value, sizeof(value)) == 0) continue;
    unsigned char expected[sizeof(value)];
    std::memcpy(expected, &value, sizeof(value));
    size_t byte = 0;
    while (at[byte] == expected[byte]) ++byte;
    return i * sizeof(value) + byte;
  }
  return bytes;
}

namespace {

bool post_receive(ibv_qp* qp, uint64_t number, ibv_sge into) {
  ibv_recv_wr request{};
  request.wr_id = number;
  request.sg_list = &into;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &request, &bad) == 0;
}

bool post_send(ibv_qp* qp, uint64_t number, ibv_sge from) {
  ibv_send_wr request{};
  request.wr_id = number;
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &request, &bad) == 0;
}

}  // namespace

std::string Link::open(const test::RdmaDevice& device) {
  for (Side& side : sides_) {
    side.cq = ibv_create_cq(device.context(), 4, nullptr, nullptr, 0);
    if (side.cq == nullptr) return "no completion queue";
    side.qp = device.make_queue_pair(side.cq);
    if (side.qp == nullptr) return "no queue pair";
  }
  return device.join(sides_[0].qp, sides_[1].qp);
}

void Link::close() {
  for (const Side& side : sides_) {
    if (side.qp != nullptr) ibv_destroy_qp(side.qp);
    if (side.cq != nullptr) ibv_destroy_cq(side.cq);
  }
}

bool Link::move(unsigned side, const ibv_sge& from, const ibv_sge& into) {
  const Side& sender = sides_[side];
  const Side& receiver = sides_[1 - side];
  const uint64_t number = ++moves_;
  if (!post_receive(receiver.qp, number, into) || !post_send(sender.qp, number, from)) {
    std::fprintf(stderr, "a request cannot be posted\n");
    return false;
  }
  return test::wait_for_completion(receiver.cq, number) && test::wait_for_completion(sender.cq, number);
}

namespace {

using bench::now_ns;

constexpr size_t kKiB = 1024;
constexpr size_t kLengths[] = {4 * kKiB, 64 * kKiB, 1024 * kKiB};

constexpr char kNotRegistered[] = "cannot be registered; is \"ulimit -l\" below 160 MiB?";

// An even number, so that a sample has as many messages in either direction.
uint64_t messages_of_a_sample(size_t bytes) { return std::clamp<uint64_t>(256 * kKiB / bytes, 2, 32); }

std::string wrong(const Row& row, const std::string& what) {
  return std::string(row.way->name()) + ", " + kind_name(row.buffers->kind()) + " buffers of " +
         std::to_string(row.buffers->bytes()) + " bytes: " + what;
}

ibv_sge piece(const unsigned char* buffer, size_t bytes, const Pin& pin) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uintptr_t>(buffer);
  piece.length = static_cast<uint32_t>(bytes);
  piece.lkey = pin.lkey;
  return piece;
}

bool pin_both(Way* way, size_t bytes, unsigned char* from, Pin* from_pin, unsigned char* into, Pin* into_pin) {
  if (!way->pin(into, bytes, into_pin)) return false;
  if (way->pin(from, bytes, from_pin)) return true;
  (void)way->unpin(*into_pin);
  return false;
}

Counts operator-(const Counts& after, const Counts& before) {
  return {after.registrations - before.registrations, after.hits - before.hits, after.evictions - before.evictions};
}

void operator+=(Counts& sum, const Counts& more) {
  sum.registrations += more.registrations;
  sum.hits += more.hits;
  sum.evictions += more.evictions;
}

}  // namespace

Match::Match(Link* link, std::vector<Way*> ways) : link_(link), ways_(std::move(ways)) {
  for (const Kind kind : {Kind::fresh, Kind::reused, Kind::shuffled}) {
    for (const size_t bytes : kLengths) {
      buffers_.push_back(std::make_unique<Buffers>(kind, bytes));
      for (Way* const way : ways_) rows_.push_back({buffers_.back().get(), way, {}, 0, {}});
    }
  }
}

std::string Match::play(double seconds) {
  const double until = now_ns() + seconds * 1e9;
  std::string failed = warm_up();
  if (failed.empty()) failed = play_round(0, std::numeric_limits<double>::infinity());
  forget();
  while (failed.empty() && (rounds_ == 0 || now_ns() < until)) {
    ++rounds_;
    failed = play_round(rounds_, rounds_ == 1 ? std::numeric_limits<double>::infinity() : until);
  }
  return failed.empty() ? check_counts() : failed;
}

// Every buffer that is kept was registered once by each way, so that what is measured is a cache that knows them.
std::string Match::warm_up() {
  for (const Row& row : rows_) {
    if (!row.buffers->good()) return wrong(row, "no memory");
    for (size_t i = 0; i < row.buffers->kept(); ++i) {
      Pin pin;
      if (!row.way->pin(row.buffers->kept_at(i), row.buffers->bytes(), &pin) || !row.way->unpin(pin))
        return wrong(row, kNotRegistered);
    }
  }
  return "";
}

std::string Match::play_round(uint64_t round, double until) {
  for (size_t first = 0; first < rows_.size() && now_ns() < until; first += ways_.size()) {
    for (size_t turn = 0; turn < ways_.size(); ++turn) {
      Row& row = rows_[first + (round + turn) % ways_.size()];
      row.buffers->deal(round);
      std::string failed = play_sample(&row);
      if (!failed.empty()) return failed;
    }
  }
  return "";
}

std::string Match::play_sample(Row* row) {
  const uint64_t messages = messages_of_a_sample(row->buffers->bytes());
  const Counts before = row->way->counts();
  Sample sum;
  for (uint64_t i = 0; i < messages; ++i) {
    const std::string failed = play_message(*row, i % 2, &sum);
    if (!failed.empty()) return wrong(*row, failed);
  }
  const auto count = static_cast<double>(messages);
  row->samples.push_back({sum.message / count, sum.registration / count});
  row->messages += messages;
  row->counts += row->way->counts() - before;
  return "";
}

std::string Match::play_message(const Row& row, unsigned side, Sample* sum) {
  Buffers& buffers = *row.buffers;
  unsigned char* const from = buffers.take(side);
  unsigned char* const into = buffers.take(1 - side);
  if (from == nullptr || into == nullptr) return "no memory";
  const uint64_t number = ++messages_;
  fill(from, buffers.bytes(), number);
  std::string failed = exchange(row, side, from, into, sum);
  if (!failed.empty()) return failed;
  const size_t difference = first_difference(into, buffers.bytes(), number);
  if (difference != buffers.bytes()) return "byte " + std::to_string(difference) + " that arrived differs";
  bytes_verified_ += buffers.bytes();
  if (buffers.kind() != Kind::fresh) return "";
  const double start = now_ns();
  row.way->report_unmap(from, buffers.bytes());
  row.way->report_unmap(into, buffers.bytes());
  const double reported = now_ns();
  buffers.release(from);
  buffers.release(into);
  sum->message += now_ns() - start;
  sum->registration += reported - start;
  return "";
}

std::string Match::exchange(const Row& row, unsigned side, unsigned char* from, unsigned char* into, Sample* sum) {
  const size_t bytes = row.buffers->bytes();
  Pin from_pin, into_pin;
  const double start = now_ns();
  if (!pin_both(row.way, bytes, from, &from_pin, into, &into_pin)) return kNotRegistered;
  const double registered = now_ns();
  const bool arrived = link_->move(side, piece(from, bytes, from_pin), piece(into, bytes, into_pin));
  const double moved = now_ns();
  const bool first = row.way->unpin(from_pin);
  const bool second = row.way->unpin(into_pin);
  const double end = now_ns();
  sum->message += end - start;
  sum->registration += (registered - start) + (end - moved);
  if (!arrived) return "a message is lost";
  return first && second ? "" : "cannot be deregistered";
}

// A figure under the name of a cache that did not hit, or of a registration that was a hit, says nothing.
std::string Match::check_counts() const {
  for (const Row& row : rows_) {
    const uint64_t calls = 2 * row.messages;
    const bool from_cache = row.way->keeps() && row.buffers->kind() != Kind::fresh;
    const uint64_t registrations = from_cache ? 0 : calls;
    const uint64_t hits = from_cache ? calls : 0;
    const bool right = row.counts.registrations == registrations && row.counts.hits == hits;
    // What was evicted, by a limit that someone set, must be registered again, in whichever row.
    if (right || row.way->counts().evictions != 0) continue;
    return wrong(row, std::to_string(row.counts.registrations) + " registrations and " +
                          std::to_string(row.counts.hits) + " hits in " + std::to_string(calls) + " calls");
  }
  return "";
}

void Match::forget() {
  for (Row& row : rows_) {
    row.samples.clear();
    row.messages = 0;
    row.counts = {};
  }
}

}  // namespace pinrail::pingpong
