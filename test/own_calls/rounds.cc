// SPDX-License-Identifier: BSD-3-Clause
// rounds - a registration cache in a process whose allocator gives memory back by system calls of its own: each round
// takes a block, registers it twice and frees it. The registrar iouring reads each time what the device sees through
// the registration. A byte that differs from the processor's is stale.
//
//   rounds [ROUNDS] [LIBRARY]
//     LIBRARY  is loaded after pinrail_init(), and its malloc and free are used instead of the program's
//
// A program that contains rounds_take() and rounds_give() has blocks of its own (rounds.go).
//
// The last line: rounds: N rounds, N at the same address, N replaced, N kept hits, N stale; monitors NAMES
// Status 0: nothing stale, and pages were replaced in at least half of the rounds; 1: something was stale, or the
// rounds showed nothing; 2: a call failed; 77: there is no io_uring here.
#include <dlfcn.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* rounds_take(size_t length) __attribute__((weak));
void rounds_give(void* block) __attribute__((weak));
int rounds_main(int argc, char** argv);
}

namespace {

constexpr size_t kLength = size_t{1} << 20;
constexpr unsigned char kMark = 0xa7;

using Take = void* (*)(size_t);
using Give = void (*)(void*);

struct Counts {
  uint64_t rounds = 0, same_address = 0, replaced = 0, kept_hits = 0, stale = 0;
};

// Returns whether the device sees another byte than the processor in the middle of the block.
bool is_stale(pinrail_handle_t handle, const unsigned char* block) {
  const unsigned char* const mark = block + kLength / 2;
  unsigned char seen = 0;
  const auto offset = static_cast<size_t>(mark - static_cast<const unsigned char*>(handle.reg->base));
  if (pinrail_mpool_device_read(handle, offset, &seen, 1) != PINRAIL_SUCCESS) std::abort();
  return seen != *const_cast<const volatile unsigned char*>(mark);
}

// Registers the block. hit_out: it was cached already.
bool use(pinrail_mpool_t* pool, unsigned char* block, bool* hit_out, Counts* counts) {
  pinrail_mpool_stats_t before{}, after{};
  before.size = after.size = sizeof(before);
  if (pinrail_mpool_read_stats(pool, &before) != PINRAIL_SUCCESS) return false;
  pinrail_handle_t handle{};
  if (pinrail_mpool_register(pool, block, kLength, 0, 0, &handle) != PINRAIL_SUCCESS) return false;
  counts->stale += is_stale(handle, block) ? 1 : 0;
  if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) return false;
  if (pinrail_mpool_read_stats(pool, &after) != PINRAIL_SUCCESS) return false;
  *hit_out = after.hits != before.hits;
  return true;
}

// The mark lies where no allocator writes: far inside of the block.
bool run_round(pinrail_mpool_t* pool, Take take, Give give, unsigned char** last, Counts* counts) {
  auto* const block = static_cast<unsigned char*>(take(kLength));
  if (block == nullptr) return false;
  volatile unsigned char* const mark = block + kLength / 2;
  const bool is_same = block == *last;
  const bool is_replaced = *mark != kMark;
  bool first = false, second = false;
  if (!use(pool, block, &first, counts)) return false;
  for (size_t at = 0; at < kLength; at += 4096) const_cast<volatile unsigned char*>(block)[at + 64] = 1;
  *mark = kMark;
  if (!use(pool, block, &second, counts)) return false;
  ++counts->rounds;
  counts->same_address += is_same ? 1 : 0;
  counts->replaced += is_replaced ? 1 : 0;
  counts->kept_hits += second ? 1 : 0;
  *last = block;
  give(block);
  return true;
}

bool load(const char* path, Take* take_out, Give* give_out) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  *take_out = reinterpret_cast<Take>(dlsym(library, "malloc"));
  *give_out = reinterpret_cast<Give>(dlsym(library, "free"));
  return *take_out != nullptr && *give_out != nullptr;
}

int fail(const char* what) {
  std::fprintf(stderr, "rounds: %s failed\n", what);
  return 2;
}

}  // namespace

int rounds_main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  if (pinrail_init(nullptr) != PINRAIL_SUCCESS) return fail("pinrail_init");
  pinrail_registrar_choice_t choice{};
  choice.name = "iouring";
  pinrail_mpool_t* pool = nullptr;
  const pinrail_status_t status = pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool);
  if (status == PINRAIL_ERR_NOT_AVAILABLE) return 77;
  if (status != PINRAIL_SUCCESS) return fail("pinrail_mpool_create");
  Take take = rounds_take != nullptr ? rounds_take : std::malloc;
  Give give = rounds_give != nullptr ? rounds_give : std::free;
  Counts counts;
  bool hit = false;
  auto* const early = static_cast<unsigned char*>(std::calloc(1, kLength));  // a look at what is loaded, before LIBRARY
  if (!use(pool, early, &hit, &counts)) return fail("pinrail_mpool_register");
  if (argc > 2 && !load(argv[2], &take, &give)) return fail("dlopen");
  unsigned char* last = nullptr;
  for (uint64_t i = 0; i < rounds; ++i) {
    if (!run_round(pool, take, give, &last, &counts)) return fail("a round");
  }
  std::free(early);
  std::printf("rounds: %llu rounds, %llu at the same address, %llu replaced, %llu kept hits, %llu stale; monitors %s\n",
              static_cast<unsigned long long>(counts.rounds), static_cast<unsigned long long>(counts.same_address),
              static_cast<unsigned long long>(counts.replaced), static_cast<unsigned long long>(counts.kept_hits),
              static_cast<unsigned long long>(counts.stale), pinrail_monitors_at_work());
  if (pinrail_mpool_destroy(pool, 0) != PINRAIL_SUCCESS) return fail("pinrail_mpool_destroy");
  if (pinrail_finalize() != PINRAIL_SUCCESS) return fail("pinrail_finalize");
  return counts.stale == 0 && counts.replaced >= rounds / 2 ? 0 : 1;
}

#ifndef ROUNDS_IN_GO
int main(int argc, char** argv) { return rounds_main(argc, argv); }
#endif
