// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong - what a message costs from end to end when each one registers its buffers: by plain ibv_reg_mr, and
// through pools with leave_pinned 0 and 1. Every byte is compared. --help says how, and what the exit status means.
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/program.h"
#include "test/bench/measure.h"
#include "test/verbs/rdma_device.h"

namespace pinrail::pingpong {
namespace {

using bench::now_ns;

constexpr int kNoDevice = 77;

struct Options {
  std::string device;  // "": the first one
  uint8_t port = 1;
  int gid_index = -1;
  unsigned seconds = 20;
  std::string monitor = "external";
  bool no_reports = false;  // of use to monitor "external" alone: fresh memory goes without a report
  bool json = false;
  tools::Pairs mca;
};

constexpr char kNotes[] =
    "Sends messages of 4 KiB, 64 KiB and 1 MiB to and fro between two queue pairs of this process. For each message\n"
    "both buffers are registered, and deregistered after it, in three ways that take turns: plain (ibv_reg_mr and\n"
    "ibv_dereg_mr), and through a pool with leave_pinned 0 and 1. Buffers are fresh (mapped for the message, unmapped\n"
    "after it), reused (one on either side) or shuffled (random ones of 64 on either side). Every byte is compared.\n"
    "The pool with leave_pinned 1 keeps up to 140 MiB registered: \"ulimit -l\" must allow for it.\n"
    "\n"
    "Exit status: 0 if no byte differed and no call failed; 1 if one did, or if a pool did not register as often as\n"
    "it should; 2 for an invalid command line; 77 without an RDMA device.";

// How a buffer is registered for one message, and given back after it: with the device, or by a pool of its own over
// the same protection domain.

struct Pin {
  uint32_t lkey = 0;
  ibv_mr* mr = nullptr;  // of plain
  pinrail_handle_t handle{};
};

struct Counts {
  uint64_t registrations = 0;  // calls that went to the device
  uint64_t hits = 0;
  uint64_t evictions = 0;
};

struct Way {
  const char* name;
  ibv_pd* pd;
  bool keeps;                       // what was registered stays so
  bool reports;                     // what is unmapped
  pinrail_mpool_t* pool = nullptr;  // NULL: plain
  uint64_t registered = 0;          // plain

