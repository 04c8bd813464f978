/* SPDX-License-Identifier: BSD-3-Clause
 * stranger.c - pools with components of contrib/new-component: mpool "count", and grdma over rcache "array".
 *
 * The program reports memory events itself (monitor=external), and lends a registrar that only counts.
 * What any pool or index must do is pinrail_conform's matter; here is what these two are for.
 * Usage: stranger count|array|overtaken
 */
#include <pinrail/pinrail.h>
#include <pinrail/registrar.h>
#include <pinrail/stats.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, PAGES = 512 };

static _Alignas(PAGE) char memory[PAGES * PAGE];
static int registered, deregistered, last_reason;

#define REQUIRE(condition)                                                              \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "%s:%d: it is not so that %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  (void)context, (void)request, (void)reg;
  ++registered;
  return PINRAIL_SUCCESS;
}

static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)context, (void)reg;
  ++deregistered;
  last_reason = (int)reason;
  return PINRAIL_SUCCESS;
}

static const pinrail_registrar_t counting = {.size = sizeof(counting),
                                             .name = "counting",
                                             .kinds = PINRAIL_KIND_HOST,
                                             .granularity = PAGE,
                                             .register_mem = register_mem,
                                             .deregister_mem = deregister_mem,
                                             .pins_nothing = 1};

static pinrail_mpool_t* create(const char* mpool, int64_t count_limit) {
  pinrail_registrar_choice_t registrar = {.table = &counting};
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  pinrail_mpool_t* pool = NULL;
  if (count_limit != 0) options.count_limit = count_limit;
  REQUIRE(pinrail_mpool_create(mpool, &registrar, NULL, &options, &pool) == PINRAIL_SUCCESS);
  REQUIRE(strcmp(pinrail_mpool_name(pool), mpool) == 0);
  return pool;
}

static pinrail_handle_t get(pinrail_mpool_t* pool, size_t page, size_t pages, uint32_t access) {
  pinrail_handle_t handle;
  REQUIRE(pinrail_mpool_register(pool, memory + page * PAGE, pages * PAGE, access, 0, &handle) == PINRAIL_SUCCESS);
  REQUIRE((char*)handle.reg->base <= memory + page * PAGE);
  REQUIRE((char*)handle.reg->base + handle.reg->length >= memory + (page + pages) * PAGE);
  REQUIRE((handle.reg->rights & access) == access);
  return handle;
}

static void put(pinrail_handle_t handle) { REQUIRE(pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS); }

static pinrail_mpool_stats_t stats_of(pinrail_mpool_t* pool) {
  pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
  REQUIRE(pinrail_mpool_read_stats(pool, &stats) == PINRAIL_SUCCESS);
  return stats;
}

/* Each call reaches the device, and nothing is kept. */
static void try_count(void) {
  pinrail_mpool_t* pool = create("count", 0);
  const pinrail_handle_t first = get(pool, 0, 4, 0), second = get(pool, 0, 4, 0);
  REQUIRE(first.reg != second.reg && registered == 2);
  REQUIRE(stats_of(pool).registered_count == 2 && stats_of(pool).misses == 2 && stats_of(pool).hits == 0);
  put(first);
  REQUIRE(deregistered == 1 && last_reason == PINRAIL_REASON_RELEASED);
  pinrail_monitor_report(memory + PAGE, PAGE);
  put(second);
  REQUIRE(deregistered == 2 && last_reason == PINRAIL_REASON_INVALIDATED && stats_of(pool).invalidations == 1);
  REQUIRE(pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS);
}

/* What the array contains is hit; what is dominated, evicted or invalidated is gone. */
static void try_array(void) {
  pinrail_mpool_t* pool = create("grdma", 100);
  put(get(pool, 4, 8, PINRAIL_ACCESS_LOCAL_WRITE));
  put(get(pool, 4, 8, PINRAIL_ACCESS_LOCAL_WRITE));
  put(get(pool, 6, 2, 0));
  REQUIRE(registered == 1 && stats_of(pool).hits == 2);
  /* R4: what is registered has all rights. */
  put(get(pool, 6, 2, PINRAIL_ACCESS_REMOTE_READ));
  REQUIRE(registered == 1 && stats_of(pool).hits == 3);
  put(get(pool, 13, 2, 0));
  REQUIRE(registered == 2);
  /* One that contains both takes their place. */
  put(get(pool, 0, 16, PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_LOCAL_WRITE));
  REQUIRE(registered == 3 && stats_of(pool).indexed == 1);
  const pinrail_handle_t held = get(pool, 15, 1, 0);
  REQUIRE(registered == 3);
  pinrail_monitor_report(memory, PAGE);
  REQUIRE(stats_of(pool).indexed == 0);
  put(get(pool, 15, 1, 0));
  REQUIRE(registered == 4);
  put(held);
  /* More than the array has room for at first, and more than the pool may keep. */
  for (size_t i = 0; i < 200; ++i) put(get(pool, 20 + 2 * i, 1, 0));
  const pinrail_mpool_stats_t stats = stats_of(pool);
  REQUIRE(stats.registered_count <= 100 && stats.evictions >= 100 && stats.indexed >= 64);
  put(get(pool, 20 + 2 * 199, 1, 0));
  REQUIRE(registered == 204);
  REQUIRE(pinrail_mpool_evict(pool) == PINRAIL_SUCCESS);
  REQUIRE(pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS);
  REQUIRE(registered == deregistered);
}

/* With an index whose second publish says that an event overtook it: the pool tries again (R13). */
static void try_overtaken(void) {
  pinrail_mpool_t* pool = create("grdma", 0);
  put(get(pool, 0, 1, 0));
  const pinrail_handle_t second = get(pool, 1, 1, 0);
  REQUIRE(registered == 3 && deregistered == 1 && last_reason == PINRAIL_REASON_INVALIDATED);
  REQUIRE(stats_of(pool).races == 1 && stats_of(pool).indexed == 2);
  put(second);
  REQUIRE(pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS);
  REQUIRE(registered == deregistered);
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  REQUIRE(pinrail_init(NULL) == PINRAIL_SUCCESS);
  if (strcmp(what, "count") == 0) {
    try_count();
  } else if (strcmp(what, "array") == 0) {
    try_array();
  } else if (strcmp(what, "overtaken") == 0) {
    try_overtaken();
  } else {
    REQUIRE(!"the argument is one of the three");
  }
  REQUIRE(pinrail_finalize() == PINRAIL_SUCCESS);
  return 0;
}
