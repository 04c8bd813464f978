// SPDX-License-Identifier: BSD-3-Clause
// Checks of arguments, and the message about a refused call. API context; takes no lock of a pool.
#include "framework/api/refuse.h"

#include <string>

#include "base/core/errno_text.h"
#include "base/core/guarded.h"
#include "base/report/report.h"

namespace pinrail::api {
namespace {

constexpr char kHelp[] =
#include "framework/api/api_help.txt"
    ;

}  // namespace

void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  report::help("base", kHelp, topic, args.begin(), args.size());
}

// Without memory the message is dropped.
pinrail_status_t refuse(const char* call, const char* why) {
  (void)guarded([=] { help("call refused", {{"call", call}, {"why", why}}); });
  return PINRAIL_ERR_BAD_PARAM;
}

void report_limit(uint64_t bytes, uint64_t done, const char* limit) {
  help("prepin limit", {{"bytes", NumberText(bytes).c_str()}, {"done", NumberText(done).c_str()}, {"limit", limit}});
}

void report_closed_dmabuf() { help("dmabuf closed", {}); }

}  // namespace pinrail::api
