/* SPDX-License-Identifier: BSD-3-Clause
 * host.c - a runtime with Pinrail inside: one pool over a device that only counts. Its calls begin with the name HOST.
 */
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>
#include <string.h>

#define JOIN(a, b) a##b
#define NAME_OF(host, name) JOIN(host, name)
#define CALL(name) NAME_OF(HOST, name)
#define EXPORTED __attribute__((visibility("default")))

static int registered;
static pinrail_mpool_t* pool;

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  (void)context, (void)request;
  reg->lkey = (uint32_t)++registered;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)context, (void)reg, (void)reason;
  return PINRAIL_SUCCESS;
}

/* 0 or a status. */
EXPORTED int CALL(_start)(void) {
  static const pinrail_registrar_t device = {.size = sizeof(device),
                                             .name = "counting",
                                             .kinds = PINRAIL_KIND_HOST,
                                             .granularity = 4096,
                                             .register_mem = register_mem,
                                             .deregister_mem = deregister_mem,
                                             .pins_nothing = 1};
  const pinrail_registrar_choice_t choice = {.table = &device};
  const pinrail_status_t status = pinrail_init(NULL);
  return status != PINRAIL_SUCCESS ? status : pinrail_mpool_create("grdma", &choice, NULL, NULL, &pool);
}

/* How many registrations the device has seen after this one; below 0: a status. */
EXPORTED int CALL(_use)(void* addr, size_t length) {
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(pool, addr, length, 0, 0, &handle);
  if (status == PINRAIL_SUCCESS) status = pinrail_mpool_deregister(handle);
  return status == PINRAIL_SUCCESS ? registered : status;
}

EXPORTED const char* CALL(_parameter)(const char* name) {
  pinrail_param_info_t info = {.size = sizeof(info)};
  return pinrail_param_find(name, &info) == PINRAIL_SUCCESS ? info.value : "?";
}

EXPORTED const char* CALL(_component_path)(const char* framework, const char* name) {
  pinrail_component_info_t info = {.size = sizeof(info)};
  for (size_t i = 0; pinrail_component_at(i, &info) == PINRAIL_SUCCESS; ++i) {
    if (strcmp(info.framework, framework) == 0 && strcmp(info.name, name) == 0) return info.path;
  }
  return "?";
}

EXPORTED int CALL(_stop)(void) {
  const pinrail_status_t status = pinrail_mpool_destroy(pool, 0);
  return status != PINRAIL_SUCCESS ? status : pinrail_finalize();
}
