// SPDX-License-Identifier: BSD-3-Clause
// rdma_integrity - RDMA WRITE and READ through registrations from the cache, in a protection domain that is lent to
// the pool; memory is freed and mapped again at the same address meanwhile, and every byte is compared.
//
// Exit status: 0 if no byte differed and no call failed; 1 if one did, or if what --require-evictions asks for did not
// happen; 2 for wrong usage; 77 without an RDMA device.
#include <getopt.h>
#include <pinrail/pinrail.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "test/verbs/rdma_pair.h"

namespace pinrail::test {
namespace {

constexpr int kDifferent = 1, kUsage = 2, kNoDevice = 77;

struct Options {
  std::string device;
  int port = 1;
  int gid_index = -1;
  bool require_evictions = false;
  Plan plan;
};

void usage(std::FILE* to) {
  std::fputs(
      "Usage: rdma_integrity [OPTION]...\n"
      "  --device NAME        RDMA device; default: the first one\n"
      "  --port N             default 1\n"
      "  --gid-index N        default: the first of RoCE v2 over IPv4\n"
      "  --seconds S          how long; default 20\n"
      "  --regions N          pieces of memory; default 256\n"
      "  --region-bytes N     bytes of each, a multiple of 4096; default 262144\n"
      "  --threads N          default 2\n"
      "  --seed N             of the random work; default 1\n"
      "  --require-evictions  fail unless something was evicted and something was invalidated\n"
      "  --no-reports         do not report what is freed: bytes must differ then\n"
      "  --help               this text\n",
      to);
}

enum Option : int {
  kDevice = 'd',
  kPort = 'p',
  kGid = 'g',
  kSeconds = 't',
  kRegions = 'n',
  kBytes = 'b',
  kThreads = 'j',
  kSeed = 's',
  kRequire = 'e',
  kNoReports = 'r',
  kHelp = 'h'
};

constexpr option kOptions[] = {{"device", required_argument, nullptr, kDevice},
                               {"port", required_argument, nullptr, kPort},
                               {"gid-index", required_argument, nullptr, kGid},
                               {"seconds", required_argument, nullptr, kSeconds},
                               {"regions", required_argument, nullptr, kRegions},
                               {"region-bytes", required_argument, nullptr, kBytes},
                               {"threads", required_argument, nullptr, kThreads},
                               {"seed", required_argument, nullptr, kSeed},
                               {"require-evictions", no_argument, nullptr, kRequire},
                               {"no-reports", no_argument, nullptr, kNoReports},
                               {"help", no_argument, nullptr, kHelp},
                               {nullptr, 0, nullptr, 0}};

// A whole number; 0 for anything else.
uint64_t number(const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  return *end == '\0' && text[0] != '-' ? value : 0;
}

// False for a wrong option or value.
bool take(int option, const char* value, Options* options) {
  switch (option) {
    case kDevice: options->device = value; return true;
    case kPort: options->port = static_cast<int>(number(value)); return options->port > 0 && options->port < 256;
    case kGid: options->gid_index = static_cast<int>(number(value)); return true;
    case kSeconds: options->plan.seconds = static_cast<double>(number(value)); return options->plan.seconds > 0;
    case kRegions: options->plan.regions = number(value); return options->plan.regions > 0;
    case kBytes:
      options->plan.region_bytes = number(value);
      return options->plan.region_bytes > 0 && options->plan.region_bytes % 4096 == 0;
    case kThreads: options->plan.threads = number(value); return options->plan.threads > 0;
    case kSeed: options->plan.seed = number(value); return true;
    case kRequire: options->require_evictions = true; return true;
    case kNoReports: options->plan.reports = false; return true;
    default: return false;
  }
}

// -1 to go on, or the exit status.
int parse(int argc, char** argv, Options* options) {
  options->plan.seconds = 20;
  options->plan.regions = 256;
  options->plan.threads = 2;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
  for (int option; (option = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (option == kHelp) {
      usage(stdout);
      return 0;
    }
    if (option == '?') return kUsage;
    if (take(option, optarg, options)) continue;
    std::fprintf(stderr, "rdma_integrity: bad value \"%s\"\n", optarg);
    return kUsage;
  }
  if (optind == argc) return -1;
  std::fprintf(stderr, "rdma_integrity: unexpected argument \"%s\"\n", argv[optind]);
  return kUsage;
}

pinrail_status_t make_pool(const RdmaPair& pair, pinrail_mpool_t** pool_out) {
  const pinrail_setting_t settings[] = {{"monitor", "external"}};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.settings = settings;
  init.setting_count = 1;
  const pinrail_status_t status = pinrail_init(&init);
  if (status != PINRAIL_SUCCESS) return status;
  pinrail_registrar_choice_t choice{};
  choice.name = "verbs";
  choice.native = pair.pd();
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = 1;
  return pinrail_mpool_create("grdma", &choice, nullptr, &options, pool_out);
}

int judge(const Options& options, const Tally& tally, const pinrail_mpool_stats_t& stats) {
  std::printf("operations     %" PRIu64 "\nbytes verified %" PRIu64 "\nfrees          %" PRIu64
              "\nhits           %" PRIu64 "\nmisses         %" PRIu64 "\nevictions      %" PRIu64
              "\ninvalidations  %" PRIu64 "\nfailures       %" PRIu64 "\ndifferences    %" PRIu64 "\n",
              tally.operations.load(), tally.bytes_verified.load(), tally.frees.load(), stats.hits, stats.misses,
              stats.evictions, stats.invalidations, tally.failures.load(), tally.differences.load());
  if (tally.differences != 0 || tally.failures != 0) return kDifferent;
  if (tally.bytes_verified == 0 || stats.hits == 0) {
    std::fprintf(stderr, "nothing was verified through a hit\n");
    return kDifferent;
  }
  if (options.require_evictions && (stats.evictions == 0 || stats.invalidations == 0)) {
    std::fprintf(stderr, "no eviction, or no invalidation\n");
    return kDifferent;
  }
  return 0;
}

// Exit status.
int run(const Options& options, RdmaPair* pair) {
  pinrail_mpool_t* pool = nullptr;
  pinrail_status_t status = make_pool(*pair, &pool);
  if (status != PINRAIL_SUCCESS) {
    std::fprintf(stderr, "rdma_integrity: no pool: %s\n", pinrail_status_name(status));
    return kDifferent;
  }
  Tally tally;
  Integrity(pool, pair, options.plan).run(&tally);
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  status = pinrail_mpool_read_stats(pool, &stats);
  int result = judge(options, tally, stats);
  if (status != PINRAIL_SUCCESS || pinrail_mpool_destroy(pool, 0) != PINRAIL_SUCCESS) result = kDifferent;
  if (pinrail_finalize() != PINRAIL_SUCCESS) result = kDifferent;
  return result;
}

int main_of(int argc, char** argv) {
  Options options;
  const int early = parse(argc, argv, &options);
  if (early >= 0) return early;
  RdmaPair pair;
  const std::string wrong =
      pair.open(options.device, static_cast<uint8_t>(options.port), options.gid_index, options.plan.region_bytes);
  if (!wrong.empty()) std::fprintf(stderr, "rdma_integrity: %s\n", wrong.c_str());
  const int result = wrong.empty() ? run(options, &pair) : kNoDevice;
  pair.close();
  return result;
}

}  // namespace
}  // namespace pinrail::test

int main(int argc, char** argv) { return pinrail::test::main_of(argc, argv); }
