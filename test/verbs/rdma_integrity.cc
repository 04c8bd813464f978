// SPDX-License-Identifier: BSD-3-Clause
// rdma_integrity - RDMA WRITE and READ through registrations from the cache, in a protection domain that is lent to
// the pool; memory is freed and mapped again at the same address meanwhile, and every byte is compared.
//
// Exit status: 0 if no byte differed and no call failed; 1 if one did, or if what --require-evictions asks for did not
// happen; 2 for wrong usage; 77 without an RDMA device.
#include <infiniband/verbs.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "test/integrity/integrity.h"
#include "test/verbs/command_line.h"
#include "test/verbs/rdma_device.h"

namespace pinrail::test {
namespace {

// Two connected queue pairs on one RDMA device: one asks, the other's registrations are read and written.
//
// Owns     the device, the completion queue, queue pairs, and the asker's own buffer.
// Threads  read() and write() may run together; they take turns.

class RdmaPair : public Mover {
 public:
  // buffer_bytes: the longest transfer. Empty if all is well, else what is wrong.
  std::string open(const std::string& device, uint8_t port, int gid_index, size_t buffer_bytes);
  void close();

  // To lend to a pool.
  ibv_pd* pd() const { return device_.pd(); }

  pinrail_status_t read(pinrail_handle_t handle, size_t offset, void* into, size_t length) override;
  pinrail_status_t write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) override;

 private:
  std::string make_queue_pairs();
  void end_queue_pairs();
  bool operate(ibv_wr_opcode opcode, pinrail_handle_t handle, size_t offset, size_t length);

  RdmaDevice device_;
  std::vector<char> buffer_;
  ibv_mr* buffer_mr_ = nullptr;

  std::mutex mutex_;  // guards the queue pairs, the completion queue and the buffer's bytes
  ibv_cq* cq_ = nullptr;
  ibv_qp* asker_ = nullptr;
  ibv_qp* target_ = nullptr;
  uint64_t operations_ = 0;
};

std::string RdmaPair::open(const std::string& device, uint8_t port, int gid_index, size_t buffer_bytes) {
  const std::string wrong = device_.open(device, port, gid_index);
  if (!wrong.empty()) return wrong;
  buffer_.resize(buffer_bytes);
  buffer_mr_ = ibv_reg_mr(pd(), buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (buffer_mr_ == nullptr) return "the asker's buffer cannot be registered";
  return make_queue_pairs();
}

void RdmaPair::close() {
  end_queue_pairs();
  if (buffer_mr_ != nullptr) ibv_dereg_mr(buffer_mr_);
  device_.close();
}

std::string RdmaPair::make_queue_pairs() {
  cq_ = ibv_create_cq(device_.context(), 8, nullptr, nullptr, 0);
  if (cq_ == nullptr) return "no completion queue";
  asker_ = device_.make_queue_pair(cq_);
  target_ = device_.make_queue_pair(cq_);
  if (asker_ == nullptr || target_ == nullptr) return "no queue pair";
  return device_.join(asker_, target_);
}

void RdmaPair::end_queue_pairs() {
  if (asker_ != nullptr) ibv_destroy_qp(asker_);
  if (target_ != nullptr) ibv_destroy_qp(target_);
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
  asker_ = target_ = nullptr;
  cq_ = nullptr;
}

bool RdmaPair::operate(ibv_wr_opcode opcode, pinrail_handle_t handle, size_t offset, size_t length) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uintptr_t>(buffer_.data());
  piece.length = static_cast<uint32_t>(length);
  piece.lkey = buffer_mr_->lkey;
  ibv_send_wr request{};
  request.wr_id = ++operations_;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(handle.reg->base) + offset;
  request.wr.rdma.rkey = handle.reg->rkey;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(asker_, &request, &bad) == 0 && wait_for_completion(cq_, request.wr_id)) return true;
  end_queue_pairs();  // they are in the error state
  const std::string wrong = make_queue_pairs();
  if (!wrong.empty()) std::fprintf(stderr, "connecting again: %s\n", wrong.c_str());
  return false;
}

