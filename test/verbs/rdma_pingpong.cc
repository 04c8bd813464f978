// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong - what a message costs from end to end when each one registers its buffers: by plain ibv_reg_mr, and
// through pools with leave_pinned 0 and 1. Every byte is compared.
//
// rdma_pingpong_match.h says how the ways take turns; --help, what the exit status means.
#include <pinrail/pinrail.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "test/verbs/rdma_pingpong_match.h"
#include "test/verbs/rdma_pingpong_options.h"
#include "test/verbs/rdma_pingpong_report.h"

namespace pinrail::pingpong {
namespace {

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
