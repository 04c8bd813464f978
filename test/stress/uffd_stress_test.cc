// SPDX-License-Identifier: BSD-3-Clause
// monitor/uffd under load: nothing stale where one thread unmaps and another maps again, and no thread waits for ever
// where the reader could be what it waits for.
#include <malloc.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "test/monitor/uffd_library.h"
#include "test/support/host_table.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

int rounds() { return short_or_long(8000, 20000); }

void wait_for(const std::atomic<int>& turn, int value) {
  while (turn.load() != value) sched_yield();
}

// FACTS of the kernel: munmap() returns once its event was read, which is before anything was done about it.
TEST(UffdStress, what_one_thread_unmapped_is_never_a_hit_of_another_that_maps_it_again) {
  NEED_UFFD();
  Watched watched{uffd_alone()};
  ASSERT_EQ(watched.pool.status, PINRAIL_SUCCESS);
  constexpr size_t kPages = 4;
  const uintptr_t base = raw_map(kPages);
  std::atomic<int> turn{0};
  int stale = 0, misplaced = 0;
  const int all = rounds();
  std::thread user([&] {
    for (int i = 0; i < all; ++i) {
      wait_for(turn, 2 * i + 1);
      if (raw_map(kPages, base) != base) ++misplaced;
      if (watched.has(base, kPages)) ++stale;
      raw_unmap(base, kPages);
      turn.store(2 * i + 2);
    }
  });
  raw_unmap(base, kPages);  // not before the thread has its stack, which could come to lie there
  for (int i = 0; i < all; ++i) {
    wait_for(turn, 2 * i);
    if (raw_map(kPages, base) != base) ++misplaced;
    watched.pool.use(base, kPages * kPage);
    raw_unmap(base, kPages);
    turn.store(2 * i + 1);
  }
  user.join();
  EXPECT_EQ(stale, 0);
  EXPECT_EQ(misplaced, 0);
  EXPECT_EQ(watched.pool.stats().uncovered, 0u);
  EXPECT_EQ(watched.pool.stats().invalidations, static_cast<uint64_t>(all));
}

#ifndef __SANITIZE_THREAD__  // which does not see that raw calls hand memory on from thread to thread
// A registrar that notes which bytes stood in the memory when it was registered. Each block is stamped anew.
std::atomic<uint64_t> last_stamp{0};
pinrail_status_t note_stamp(void*, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  reg->lkey = *static_cast<const volatile uint32_t*>(request->addr);
  return PINRAIL_SUCCESS;
}

// What threads do that share an allocator with raw calls: a block of one is the next one's at once, before the kernel
// has reported that it was unmapped. Returns how often a registration was of another block.
int use_new_blocks(const Pool& pool, int count) {
  constexpr size_t kPages = 16;
  int stale = 0;
  for (int i = 0; i < count; ++i) {
    const long mapped =
        syscall(SYS_mmap, 0L, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (mapped == -1) continue;
    const auto base = static_cast<uintptr_t>(mapped);
    const auto stamp = static_cast<uint32_t>(last_stamp.fetch_add(1));
    *static_cast<volatile uint32_t*>(at(base)) = stamp;
    pinrail_handle_t handle{};
    if (pool.reg(base, kPages * kPage, &handle, 0) == PINRAIL_SUCCESS) {
      stale += handle.reg->lkey != stamp ? 1 : 0;
      Status(pinrail_mpool_deregister(handle)).ignore();
    }
    syscall(SYS_munmap, mapped, kPages * kPage);
  }
  return stale;
}

TEST(UffdStress, what_another_thread_maps_before_the_event_is_read_is_a_miss) {
  NEED_UFFD();
  const Library library{
      {{"monitor", "uffd"}, {"monitor_never", "guard_install,shmat_over"}, {"mpool_grdma_gc_thread", "auto"}}};
  pinrail_registrar_t table = host_table("stamps");
  table.register_mem = note_stamp;
  Pool pool(table);
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  constexpr int kThreads = 4;
  std::atomic<int> stale{0};
  on_threads(kThreads, [&](int) { stale += use_new_blocks(pool, rounds() / kThreads); });
  EXPECT_EQ(stale.load(), 0);
  EXPECT_LE(pool.stats().uncovered, static_cast<uint64_t>(rounds() / 1000)) << "nothing is shown where nothing is kept";
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}
#endif

// In a child, which is killed when it takes too long. True if it came back, with 1.
bool ends(const std::function<bool()>& body) {
  ChildAnswer answer{};
  const bool came = in_child([&] { return ChildAnswer{body() ? 1 : 0}; }, &answer);
  return came && answer[0] == 1;
}

TEST(UffdStress, a_heap_that_is_watched_is_trimmed_while_threads_allocate) {
  NEED_UFFD();
  EXPECT_TRUE(ends([] {
    Watched watched{uffd_alone()};
    std::atomic<bool> is_over{false};
    std::thread trimmer([&] {
      while (!is_over) malloc_trim(0);
    });
    on_threads(4, [&](int seed) {
      auto random = static_cast<unsigned>(seed);
      for (int round = 0; round < 30; ++round) {
        std::vector<void*> held;
        for (int i = 0; i < 64; ++i) {
          random = random * 1103515245 + 12345;
          held.push_back(std::malloc(1 + (random >> 8) % (size_t{200} << 10)));
          watched.pool.use(reinterpret_cast<uintptr_t>(held.back()), 1);
        }
        for (void* piece : held) std::free(piece);
      }
    });
    is_over = true;
    trimmer.join();
    return watched.pool.stats().invalidations != 0 && watched.pool.invariants_hold();
  }));
}

TEST(UffdStress, a_registrar_unmaps_what_is_watched_inside_its_calls) {
  NEED_UFFD();
  EXPECT_TRUE(ends([] {
    Watched watched{uffd_alone()};
    watched.fake.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
      const uintptr_t own = raw_map(2);
      raw_unmap(own, 1);
      raw_unmap(own + kPage, 1);
      std::free(std::malloc(size_t{300} << 10));
    });
    watched.fake.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t reason) {
      // After an event the address may be that of memory which another thread registers at the moment.
      if (reason == PINRAIL_REASON_INVALIDATED) return;
      raw_advise(reinterpret_cast<uintptr_t>(reg->base), 1, MADV_DONTNEED);
    });
    on_threads(4, [&](int) {
      for (int i = 0; i < 300; ++i) {
        const uintptr_t base = raw_map(4);
        watched.pool.use(base, 4 * kPage);
        watched.pool.use(base + kPage, kPage, 2);
        raw_unmap(base, 4);
      }
    });
    return watched.pool.invariants_hold();
  }));
}

TEST(UffdStress, the_library_goes_while_threads_unmap_what_it_watched) {
  NEED_UFFD();
  EXPECT_TRUE(ends([] {
    for (int life = 0; life < 8; ++life) {
      std::atomic<bool> is_over{false};
      std::vector<uintptr_t> bases(2000);
      std::thread unmapper;
      {
        Watched watched{uffd_alone()};
        for (uintptr_t& base : bases) {
          base = raw_map(2);
          watched.pool.use(base, 2 * kPage);
        }
        unmapper = std::thread([&] {
          for (const uintptr_t base : bases) raw_unmap(base, 2);
        });
        usleep(1000);
      }
      unmapper.join();
    }
    return true;
  }));
}

}  // namespace
}  // namespace pinrail::test