pinrail_status_t RdmaPair::read(pinrail_handle_t handle, size_t offset, void* into, size_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (length > buffer_.size() || asker_ == nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (!operate(IBV_WR_RDMA_READ, handle, offset, length)) return PINRAIL_ERR_ERROR;
  std::memcpy(into, buffer_.data(), length);
  return PINRAIL_SUCCESS;
}

pinrail_status_t RdmaPair::write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (length > buffer_.size() || asker_ == nullptr) return PINRAIL_ERR_BAD_PARAM;
  std::memcpy(buffer_.data(), from, length);
  return operate(IBV_WR_RDMA_WRITE, handle, offset, length) ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

constexpr int kDifferent = 1, kNoDevice = 77;

struct Options {
  std::string device;
  int port = 1;
  int gid_index = -1;
  bool require_evictions = false;
  bool maps_all = false;  // of the pool mrall, which follows the mappings by itself
  Plan plan;
};

const char kHelp[] =
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
    "  --mrall              take the pool mrall, and the monitor patcher instead of reports; then memory that may "
    "only\n"
    "                       be read must be read and not written\n"
    "  --no-reports         do not report what is freed: bytes must differ then\n"
    "  --help               this text\n";

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
  kMrall = 'a'
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
                               {"mrall", no_argument, nullptr, kMrall},
                               {"help", no_argument, nullptr, kHelpOption},
                               {nullptr, 0, nullptr, 0}};

bool whole_pages(size_t bytes) { return bytes % 4096 == 0; }

bool take(int option, const char* value, Options* options) {
  constexpr long kMost = 1L << 40;
  Plan* const plan = &options->plan;
  switch (option) {
    case kDevice: options->device = value; return true;
    case kPort: return number(value, 1, 255, &options->port);
    case kGid: return number(value, 0, 255, &options->gid_index);
    case kSeconds: return number(value, 1, 7 * 24 * 3600, &plan->seconds);
    case kRegions: return number(value, 1, 1 << 24, &plan->regions);
    case kBytes: return number(value, 4096, kMost, &plan->region_bytes) && whole_pages(plan->region_bytes);
    case kThreads: return number(value, 1, 1024, &plan->threads);
    case kSeed: return number(value, 0, kMost, &plan->seed);
    case kRequire: options->require_evictions = true; return true;
    case kNoReports: plan->reports = false; return true;
    case kMrall:
      options->maps_all = true;
      plan->reports = false;
      return true;
    default: return false;
  }
}

int parse(int argc, char** argv, Options* options) {
  options->plan.seconds = 20;
  options->plan.regions = 256;
  options->plan.threads = 2;
  return read_command_line(argc, argv, kOptions, kHelp,
                           [options](int option, const char* value) { return take(option, value, options); });
}

pinrail_status_t make_pool(const Options& wanted, const RdmaPair& pair, pinrail_mpool_t** pool_out) {
  const pinrail_setting_t settings[] = {{"monitor", wanted.maps_all ? "patcher" : "external"}};
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
  return pinrail_mpool_create(wanted.maps_all ? "mrall" : "grdma", &choice, nullptr, &options, pool_out);
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

// What the process may only read, the device lets peers read and not write, whoever has the key.
bool keeps_read_only(pinrail_mpool_t* pool, RdmaPair* pair) {
  constexpr size_t kPage = 4096;
  constexpr char kOther[] = "other bytes";
  unsigned char seen[sizeof(kOther)] = {};
  const int file = memfd_create("rdma_integrity", MFD_CLOEXEC);
  void* const at = file >= 0 && ftruncate(file, kPage) == 0 && pwrite(file, "bytes", 6, 100) == 6
                       ? mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file, 0)
                       : MAP_FAILED;
  if (file >= 0) close(file);
  if (at == MAP_FAILED) return false;
  pinrail_handle_t handle;
  bool keeps = pinrail_mpool_find(pool, at, kPage, PINRAIL_ACCESS_REMOTE_READ, &handle) == PINRAIL_SUCCESS;
  if (keeps) {
    auto* const memory = static_cast<unsigned char*>(at) + 100;
    const auto place = static_cast<size_t>(memory - static_cast<unsigned char*>(handle.reg->base));
    const bool is_read = pair->read(handle, place, seen, sizeof(seen)) == PINRAIL_SUCCESS;
    const bool is_same = std::memcmp(seen, memory, sizeof(seen)) == 0 && std::memcmp(memory, "bytes", 6) == 0;
    std::fprintf(stderr, "a write that the device must refuse: ");
    const bool is_refused = pair->write(handle, place, kOther, sizeof(kOther)) != PINRAIL_SUCCESS;
    keeps = is_read && is_same && is_refused && std::memcmp(memory, "bytes", 6) == 0;
    if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) keeps = false;
  }
  munmap(at, kPage);
  std::printf("read-only      %s\n", keeps ? "read, and not written" : "NOT AS IT SHOULD BE");
  return keeps;
}

// Exit status.
int run(const Options& options, RdmaPair* pair) {
  pinrail_mpool_t* pool = nullptr;
  pinrail_status_t status = make_pool(options, *pair, &pool);
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
  if (options.maps_all && !keeps_read_only(pool, pair)) result = kDifferent;
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
