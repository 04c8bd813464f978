// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong - what a message costs from end to end when each one registers its buffers: by plain ibv_reg_mr, and
// through pools with leave_pinned 0 and 1. Every byte is compared.
//
// rdma_pingpong_match.h says how the ways take turns; --help, what the exit status means.
#include <getopt.h>
#include <pinrail/pinrail.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "contrib/tools/common/program.h"
#include "test/verbs/rdma_pingpong_match.h"

namespace pinrail::pingpong {
namespace {

// What one run of rdma_pingpong measures, and where.

constexpr int kGoOn = -1, kWrong = 1, kUsage = 2, kNoDevice = 77;

struct Options {
  std::string device;  // "": the first one
  uint8_t port = 1;
  int gid_index = -1;
  unsigned seconds = 20;
  std::string monitor = "external";
  bool reports = true;  // fresh memory is reported before it goes; of use to monitor "external" alone
  bool json = false;
};

const char kHelp[] =
    "Usage: rdma_pingpong [OPTION]...\n"
    "\n"
    "Sends messages of 4 KiB, 64 KiB and 1 MiB to and fro between two queue pairs of this process. For each message\n"
    "both buffers are registered, and deregistered after it, in three ways that take turns: plain (ibv_reg_mr and\n"
    "ibv_dereg_mr), and through a pool with leave_pinned 0 and 1. Buffers are fresh (mapped for the message, "
    "unmapped\n"
    "after it), reused (one on either side) or shuffled (random ones of 64 on either side). Every byte is compared.\n"
    "The pool with leave_pinned 1 keeps up to 140 MiB registered: \"ulimit -l\" must allow for it.\n"
    "\n"
    "  --device NAME   RDMA device; default: the first one\n"
    "  --port N        default 1\n"
    "  --gid-index N   default: the first of RoCE v2 over IPv4\n"
    "  --seconds N     how long, 1 to 3600; default 20. Two rounds are always played; the first does not count.\n"
    "  --monitor LIST  Pinrail's parameter \"monitor\"; default: external, that is, the program reports what it "
    "unmaps\n"
    "  --no-reports    ... or does not: bytes must differ then\n"
    "  --json          print JSON\n"
    "  --help          this text\n"
    "\n"
    "Exit status: 0 if no byte differed and no call failed; 1 if one did, or if a pool did not register as often as\n"
    "it should; 2 for wrong usage; 77 without an RDMA device.\n";

enum Option : int {
  kDevice = 'd',
  kPort = 'p',
  kGid = 'g',
  kSeconds = 't',
  kMonitor = 'm',
  kNoReports = 'r',
  kJson = 'j',
  kHelpOption = 'h'
};

constexpr option kOptions[] = {{"device", required_argument, nullptr, kDevice},
                               {"port", required_argument, nullptr, kPort},
                               {"gid-index", required_argument, nullptr, kGid},
                               {"seconds", required_argument, nullptr, kSeconds},
                               {"monitor", required_argument, nullptr, kMonitor},
                               {"no-reports", no_argument, nullptr, kNoReports},
                               {"json", no_argument, nullptr, kJson},
                               {"help", no_argument, nullptr, kHelpOption},
                               {nullptr, 0, nullptr, 0}};

// Whether it is a whole number of that span, which is then written.
template <typename Number>
bool number(const char* text, long least, long most, Number* out) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most) return false;
  *out = static_cast<Number>(value);
  return true;
}

// False for a wrong value.
bool take(int option, const char* value, Options* options) {
  switch (option) {
    case kDevice: options->device = value; return true;
    case kPort: return number(value, 1, 255, &options->port);
    case kGid: return number(value, 0, 255, &options->gid_index);
    case kSeconds: return number(value, 1, 3600, &options->seconds);
    case kMonitor: options->monitor = value; return true;
    case kNoReports: options->reports = false; return true;
    case kJson: options->json = true; return true;
    default: return false;
  }
}

