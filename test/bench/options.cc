// SPDX-License-Identifier: BSD-3-Clause
// options.cc - --name=value, one by one.
#include "test/bench/options.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "test/bench/fail.h"

namespace pinrail::bench {

namespace {

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) found.push_back(word);
  return found;
}

unsigned long number(const std::string& text) {
  char* end;
  const unsigned long value = strtoul(text.c_str(), &end, 10);
  if (text.empty() || *end != 0) fail("this is no number", text.c_str());
  return value;
}

std::vector<unsigned> numbers(const std::string& list) {
  std::vector<unsigned> found;
  for (const std::string& word : words(list)) found.push_back(static_cast<unsigned>(number(word)));
  if (found.empty()) fail("a number is missing");
  return found;
}

bool take(Options& options, const std::string& name, const std::string& value) {
  if (name == "--shape")
    options.shape = shape_of(value);
  else if (name == "--regions")
    options.regions = static_cast<uint32_t>(number(value));
  else if (name == "--length")
    options.length = number(value);
  else if (name == "--rows")
    options.rows = words(value);
  else if (name == "--limit")
    options.limit = static_cast<uint32_t>(number(value));
  else if (name == "--seconds")
    options.seconds = strtod(value.c_str(), nullptr);
  else if (name == "--repetitions")
    options.repetitions = static_cast<int>(number(value));
  else if (name == "--tries")
    options.tries = static_cast<int>(number(value));
  else if (name == "--monitor")
    options.monitor = value;
  else if (name == "--threads")
    options.threads = numbers(value);
  else
    return false;
  return true;
}

void check(const Options& options) {
  if (options.regions == 0 || options.length < kPage || options.length / kPage > UINT16_MAX)
    fail("no such regions: there must be one, of 4 KiB to 255 MiB");
  if (options.seconds <= 0 || options.repetitions < 1 || options.tries < 1) fail("a sample needs time, and one try");
  for (const unsigned threads : options.threads)
    if (threads == 0 || threads > 1024) fail("no such number of threads");
}

}  // namespace

Options read_options(int* argc, char** argv) {
  Options options;
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const char* const equals = strchr(argv[i], '=');
    const bool ours =
        equals != nullptr && take(options, std::string(argv[i], static_cast<size_t>(equals - argv[i])), equals + 1);
    if (!ours) argv[kept++] = argv[i];
  }
  *argc = kept;
  check(options);
  return options;
}

}  // namespace pinrail::bench
