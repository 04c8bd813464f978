// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_options.h"

#include "test/verbs/command_line.h"

namespace pinrail::pingpong {
namespace {

using test::number;

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
  kJson = 'j'
};

constexpr option kOptions[] = {{"device", required_argument, nullptr, kDevice},
                               {"port", required_argument, nullptr, kPort},
                               {"gid-index", required_argument, nullptr, kGid},
                               {"seconds", required_argument, nullptr, kSeconds},
                               {"monitor", required_argument, nullptr, kMonitor},
                               {"no-reports", no_argument, nullptr, kNoReports},
                               {"json", no_argument, nullptr, kJson},
                               {"help", no_argument, nullptr, test::kHelpOption},
                               {nullptr, 0, nullptr, 0}};

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

}  // namespace

int parse(int argc, char** argv, Options* options) {
  return test::read_command_line(argc, argv, kOptions, kHelp,
                                 [options](int option, const char* value) { return take(option, value, options); });
}

}  // namespace pinrail::pingpong
