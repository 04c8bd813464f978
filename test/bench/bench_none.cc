// SPDX-License-Identifier: BSD-3-Clause
// bench_none.cc - no cache at all: what mmap and munmap cost the bare process, and what the loops themselves cost.
#include "test/bench/rows.h"

namespace pinrail::bench {

namespace {

class NoCache {
 public:
  struct Ref {};
  static std::string version() { return "none"; }

  NoCache(const Options&, int*, char***) {}
  [[gnu::noinline]] Ref register_range(void* address, size_t length) {
    asm volatile("" : : "r"(address), "r"(length) : "memory");
    return {};
  }
  [[gnu::noinline]] void deregister(Ref) { asm volatile("" : : : "memory"); }
  void invalidate(void*, size_t) {}
  void unmap(void* address, size_t length) { munmap(address, length); }
};

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run_program<pinrail::bench::NoCache>(argc, argv); }
