// SPDX-License-Identifier: BSD-3-Clause
// work.cc - where the regions lie, and in which order they are used; the options, --name=value, one by one.
#include "test/bench/work.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "test/bench/measure.h"

namespace pinrail::bench {

namespace {

constexpr size_t kAlignment = 2u << 20;
// Pages before the first region and behind the last one, for an invalidation may take its neighbours with it.
constexpr uint32_t kGap = 512;
constexpr uint32_t kStrangers = 1024;
constexpr uint16_t kStrangerPages = 16;

// xorshift64: the same sequence in every program.
class Random {
 public:
  uint32_t below(uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>((state_ >> 32) * bound >> 32);
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15u;
};

// Long enough that each region comes up about four times, short enough that small ones stay in the nearest cache.
size_t sequence_length(size_t regions) {
  size_t length = 2048;
  while (length < 4 * regions && length < (1u << 20)) length *= 2;
  return length;
}

// Readable: what may not be accessed is not kept. Not writable, for there is no memory behind it.
char* reserve(size_t bytes) {
  void* const start = mmap(nullptr, bytes + kAlignment, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) fail("address space cannot be reserved");
  const uintptr_t address = reinterpret_cast<uintptr_t>(start);
  return reinterpret_cast<char*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

Work::Work(Shape shape, uint32_t regions, size_t length) {
  place(shape, regions, length);
  const Step last = regions_.back();
  strangers_at_ = (last.page + last.pages) / kGap * kGap + 2 * kGap;
  base_ = reserve((strangers_at_ + kStrangers * kStrangerPages) * kPage);
}

void Work::place(Shape shape, uint32_t regions, size_t length) {
  Random random;
  regions_.reserve(regions);
  uint32_t page = shape == Shape::aligned ? kGap : kGap + 1;
  for (uint32_t i = 0; i < regions; ++i) {
    uint16_t pages = static_cast<uint16_t>(length / kPage);
    if (shape == Shape::odd_sizes) pages = static_cast<uint16_t>(1 + 2 * random.below(16));
    regions_.push_back({page, pages, 0});
    page += pages;
    if (shape == Shape::odd) page += 2;
    if (shape == Shape::odd_sizes) page += 1 + 2 * random.below(8);
  }
}

size_t Work::span_length() const {
  const Step last = regions_.back();
  return (last.page + last.pages - regions_.front().page) * kPage;
}

Sequence Work::random(unsigned percent) const {
  Random random;
  Sequence sequence(sequence_length(regions_.size()));
  for (Step& step : sequence) {
    step = regions_[random.below(static_cast<uint32_t>(regions_.size()))];
    step.invalidate_first = random.below(100) < percent ? 1 : 0;
  }
  return sequence;
}

Sequence Work::in_order() const {
  Sequence sequence(sequence_length(regions_.size()));
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = regions_[i % regions_.size()];
  return sequence;
}

Sequence Work::churn() const {
  constexpr uint32_t kHot = 8;   // a part of this many of the regions
  constexpr size_t kMissOf = 8;  // steps
  Random random;
  Sequence sequence(sequence_length(regions_.size()));
  const auto hot = static_cast<uint32_t>(regions_.size() / kHot);
  size_t cold = hot;
  for (size_t i = 0; i < sequence.size(); ++i) {
    sequence[i] = i % kMissOf == 0 ? regions_[cold] : regions_[random.below(hot)];
    if (i % kMissOf == 0 && ++cold == regions_.size()) cold = hot;
  }
  return sequence;
}

Sequence Work::only(size_t region) const { return Sequence(sequence_length(1), regions_[region]); }

Sequence Work::strangers() const {
  Random random;
  Sequence sequence(sequence_length(kStrangers));
  for (Step& step : sequence) step = {strangers_at_ + random.below(kStrangers) * kStrangerPages, kStrangerPages, 0};
  return sequence;
}

Shape shape_of(const std::string& name) {
  if (name == "aligned") return Shape::aligned;
  if (name == "odd") return Shape::odd;
  if (name == "odd_sizes") return Shape::odd_sizes;
  fail("no such shape of regions", name.c_str());
}

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
