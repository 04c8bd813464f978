// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_match.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "test/bench/clock.h"

namespace pinrail::pingpong {
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