// kGoOn, or the exit status.
int parse(int argc, char** argv, Options* options) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
  for (int code; (code = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (code == kHelpOption) {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (code == '?') return kUsage;
    if (take(code, optarg, options)) continue;
    std::fprintf(stderr, "%s: bad value \"%s\"; see --help\n", argv[0], optarg);
    return kUsage;
  }
  if (optind == argc) return kGoOn;
  std::fprintf(stderr, "%s: unexpected argument \"%s\"; see --help\n", argv[0], argv[optind]);
  return kUsage;
}

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

// What one line says.
struct Line {
  const Row& row;
  double message_ns, registration_ns;
  double message_ratio, registration_ratio;  // plain's figure divided by this one's
};

// The first way of each kind and length is plain.
std::vector<Line> lines_of(const std::vector<Row>& rows) {
  std::vector<Line> lines;
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
    lines.push_back({row, message, registration, plain_message / message, plain_registration / registration});
  }
  return lines;
}

void print_line(const Line& line) {
  const Row& row = line.row;
  std::printf("%-8s  %8zu  %-14s  %11.1f  %7.2f  %15.2f  %7.2f  %6.2f %%  %13" PRIu64 "  %6" PRIu64 "\n",
              kind_name(row.buffers->kind()), row.buffers->bytes(), row.way->name(), line.message_ns / 1e3,
              line.message_ratio, line.registration_ns / 1e3, line.registration_ratio,
              100 * line.registration_ns / line.message_ns, row.counts.registrations, row.counts.hits);
}

tools::Json json_of(const Line& line) {
  const Row& row = line.row;
  return {{"buffers", kind_name(row.buffers->kind())},
          {"bytes", row.buffers->bytes()},
          {"way", row.way->name()},
          {"ns_per_message", line.message_ns},
          {"ratio_plain", line.message_ratio},
          {"registration_ns_per_message", line.registration_ns},
          {"registration_ratio_plain", line.registration_ratio},
          {"registration_share", line.registration_ns / line.message_ns},
          {"messages", row.messages},
          {"samples", row.samples.size()},
          {"registrations", row.counts.registrations},
          {"hits", row.counts.hits},
          {"evictions", row.counts.evictions}};
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
  for (const Line& line : lines_of(match.rows())) print_line(line);
}

void print_json(const Match& match, const std::string& device, const Options& options) {
  tools::Json rows = tools::Json::array();
  for (const Line& line : lines_of(match.rows())) rows.push_back(json_of(line));
  tools::print({{"device", device},
                {"operation", "SEND"},
                {"monitor", options.monitor},
                {"rounds", match.rounds()},
                {"bytes_verified", match.bytes_verified()},
                {"note", kNote},
                {"rows", rows}},
               std::cout);
}

int complain(const std::string& what) {
  std::fprintf(stderr, "rdma_pingpong: %s\n", what.c_str());
  return kWrong;
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
  const bool reports = options.reports && options.monitor == "external";
  PlainWay plain(device.pd());
  PoolWay unkept(PoolWay::LeavePinned::no, reports ? PoolWay::Reports::yes : PoolWay::Reports::no);
  PoolWay kept(PoolWay::LeavePinned::yes, reports ? PoolWay::Reports::yes : PoolWay::Reports::no);
  pinrail_status_t status = unkept.open(device.pd());
  if (status == PINRAIL_SUCCESS) status = kept.open(device.pd());
  int result = 0;
  if (status == PINRAIL_SUCCESS)
    result = play(options, device, link, {&plain, &unkept, &kept});
  else
    result = complain(std::string("no pool: ") + pinrail_status_name(status));
  const bool ended = kept.close() == PINRAIL_SUCCESS;
  return unkept.close() == PINRAIL_SUCCESS && ended ? result : complain("a pool cannot be destroyed");
}

int with_link(const Options& options, const test::RdmaDevice& device, Link* link) {
  // A buffer beside one that was registered is to be a miss.
  const pinrail_setting_t settings[] = {{"monitor", options.monitor.c_str()}, {"mpool_grdma_extent", "0"}};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.settings = settings;
  init.setting_count = std::size(settings);
  const pinrail_status_t status = pinrail_init(&init);
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
  const int early = parse(argc, argv, &options);
  if (early >= 0) return early;
  test::RdmaDevice device;
  const std::string missing = device.open(options.device, options.port, options.gid_index);
  int result = kNoDevice;
  if (missing.empty())
    result = with_device(options, device);
  else
    (void)complain("skipped: " + missing);
  device.close();
  return result;
}

}  // namespace
}  // namespace pinrail::pingpong

int main(int argc, char** argv) { return pinrail::pingpong::main_of(argc, argv); }
