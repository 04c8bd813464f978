// SPDX-License-Identifier: BSD-3-Clause
// pinrail_top - hit rates, misses and their reasons, of the processes of this user that use Pinrail.
#include <unistd.h>

#include <iostream>
#include <thread>

#include "contrib/tools/common/command_line.h"
#include "contrib/tools/top/top.h"

namespace {

using namespace pinrail::top;

struct Options {
  bool once = false, json = false;
  int pid = 0;
  unsigned interval_ms = 1000;
  int port = -1;
  pinrail::tools::Pairs mca;
};

int end_of(const Options& options, bool has_any) {
  if (has_any) return 0;
  if (options.pid != 0)
    std::cerr << "pinrail_top: process " << options.pid << " has no pool, or is not of this user\n";
  else
    std::cerr << "pinrail_top: no process of this user has a pool; one is there from the first transfer on\n";
  return 1;
}

// Two samples, so that the figures of a second are known.
int print_once(const Options& options) {
  const std::vector<Pool> before = read_pools(options.pid, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.interval_ms));
  const std::vector<Pool> now = read_pools(options.pid, false);
  if (!now.empty()) std::cout << head_line() << '\n';
  for (const Pool& pool : now) std::cout << pool_line(pool, rates_of(pool, before, options.interval_ms / 1e3)) << '\n';
  return end_of(options, !now.empty());
}

int run(const Options& options) {
  if (options.port >= 0) return serve(static_cast<uint16_t>(options.port), options.pid);
  if (options.json) {
    const std::vector<Pool> pools = read_pools(options.pid, true);
    std::cout << json_text(pools);
    return end_of(options, !pools.empty());
  }
  const bool is_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  return options.once || !is_terminal ? print_once(options) : run_screen(options.pid, options.interval_ms);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  pinrail::tools::CommandLine line(
      "pinrail_top", "Shows hit rates, misses and their reasons, of the processes of this user that use Pinrail.",
      "Exit status: 0; 1: no process of this user has a pool, or the port cannot be had; 2: invalid command line.",
      &options.mca);
  line.flag("--once", "print one table and end; this is the default where there is no terminal", &options.once);
  line.flag("--json", "print one JSON document and end, with the costliest ranges", &options.json);
  line.number("--pid", "PID", "of this process alone", 1, INT32_MAX, &options.pid);
  line.number("--interval", "MS", "milliseconds between two samples; 1000", 50, 3600000, &options.interval_ms);
  line.number("--listen", "PORT", "serve a page for Prometheus on 127.0.0.1; 0: any free port", 0, 65535,
              &options.port);
  line.exclude("--once", "--json");
  line.exclude("--listen", "--json");
  line.exclude("--listen", "--once");
  if (const std::optional<int> status = line.read(argc, argv, std::cout, std::cerr)) return *status;
  return pinrail::tools::close_output("pinrail_top", run(options));
}
