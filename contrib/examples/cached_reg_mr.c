/* SPDX-License-Identifier: BSD-3-Clause */
/* cached_reg_mr.c - your ibv_reg_mr() and ibv_dereg_mr() with a registration cache in front of them;
 * the tutorial explains it. cc cached_reg_mr.c -o cached_reg_mr $(pkg-config --cflags --libs pinrail) -libverbs
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pinrail/pinrail.h>
#include <stdio.h>
#include <stdlib.h>

static struct ibv_mr** mr_of(const pinrail_registration_t* reg) { return pinrail_registration_tail(reg); }

/* A miss: Pinrail calls this with whole pages. */
static pinrail_status_t register_mem(void* pd, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  int access = 0;
  if (request->rights & PINRAIL_ACCESS_REMOTE_READ) access |= IBV_ACCESS_REMOTE_READ;
  if (request->rights & PINRAIL_ACCESS_REMOTE_WRITE) access |= IBV_ACCESS_REMOTE_WRITE;
  if (request->rights & PINRAIL_ACCESS_REMOTE_ATOMIC) access |= IBV_ACCESS_REMOTE_ATOMIC;
  if (request->rights & ~(uint32_t)PINRAIL_ACCESS_REMOTE_READ) access |= IBV_ACCESS_LOCAL_WRITE; /* verbs demand it */
  struct ibv_mr* mr = ibv_reg_mr(pd, request->addr, request->length, access);
  if (mr == NULL) return errno == ENOMEM ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR; /* ENOMEM: evict, retry */
  *mr_of(reg) = mr;
  reg->lkey = mr->lkey;
  reg->rkey = mr->rkey;
  return PINRAIL_SUCCESS;
}

/* Eviction, or the memory is gone, or the pool ends. */
static pinrail_status_t deregister_mem(void* pd, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)pd, (void)reason;
  return ibv_dereg_mr(*mr_of(reg)) == 0 ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

/* What your transport calls in place of ibv_reg_mr() and ibv_dereg_mr(). */
static struct ibv_mr* cached_reg_mr(pinrail_mpool_t* pool, void* addr, size_t length, uint32_t access,
                                    pinrail_handle_t* handle_out) {
  return pinrail_mpool_register(pool, addr, length, access, 0, handle_out) ? NULL : *mr_of(handle_out->reg);
}
static int cached_dereg_mr(pinrail_handle_t handle) { return pinrail_mpool_deregister(handle); }

int main(void) {
  struct ibv_device** devices = ibv_get_device_list(NULL);
  struct ibv_context* device = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
  if (device == NULL) return puts("SKIP: no RDMA device"), 77;
  const pinrail_registrar_t table = {.size = sizeof(table),
                                     .name = "mine",
                                     .context = ibv_alloc_pd(device),
                                     .kinds = PINRAIL_KIND_HOST,
                                     .granularity = 4096,
                                     .tail_size = sizeof(struct ibv_mr*),
                                     .register_mem = register_mem,
                                     .deregister_mem = deregister_mem};
  const pinrail_registrar_choice_t mine = {.table = &table};
  pinrail_mpool_t* pool;
  if (pinrail_init(NULL) || pinrail_mpool_create(NULL, &mine, NULL, NULL, &pool)) return 1;

  char* buffer = malloc(1 << 20);
  for (int i = 0; i < 1000; ++i) {
    pinrail_handle_t handle;
    struct ibv_mr* mr = cached_reg_mr(pool, buffer + i, 4096, PINRAIL_ACCESS_REMOTE_READ, &handle);
    if (mr == NULL || mr->lkey != handle.reg->lkey) return 1;
    /* post the work request with mr->lkey and buffer + i, and wait for its completion */
    if (cached_dereg_mr(handle)) return 1;
  }
  free(buffer); /* the monitor sees the memory go; no call is needed */

  pinrail_mpool_stats_t stats = {.size = sizeof(stats)};
  if (pinrail_mpool_read_stats(pool, &stats)) return 1;
  printf("%lu hits, %lu misses\n", (unsigned long)stats.hits, (unsigned long)stats.misses);
  if (pinrail_mpool_destroy(pool, 0) || pinrail_finalize()) return 1;
  return ibv_dealloc_pd(table.context) || ibv_close_device(device);
}