  pinrail_status_t open_pool() {
    pinrail_registrar_choice_t choice{};
    choice.name = "verbs";
    choice.native = pd;
    pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
    options.leave_pinned = keeps ? 1 : 0;
    // A cache name of its own: neither pool evicts from the other one.
    return pinrail_mpool_create("grdma", &choice, name, &options, &pool);
  }
  bool pin(void* address, size_t bytes, Pin* out) {
    if (pool == nullptr) {
      out->mr = ibv_reg_mr(pd, address, bytes, IBV_ACCESS_LOCAL_WRITE);
      if (out->mr == nullptr) return false;
      out->lkey = out->mr->lkey;
      ++registered;
      return true;
    }
    if (pinrail_mpool_register(pool, address, bytes, PINRAIL_ACCESS_LOCAL_WRITE, 0, &out->handle) != PINRAIL_SUCCESS)
      return false;
    out->lkey = out->handle.reg->lkey;
    return true;
  }
  bool unpin(const Pin& pin) const {
    return pool == nullptr ? ibv_dereg_mr(pin.mr) == 0 : pinrail_mpool_deregister(pin.handle) == PINRAIL_SUCCESS;
  }
  Counts counts() const {  // since the beginning
    if (pool == nullptr) return {registered, 0, 0};
    pinrail_mpool_stats_t stats{};
    stats.size = sizeof(stats);
    if (pinrail_mpool_read_stats(pool, &stats) != PINRAIL_SUCCESS) return {};
    return {stats.misses + stats.retries, stats.hits, stats.evictions};
  }
};

// The memory of the messages of one length, and what stands in it.

enum class Kind : uint8_t { fresh, reused, shuffled };

unsigned char* map(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

class Buffers {
 public:
  // bytes: of one buffer, a multiple of the page size.
  Buffers(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
    if (per_side_ != 0) memory_ = map(kept() * bytes_);
  }
  ~Buffers() {
    if (memory_ != nullptr) munmap(memory_, kept() * bytes_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  const char* kind_name() const {
    constexpr const char* kNames[] = {"fresh", "reused", "shuffled"};
    return kNames[static_cast<int>(kind_)];
  }
  bool is_fresh() const { return kind_ == Kind::fresh; }
  size_t bytes() const { return bytes_; }
  bool good() const { return per_side_ == 0 || memory_ != nullptr; }  // there was memory for what is kept
  size_t kept() const { return 2 * per_side_; }
  unsigned char* kept_at(size_t index) const { return memory_ + index * bytes_; }

  // From here on the same buffers are drawn as after the last call with that seed.
  void deal(uint64_t seed) { random_.seed(seed); }
  // side: 0 or 1; the two never share memory. NULL: there is none to be had.
  unsigned char* take(unsigned side) {
    return is_fresh() ? map(bytes_) : kept_at(side * per_side_ + random_() % per_side_);
  }

 private:
  const Kind kind_;
  const size_t bytes_;
  const size_t per_side_ = kind_ == Kind::shuffled ? 64 : kind_ == Kind::reused ? 1 : 0;
  unsigned char* memory_ = nullptr;
  std::mt19937_64 random_;
};

// A message's bytes follow from its number. Odd factors: a step in either number changes the low bits, so no 8 bytes of
// two messages that follow one another are alike at one place.
uint64_t word(uint64_t number, size_t index) {
  const uint64_t mixed = number * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u;
  return mixed ^ (mixed >> 29);
}

void fill(unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t value = word(number, i);
    std::memcpy(buffer + i * sizeof(value), &value, sizeof(value));
  }
}

// Where the first 8 bytes are that fill() did not write; bytes if there are none.
size_t first_difference(const unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t value = word(number, at / sizeof(value));
    if (std::memcmp(buffer + at, &value, sizeof(value)) != 0) return at;
  }
  return bytes;
}

// Two connected queue pairs of this process, over which messages go either way.
class Link {
 public:
  // Empty if all is well, else what is wrong.
  std::string open(const test::RdmaDevice& device) {
    for (Side& side : sides_) {
      side.cq = ibv_create_cq(device.context(), 4, nullptr, nullptr, 0);
      if (side.cq == nullptr) return "no completion queue";
      side.qp = device.make_queue_pair(side.cq);
      if (side.qp == nullptr) return "no queue pair";
    }
    return device.join(sides_[0].qp, sides_[1].qp);
  }
  void close() {
    for (const Side& side : sides_) {
      if (side.qp != nullptr) ibv_destroy_qp(side.qp);
      if (side.cq != nullptr) ibv_destroy_cq(side.cq);
    }
  }
  // One SEND from that side (0 or 1) to the other, into a receive that was posted before it. False, and a line on
  // stderr, if it failed; the link is of no use then.
  bool move(unsigned side, ibv_sge from, ibv_sge into) {
    const Side &sender = sides_[side], &receiver = sides_[1 - side];
    const uint64_t number = ++moves_;
    ibv_recv_wr receive{};
    receive.wr_id = number;
    receive.sg_list = &into;
    receive.num_sge = 1;
    ibv_send_wr send{};
    send.wr_id = number;
    send.sg_list = &from;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_recv_wr* bad_receive = nullptr;
    ibv_send_wr* bad_send = nullptr;
    if (ibv_post_recv(receiver.qp, &receive, &bad_receive) != 0 || ibv_post_send(sender.qp, &send, &bad_send) != 0) {
      std::fprintf(stderr, "a request cannot be posted\n");
      return false;
    }
    return test::wait_for_completion(receiver.cq, number) && test::wait_for_completion(sender.cq, number);
  }

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

  std::string wrong(const std::string& what) const {
    return std::string(way->name) + ", " + buffers->kind_name() + " buffers of " + std::to_string(buffers->bytes()) +
           " bytes: " + what;
  }
};

constexpr char kNotRegistered[] = "cannot be registered; is \"ulimit -l\" below 160 MiB?";

ibv_sge piece(const unsigned char* buffer, size_t bytes, const Pin& pin) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uintptr_t>(buffer);
  piece.length = static_cast<uint32_t>(bytes);
  piece.lkey = pin.lkey;
  return piece;
}

// Rounds in which every way plays every kind and length of buffer, and what they took. In a round each kind of buffers
// of each length is dealt to each way in turn, which begins in turn; a sample is what a way's messages took on average.
// All ways have the same number of samples. What returns a string returns what went wrong, or "".
class Match {
 public:
  Match(Link* link, std::vector<Way*> ways) : link_(link), ways_(std::move(ways)) {
    for (const Kind kind : {Kind::fresh, Kind::reused, Kind::shuffled}) {
      for (const size_t kib : {4, 64, 1024}) {
        buffers_.push_back(std::make_unique<Buffers>(kind, kib << 10));
        for (Way* const way : ways_) rows_.push_back({buffers_.back().get(), way, {}, 0, {}});
      }
    }
  }

