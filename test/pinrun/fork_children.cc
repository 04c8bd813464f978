// SPDX-License-Identifier: BSD-3-Clause
// fork_children.cc - a program of libibverbs with one thread, which registers, unmaps and forks: under pinrun, threads
// of Pinrail deregister meanwhile, and its children must find a whole allocator. Run by test/pinrun_test.sh.
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstdio>

#include "test/support/pinned_heap.h"

namespace pinrail::test {
namespace {

constexpr size_t kCount = 64, kBytes = 4096;

// Registers pages of new memory and unmaps them, so that their registrations die.
bool register_and_unmap(ibv_pd* domain) {
  void* const memory =
      mmap(nullptr, kCount * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return false;
  bool worked = true;
  for (size_t i = 0; i < kCount && worked; ++i) {
    ibv_mr* const region = ibv_reg_mr(domain, static_cast<char*>(memory) + i * kBytes, kBytes, IBV_ACCESS_LOCAL_WRITE);
    worked = region != nullptr && ibv_dereg_mr(region) == 0;
  }
  munmap(memory, kCount * kBytes);
  return worked;
}

// Returns whether the child ended in order.
bool fork_one() {
  const pid_t child = fork();
  if (child == 0) allocate_and_end();
  int how = -1;
  return waitpid(child, &how, 0) == child && how == 0;
}

int run(ibv_pd* domain, long children) {
  if (!pin_heap()) {
    std::printf("the kernel does not pin the heap here\n");
    return 77;
  }
  long dead = 0;
  for (long round = 0; round < children; ++round) {
    if (!register_and_unmap(domain)) {
      std::printf("registering failed in round %ld\n", round);
      return 1;
    }
    usleep(round % 16 * 20);
    if (!fork_one()) ++dead;
  }
  std::printf("%ld of %ld children did not end in order\n", dead, children);
  return dead == 0 ? 0 : 1;
}

// That of the first device, or of the double of libibverbs, which has none.
ibv_context* open_device() {
  static ibv_context of_double{};
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) return &of_double;
  return ibv_open_device(list[0]);
}

}  // namespace
}  // namespace pinrail::test

int main(int argc, char** argv) {
  const long children = argc == 2 ? std::atol(argv[1]) : 0;
  if (children <= 0) {
    std::fprintf(
        stderr,
        "Usage: fork_children COUNT\n"
        "Exit status: 0: all children ended in order; 1: not; 2: wrong arguments; 77: the heap is not pinned.\n");
    return 2;
  }
  ibv_pd* const domain = ibv_alloc_pd(pinrail::test::open_device());
  if (domain == nullptr) {
    std::printf("there is no protection domain\n");
    return 1;
  }
  const int status = pinrail::test::run(domain, children);
  ibv_dealloc_pd(domain);
  return status;
}
