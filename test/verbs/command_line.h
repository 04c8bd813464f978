// SPDX-License-Identifier: BSD-3-Clause
// command_line.h - how the programs that need an RDMA device read their command lines.
//
// Threads  none yet.
#ifndef PINRAIL_TEST_VERBS_COMMAND_LINE_H
#define PINRAIL_TEST_VERBS_COMMAND_LINE_H

#include <getopt.h>

#include <cstdio>
#include <cstdlib>

namespace pinrail::test {

constexpr int kGoOn = -1, kUsage = 2;
constexpr int kHelpOption = 'h';  // of every program

// Whether it is a whole number of that span, which is then written.
template <typename Number>
bool number(const char* text, long least, long most, Number* out) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most) return false;
  *out = static_cast<Number>(value);
  return true;
}

// take(code, value): false for a wrong value. kGoOn, or the exit status.
template <typename Take>
int read_command_line(int argc, char** argv, const option* options, const char* help, Take take) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
  for (int code; (code = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (code == kHelpOption) {
      std::fputs(help, stdout);
      return 0;
    }
    if (code == '?') return kUsage;
    if (take(code, optarg)) continue;
    std::fprintf(stderr, "%s: bad value \"%s\"; see --help\n", argv[0], optarg);
    return kUsage;
  }
  if (optind == argc) return kGoOn;
  std::fprintf(stderr, "%s: unexpected argument \"%s\"; see --help\n", argv[0], argv[optind]);
  return kUsage;
}

}  // namespace pinrail::test

#endif
