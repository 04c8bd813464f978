// SPDX-License-Identifier: BSD-3-Clause
// work.h - what is done to every cache alike: regions of address space, sequences of steps, and the loops over them.
//
// Cache    a class that the program of one library brings along:
//            using Ref                        what register_range() gives out
//            Ref register_range(void*, size_t)  referenced, local and remote rights alike; a failure ends the program
//            void deregister(Ref)
//            void invalidate(void*, size_t)   what the library does when it learns that the range goes away
//            void unmap(void*, size_t)        munmap, and whatever the library needs to learn of it
// Threads  a Work is made by one thread and only read afterwards.
// Pages    are reserved, never readable and never touched: a zero-cost registrar does not look.
#ifndef PINRAIL_TEST_BENCH_WORK_H
#define PINRAIL_TEST_BENCH_WORK_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pinrail::bench {

constexpr size_t kPage = 4096;

// One operation, in eight bytes, so that reading the sequence costs every library the same small stream.
struct Step {
  uint32_t page;  // from the start of the reservation
  uint16_t pages;
  uint16_t invalidate_first;  // the range goes away before it is registered, which makes this a miss
};

using Sequence = std::vector<Step>;  // its size is a power of two

enum class Shape {
  aligned,   // starts are multiples of the length
  odd,       // equal lengths, all starts on odd pages
  odd_sizes  // 1 to 31 pages, an odd number of them, starts on odd pages with gaps of changing width
};

class Work {
 public:
  Work(Shape shape, uint32_t regions, size_t length);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const std::vector<Step>& regions() const { return regions_; }
  void* address(Step step) const { return base_ + step.page * kPage; }
  static size_t length(Step step) { return step.pages * kPage; }

  // From the first region's start to the last one's end.
  void* span_begin() const { return address(regions_.front()); }
  size_t span_length() const;

  // Regions drawn at random; percent of them invalidated first.
  Sequence random(unsigned percent) const;
  // All in their order, over and over.
  Sequence in_order() const;
  // An eighth of the regions at random; every eighth step is the next one of the others, which with room for half of
  // the regions was evicted since it was used last.
  Sequence churn() const;
  // Always the same one.
  Sequence only(size_t region) const;
  // Ranges of 64 KiB that lie behind all regions and are never registered.
  Sequence strangers() const;

 private:
  void place(Shape shape, uint32_t regions, size_t length);

  char* base_;
  uint32_t strangers_at_ = 0;
  std::vector<Step> regions_;
};

Shape shape_of(const std::string& name);

// The loops. `at` says where in the sequence to go on, so that calls continue one another.
template <class Cache>
void run_pairs(Cache& cache, const Work& work, const Sequence& sequence, uint64_t at, uint64_t pairs) {
  const uint64_t mask = sequence.size() - 1;
  for (const uint64_t end = at + pairs; at != end; ++at) {
    const Step step = sequence[at & mask];
    void* const address = work.address(step);
    if (step.invalidate_first != 0) cache.invalidate(address, Work::length(step));
    cache.deregister(cache.register_range(address, Work::length(step)));
  }
}

template <class Cache>
void run_invalidations(Cache& cache, const Work& work, const Sequence& sequence, uint64_t at, uint64_t count) {
  const uint64_t mask = sequence.size() - 1;
  for (const uint64_t end = at + count; at != end; ++at) {
    const Step step = sequence[at & mask];
    cache.invalidate(work.address(step), Work::length(step));
  }
}

template <class Cache>
void fill(Cache& cache, const Work& work) {
  for (const Step step : work.regions()) cache.deregister(cache.register_range(work.address(step), Work::length(step)));
}

// What one run of a benchmark program measures. test/bench/run writes these command lines.
struct Options {
  Shape shape = Shape::aligned;
  uint32_t regions = 1;
  size_t length = 64 << 10;                // bytes of a region; odd_sizes has its own
  std::vector<std::string> rows{"pairs"};  // see rows.h
  std::vector<unsigned> threads{1, 2};     // for the rows of threads
  uint32_t limit = 0;                      // most registrations that the cache may keep; 0: as the library sets it
  double seconds = 0.05;                   // of one sample
  int repetitions = 3;                     // samples of each row
  int tries = 20;                          // for a sample of more than one thread, until the machine is quiet
  std::string monitor;                     // Pinrail's parameter of that name
};

// Takes out of argv what is ours and leaves the rest to Google Benchmark.
Options read_options(int* argc, char** argv);

}  // namespace pinrail::bench

#endif
