// SPDX-License-Identifier: BSD-3-Clause
// rounds - a registration cache in a process whose allocator gives memory back by system calls of its own: each round
// takes a block, registers it twice and frees it. A hit on memory whose pages are others by then is stale.
//
//   rounds [ROUNDS] [LIBRARY]
//     LIBRARY  is loaded after pinrail_init(), and its malloc and free are used instead of the program's
//   ROUNDS_REGISTRAR  in the environment: a registrar that reads memory as the device sees it (iouring); a byte that
//     differs from the processor's is stale, too
//
// The last line: rounds: N rounds, N at the same address, N replaced, N kept hits, N stale; monitors NAMES
// Status 0: nothing stale, and pages were replaced in at least half of the rounds; 1: something was stale, or the
// rounds showed nothing; 2: a call failed.
#include <dlfcn.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kLength = size_t{1} << 20;
constexpr unsigned char kMark = 0xa7;

using Take = void* (*)(size_t);
using Give = void (*)(void*);

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t deregister_nothing(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

const char* const by_device = std::getenv("ROUNDS_REGISTRAR");

pinrail_mpool_t* make_pool() {
  static pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "nothing";
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = 4096;
  table.register_mem = register_nothing;
  table.deregister_mem = deregister_nothing;
  pinrail_registrar_choice_t choice{};
  if (by_device == nullptr) choice.table = &table;
  choice.name = by_device;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

struct Counts {
  uint64_t rounds = 0, same_address = 0, replaced = 0, kept_hits = 0, stale = 0;
};

// Whether the device sees the byte that the processor sees in the middle of the block.
bool device_agrees(pinrail_handle_t handle, const unsigned char* block) {
  if (by_device == nullptr) return true;
  const unsigned char* const mark = block + kLength / 2;
  unsigned char seen = 0;
  const size_t offset = static_cast<size_t>(mark - static_cast<const unsigned char*>(handle.reg->base));
  if (pinrail_mpool_device_read(handle, offset, &seen, 1) != PINRAIL_SUCCESS) std::abort();
  return seen == *const_cast<const volatile unsigned char*>(mark);
}

uint64_t wrong_bytes = 0;

// Registers the block; hit_out: it was cached already.
bool use(pinrail_mpool_t* pool, void* block, bool* hit_out) {
  pinrail_mpool_stats_t before{}, after{};
  before.size = after.size = sizeof(before);
  if (pinrail_mpool_read_stats(pool, &before) != PINRAIL_SUCCESS) return false;
  pinrail_handle_t handle{};
  if (pinrail_mpool_register(pool, block, kLength, 0, 0, &handle) != PINRAIL_SUCCESS) return false;
  wrong_bytes += device_agrees(handle, static_cast<unsigned char*>(block)) ? 0 : 1;
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
  if (!use(pool, block, &first)) return false;
  for (size_t at = 0; at < kLength; at += 4096) const_cast<volatile unsigned char*>(block)[at + 64] = 1;
  *mark = kMark;
  if (!use(pool, block, &second)) return false;
  ++counts->rounds;
  counts->same_address += is_same ? 1 : 0;
  counts->replaced += is_replaced ? 1 : 0;
  counts->kept_hits += second ? 1 : 0;
  counts->stale += first && is_replaced ? 1 : 0;
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

int main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  if (pinrail_init(nullptr) != PINRAIL_SUCCESS) return fail("pinrail_init");
  pinrail_mpool_t* const pool = make_pool();
  if (pool == nullptr) return fail("pinrail_mpool_create");
  Take take = std::malloc;
  Give give = std::free;
  bool hit = false;
  void* const early = std::malloc(kLength);  // a look at what is loaded, before the library
  if (!use(pool, early, &hit)) return fail("pinrail_mpool_register");
  if (argc > 2 && !load(argv[2], &take, &give)) return fail("dlopen");
  Counts counts;
  unsigned char* last = nullptr;
  for (uint64_t i = 0; i < rounds; ++i) {
    if (!run_round(pool, take, give, &last, &counts)) return fail("a round");
  }
  std::free(early);
  counts.stale += wrong_bytes;
  std::printf("rounds: %llu rounds, %llu at the same address, %llu replaced, %llu kept hits, %llu stale; monitors %s\n",
              static_cast<unsigned long long>(counts.rounds), static_cast<unsigned long long>(counts.same_address),
              static_cast<unsigned long long>(counts.replaced), static_cast<unsigned long long>(counts.kept_hits),
              static_cast<unsigned long long>(counts.stale), pinrail_monitors_at_work());
  if (pinrail_mpool_destroy(pool, 0) != PINRAIL_SUCCESS) return fail("pinrail_mpool_destroy");
  if (pinrail_finalize() != PINRAIL_SUCCESS) return fail("pinrail_finalize");
  return counts.stale == 0 && (counts.replaced >= rounds / 2 || by_device != nullptr) ? 0 : 1;
}
