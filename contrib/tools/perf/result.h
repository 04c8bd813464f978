// SPDX-License-Identifier: BSD-3-Clause
// result.h - the result of a step of the tool: success, or a sentence for the user.
#ifndef PINRAIL_TOOLS_PERF_RESULT_H
#define PINRAIL_TOOLS_PERF_RESULT_H

#include <string>
#include <utility>

namespace pinrail::perf {

class [[nodiscard]] Result {
 public:
  static Result good() { return Result(std::string()); }
  static Result bad(std::string why) { return Result(why.empty() ? "unknown reason" : std::move(why)); }

  bool ok() const { return why_.empty(); }
  const std::string& why() const { return why_; }

 private:
  explicit Result(std::string why) : why_(std::move(why)) {}
  std::string why_;
};

}  // namespace pinrail::perf

#endif