  // Plays for so long, and two rounds at least, the first of which does not count.
  std::string play(double seconds) {
    constexpr double kForEver = std::numeric_limits<double>::infinity();
    const double until = now_ns() + seconds * 1e9;
    std::string failed = warm_up();
    if (failed.empty()) failed = play_round(0, kForEver);
    for (Row& row : rows_) row = {row.buffers, row.way, {}, 0, {}};
    while (failed.empty() && (rounds_ == 0 || now_ns() < until)) {
      ++rounds_;
      failed = play_round(rounds_, rounds_ == 1 ? kForEver : until);
    }
    return failed.empty() ? check_counts() : failed;
  }

  const std::vector<Row>& rows() const { return rows_; }  // the ways of one kind and length follow one another
  uint64_t rounds() const { return rounds_; }             // those that count
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  // Every buffer that is kept was registered once by each way, so that what is measured is a cache that knows them.
  std::string warm_up() {
    for (const Row& row : rows_) {
      if (!row.buffers->good()) return row.wrong("no memory");
      for (size_t i = 0; i < row.buffers->kept(); ++i) {
        Pin pin;
        if (!row.way->pin(row.buffers->kept_at(i), row.buffers->bytes(), &pin) || !row.way->unpin(pin))
          return row.wrong(kNotRegistered);
      }
    }
    return "";
  }
  std::string play_round(uint64_t round, double until) {
    for (size_t first = 0; first < rows_.size() && now_ns() < until; first += ways_.size()) {
      for (size_t turn = 0; turn < ways_.size(); ++turn) {
        Row& row = rows_[first + (round + turn) % ways_.size()];
        row.buffers->deal(round);
        const std::string failed = play_sample(&row);
        if (!failed.empty()) return row.wrong(failed);
      }
    }
    return "";
  }
  std::string play_sample(Row* row) {
    // An even number, so that a sample has as many messages in either direction.
    const uint64_t messages = std::clamp<uint64_t>((256 << 10) / row->buffers->bytes(), 2, 32);
    const Counts before = row->way->counts();
    Sample sum;
    for (uint64_t i = 0; i < messages; ++i) {
      std::string failed = play_message(*row, i % 2, &sum);
      if (!failed.empty()) return failed;
    }
    const auto count = static_cast<double>(messages);
    const Counts after = row->way->counts();
    row->samples.push_back({sum.message / count, sum.registration / count});
    row->messages += messages;
    row->counts.registrations += after.registrations - before.registrations;
    row->counts.hits += after.hits - before.hits;
    row->counts.evictions += after.evictions - before.evictions;
    return "";
  }
  std::string play_message(const Row& row, unsigned side, Sample* sum) {
    Buffers& buffers = *row.buffers;
    const size_t bytes = buffers.bytes();
    unsigned char* const from = buffers.take(side);
    unsigned char* const into = buffers.take(1 - side);
    if (from == nullptr || into == nullptr) return "no memory";
    const uint64_t number = ++messages_;
    fill(from, bytes, number);
    std::string failed = exchange(row, side, from, into, sum);
    if (!failed.empty()) return failed;
    const size_t difference = first_difference(into, bytes, number);
    if (difference != bytes) return "what arrived differs from byte " + std::to_string(difference) + " on";
    bytes_verified_ += bytes;
    if (!buffers.is_fresh()) return "";
    const double start = now_ns();
    for (unsigned char* const buffer : {from, into}) {
      if (row.way->reports) pinrail_monitor_report(buffer, bytes);
    }
    const double reported = now_ns();
    for (unsigned char* const buffer : {from, into}) munmap(buffer, bytes);
    sum->message += now_ns() - start;
    sum->registration += reported - start;
    return "";
  }
  std::string exchange(const Row& row, unsigned side, unsigned char* from, unsigned char* into, Sample* sum) {
    const size_t bytes = row.buffers->bytes();
    Pin from_pin, into_pin;
    const double start = now_ns();
    if (!row.way->pin(into, bytes, &into_pin)) return kNotRegistered;
    if (!row.way->pin(from, bytes, &from_pin)) {
      (void)row.way->unpin(into_pin);
      return kNotRegistered;
    }
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
  std::string check_counts() const {
    for (const Row& row : rows_) {
      const uint64_t calls = 2 * row.messages;
      const bool from_cache = row.way->keeps && !row.buffers->is_fresh();
      const bool right = row.counts.registrations == (from_cache ? 0 : calls) &&  //
                         row.counts.hits == (from_cache ? calls : 0);
      // What was evicted, by a limit that someone set, must be registered again, in whichever row.
      if (right || row.way->counts().evictions != 0) continue;
      return row.wrong(std::to_string(row.counts.registrations) + " registrations and " +
                       std::to_string(row.counts.hits) + " hits in " + std::to_string(calls) + " calls");
    }
    return "";
  }

  Link* const link_;
  const std::vector<Way*> ways_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<Row> rows_;
  uint64_t rounds_ = 0, messages_ = 0, bytes_verified_ = 0;
};

// What a match came to, for people and for programs, on standard output.

constexpr char kNote[] =
    "Where the device is software in an emulated guest, message is the emulator's time; look at registration";

double median(const std::vector<Sample>& samples, double Sample::*figure) {
  std::vector<double> figures;
  figures.reserve(samples.size());
  for (const Sample& sample : samples) figures.push_back(sample.*figure);
  std::sort(figures.begin(), figures.end());
  const size_t half = figures.size() / 2;
  return figures.size() % 2 == 1 ? figures[half] : (figures[half - 1] + figures[half]) / 2;
}

// One object for each row; ratio: plain's figure divided by the row's. The first way of each kind and length is plain.
tools::Json figures_of(const std::vector<Row>& rows) {
  tools::Json lines = tools::Json::array();
  double plain_message = 0, plain_registration = 0;
  const Buffers* buffers = nullptr;
  for (const Row& row : rows) {
    const double message = median(row.samples, &Sample::message);
    const double registration = median(row.samples, &Sample::registration);
    if (row.buffers != buffers) {
      buffers = row.buffers;
      plain_message = message;
      plain_registration = registration;
    }
    lines.push_back({{"buffers", buffers->kind_name()},
                     {"bytes", buffers->bytes()},
                     {"way", row.way->name},
                     {"ns_per_message", message},
                     {"ratio_plain", plain_message / message},
                     {"registration_ns_per_message", registration},
                     {"registration_ratio_plain", plain_registration / registration},
                     {"registration_share", registration / message},
                     {"messages", row.messages},
                     {"samples", row.samples.size()},
                     {"registrations", row.counts.registrations},
                     {"hits", row.counts.hits},
                     {"evictions", row.counts.evictions}});
  }
  return lines;
}

void print_table(const Match& match, const std::string& device, const Options& options) {
  std::printf("SEND over %s, monitor %s, %" PRIu64 " rounds, %" PRIu64 " bytes compared, none differed.\n",
              device.c_str(), options.monitor.c_str(), match.rounds(), match.bytes_verified());
  std::printf(
      "Medians, for one message. message: register both buffers, transfer, deregister both; fresh: and unmap both.\n"
      "registration: of that, without the transfer and the munmap calls. x: plain's time divided by this one.\n"
      "%s.\n\n",
      kNote);
  std::printf("%-8s  %8s  %-14s  %11s  %7s  %15s  %7s  %8s  %13s  %6s\n", "buffers", "bytes", "way", "message us", "x",
              "registration us", "x", "share", "registrations", "hits");
  for (const tools::Json& line : figures_of(match.rows())) {
    const auto number = [&](const char* name) { return line[name].get<double>(); };
    std::printf("%-8s  %8.0f  %-14s  %11.1f  %7.2f  %15.2f  %7.2f  %6.2f %%  %13.0f  %6.0f\n",
                line["buffers"].get<std::string>().c_str(), number("bytes"), line["way"].get<std::string>().c_str(),
                number("ns_per_message") / 1e3, number("ratio_plain"), number("registration_ns_per_message") / 1e3,
                number("registration_ratio_plain"), 100 * number("registration_share"), number("registrations"),
                number("hits"));
  }
}

void print_json(const Match& match, const std::string& device, const Options& options) {
  tools::print({{"device", device},
                {"operation", "SEND"},
                {"monitor", options.monitor},
                {"rounds", match.rounds()},
                {"bytes_verified", match.bytes_verified()},
                {"note", kNote},
                {"rows", figures_of(match.rows())}},
               std::cout);
}

int complain(const std::string& what) {
  std::fprintf(stderr, "rdma_pingpong: %s\n", what.c_str());
  return 1;
}

int play(const Options& options, const test::RdmaDevice& device, Link* link, std::vector<Way*> ways) {
  Match match(link, std::move(ways));
  const std::string failed = match.play(options.seconds);
  if (!failed.empty()) return complain(failed);
  const char* const name = ibv_get_device_name(device.context()->device);
  (options.json ? print_json : print_table)(match, name, options);
  return 0;
}

// The pools' part: between pinrail_init() and pinrail_finalize().
int with_pools(const Options& options, const test::RdmaDevice& device, Link* link) {
  const bool reports = !options.no_reports && options.monitor == "external";
  Way plain{"plain", device.pd(), false, false}, unkept{"leave_pinned 0", device.pd(), false, reports},
      kept{"leave_pinned 1", device.pd(), true, reports};
  pinrail_status_t status = unkept.open_pool();
  if (status == PINRAIL_SUCCESS) status = kept.open_pool();
  int result = status == PINRAIL_SUCCESS ? play(options, device, link, {&plain, &unkept, &kept})
                                         : complain(std::string("no pool: ") + pinrail_status_name(status));
  for (pinrail_mpool_t* const pool : {kept.pool, unkept.pool}) {
    if (pool == nullptr || pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS) continue;
    result = complain("a pool cannot be destroyed");
  }
  return result;
}

int with_link(const Options& options, const test::RdmaDevice& device, Link* link) {
  // A buffer beside one that was registered is to be a miss.
  const pinrail_status_t status =
      tools::init(tools::settings_of(options.mca), {{"monitor", options.monitor.c_str()}, {"mpool_grdma_extent", "0"}});
  if (status != PINRAIL_SUCCESS) return complain(std::string("pinrail_init: ") + pinrail_status_name(status));
  const int result = with_pools(options, device, link);
  return pinrail_finalize() == PINRAIL_SUCCESS ? result : complain("pinrail_finalize failed");
}

int with_device(const Options& options, const test::RdmaDevice& device) {
  Link link;
  const std::string failed = link.open(device);
  const int result = failed.empty() ? with_link(options, device, &link) : complain(failed);
  link.close();
  return result;
}

int main_of(int argc, char** argv) {
  Options options;
  tools::CommandLine line("rdma_pingpong", "What a message costs that registers its buffers.", kNotes, &options.mca);
  line.text("--device", "NAME", "RDMA device (the first one)", &options.device);
  line.number("--port", "N", "of the device (1)", 1, 255, &options.port);
  line.number("--gid-index", "N", "(the first of RoCE v2 over IPv4)", 0, 255, &options.gid_index);
  line.number("--seconds", "N", "how long (20); two rounds are always played, of which the first does not count", 1,
              3600, &options.seconds);
  line.text("--monitor", "LIST", "(external: the program reports what it unmaps)", &options.monitor);
  line.flag("--no-reports", "... or does not: bytes must differ then", &options.no_reports);
  line.flag("--json", "one JSON document", &options.json);
  if (const std::optional<int> status = line.read(argc, argv, std::cout, std::cerr)) return *status;
  test::RdmaDevice device;
  const std::string missing = device.open(options.device, options.port, options.gid_index);
  if (!missing.empty()) static_cast<void>(complain("skipped: " + missing));
  const int result = missing.empty() ? with_device(options, device) : kNoDevice;
  device.close();
  return result;
}

}  // namespace
}  // namespace pinrail::pingpong

int main(int argc, char** argv) { return pinrail::pingpong::main_of(argc, argv); }
