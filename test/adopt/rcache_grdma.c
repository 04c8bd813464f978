/* SPDX-License-Identifier: BSD-3-Clause
 * rcache_grdma.c - a transport of Open MPI 4.1 in its shape: it gave its rcache a struct of resources with two
 * functions and the size of its own registration, which begins with the base registration, and calls a module's
 * functions.
 */
#include "test/adopt/device.h"

/* The transport's registration. Its base part, with base and bound, is pinrail_registration_t here. */
typedef struct transport_reg {
  uint32_t lkey;
} transport_reg_t;

typedef struct resources {
  const char* cache_name;
  void* reg_data;
  size_t sizeof_reg;
  int (*register_mem)(void* reg_data, void* base, size_t size, uint32_t access, transport_reg_t* reg);
  int (*deregister_mem)(void* reg_data, transport_reg_t* reg);
} resources_t;

enum { OUT_OF_RESOURCE = -2 };

static int transport_register(void* reg_data, void* base, size_t size, uint32_t access, transport_reg_t* reg) {
  device_t* device = (device_t*)reg_data;
  (void)base;
  (void)size;
  (void)access;
  if (device->live == 2) return OUT_OF_RESOURCE; /* the device has two entries */
  device->live++;
  reg->lkey = ++device->registered;
  return 0;
}

static int transport_deregister(void* reg_data, transport_reg_t* reg) {
  (void)reg;
  ((device_t*)reg_data)->live--;
  return 0;
}

/* The two functions of the table call those of the resources. */
static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  const resources_t* resources = (const resources_t*)context;
  const int code = resources->register_mem(resources->reg_data, request->addr, request->length, request->rights,
                                           (transport_reg_t*)pinrail_registration_tail(reg));
  if (code == 0) return PINRAIL_SUCCESS;
  return code == OUT_OF_RESOURCE ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_ERROR;
}

static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  const resources_t* resources = (const resources_t*)context;
  (void)reason;
  return resources->deregister_mem(resources->reg_data, (transport_reg_t*)pinrail_registration_tail(reg)) == 0
             ? PINRAIL_SUCCESS
             : PINRAIL_ERR_ERROR;
}

static pinrail_registrar_t table_of(resources_t* resources) {
  pinrail_registrar_t table;
  memset(&table, 0, sizeof(table));
  table.size = sizeof(table);
  table.name = resources->cache_name;
  table.context = resources;
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = 4096;
  table.tail_size = resources->sizeof_reg;
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  return table;
}

static uint32_t lkey_of(pinrail_handle_t handle) {
  return ((const transport_reg_t*)pinrail_registration_tail(handle.reg))->lkey;
}

int main(void) {
  const size_t size = 1 << 20;
  const uint32_t access = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ; /* Open MPI's values */
  char* const base = (char*)0x10000000;
  device_t device = {0};
  resources_t resources = {"device0", &device, sizeof(transport_reg_t), transport_register, transport_deregister};
  const pinrail_registrar_t table = table_of(&resources);
  pinrail_mpool_t* const pool = device_pool(&table);
  pinrail_handle_t reg, again, other;

  EXPECT(pinrail_mpool_register(pool, base, size, access, 0, &reg) == PINRAIL_SUCCESS); /* rcache_register */
  EXPECT(lkey_of(reg) == 1);
  EXPECT((char*)reg.reg->base + reg.reg->length - 1 == base + size - 1);           /* bound */
  EXPECT(pinrail_mpool_find(pool, base, size, access, &again) == PINRAIL_SUCCESS); /* rcache_find */
  EXPECT(pinrail_handle_equal(reg, again));
  EXPECT(pinrail_mpool_deregister(again) == PINRAIL_SUCCESS); /* rcache_deregister */
  EXPECT(pinrail_mpool_deregister(reg) == PINRAIL_SUCCESS);
  EXPECT(pinrail_mpool_register(pool, base + size, size, access, 0, &reg) == PINRAIL_SUCCESS);
  /* The third one does not fit: the first is evicted, and register_mem is called again. */
  EXPECT(pinrail_mpool_register(pool, base + 2 * size, size, access, 0, &other) == PINRAIL_SUCCESS);
  EXPECT(device.live == 2 && lkey_of(other) == 3);
  EXPECT(pinrail_mpool_find(pool, base, size, access, &again) == PINRAIL_ERR_NOT_FOUND);
  /* rcache_invalidate_range: what is in use stays with its holder, and is found no more. */
  EXPECT(pinrail_mpool_invalidate_range(pool, base + size, size) == PINRAIL_SUCCESS);
  EXPECT(pinrail_mpool_find(pool, base + size, size, access, &again) == PINRAIL_ERR_NOT_FOUND);
  EXPECT(lkey_of(reg) == 2);
  EXPECT(pinrail_mpool_deregister(reg) == PINRAIL_SUCCESS);
  EXPECT(device.live == 1);
  EXPECT(pinrail_mpool_deregister(other) == PINRAIL_SUCCESS);
  EXPECT(pinrail_mpool_evict(pool) == PINRAIL_SUCCESS); /* rcache_evict */
  device_close(pool, &device);                          /* rcache_finalize */
  return 0;
}
