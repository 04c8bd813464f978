/* SPDX-License-Identifier: BSD-3-Clause
 * registrar_@NAME@.c - a registrar of a device with a table of ranges, which this process keeps in the device's place.
 *
 * Replace enter() and leave() by the calls of your device. The rest stays: which requests are refused, and when the
 * device is full. It includes installed headers only, and links against nothing of Pinrail. */
#include <pinrail/component.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 4096 };

typedef struct component { /* one for each copy of Pinrail that opened this file */
  const pinrail_host_t* host;
  uint64_t entries; /* parameter: what the device has room for */
  pthread_mutex_t mutex;
  uint64_t used;     /* guarded by mutex */
  uint32_t next_key; /* guarded by mutex */
} component_t;

/* What this registrar keeps beside each registration; zeroed by Pinrail. */
typedef struct tail {
  uint32_t key;
} tail_t;

/* The device's part. OUT_OF_RESOURCE: it is full; Pinrail deregisters idle ranges and asks again (R7). */
static pinrail_status_t enter(component_t* component, uint32_t* key_out) {
  pthread_mutex_lock(&component->mutex);
  const int full = component->used == component->entries;
  if (!full) {
    ++component->used;
    *key_out = ++component->next_key;
  }
  pthread_mutex_unlock(&component->mutex);
  return full ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}
static void leave(component_t* component, uint32_t key) {
  (void)key;
  pthread_mutex_lock(&component->mutex);
  --component->used;
  pthread_mutex_unlock(&component->mutex);
}

/* Refuses what no device could register (R2). */
static pinrail_status_t check(const pinrail_register_request_t* request) {
  const uintptr_t addr = (uintptr_t)request->addr;
  if (((request->rights & ~(uint32_t)PINRAIL_RIGHTS_MASK) | (request->traits & ~(uint32_t)PINRAIL_TRAITS_MASK)) != 0)
    return PINRAIL_ERR_BAD_PARAM;
  if (request->kind == 0 || (request->kind & (request->kind - 1)) != 0) return PINRAIL_ERR_BAD_PARAM;
  if (request->kind != PINRAIL_KIND_HOST) return PINRAIL_ERR_NOT_SUPPORTED;
  if (request->length == 0 || addr % PAGE != 0 || request->length % PAGE != 0 || addr + request->length < addr)
    return PINRAIL_ERR_BAD_PARAM;
  return (request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0 ? PINRAIL_ERR_NOT_SUPPORTED : PINRAIL_SUCCESS;
}

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  uint32_t key = 0;
  pinrail_status_t status = check(request);
  if (status == PINRAIL_SUCCESS) status = enter(context, &key);
  /* A call that fails writes nothing (C4). */
  if (status != PINRAIL_SUCCESS) return status;
  ((tail_t*)(reg + 1))->key = key; /* the tail lies behind the registration */
  reg->lkey = reg->rkey = key;
  return PINRAIL_SUCCESS;
}

/* After INVALIDATED the address may be other memory: no page of it is touched (R12). */
static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)reason;
  leave(context, ((tail_t*)(reg + 1))->key);
  return PINRAIL_SUCCESS;
}

/* NOT_AVAILABLE without a message: this machine has no such device, and Pinrail tries the next registrar. */
static pinrail_status_t create(void* context, void* native, pinrail_registrar_t* registrar_out) {
  (void)native;
  *registrar_out = (pinrail_registrar_t){.size = sizeof(*registrar_out),
                                         .name = "@NAME@",
                                         .context = context,
                                         .thread_mode = PINRAIL_THREAD_CONCURRENT,
                                         .kinds = PINRAIL_KIND_HOST,
                                         .granularity = PAGE,
                                         .tail_size = sizeof(tail_t),
                                         .register_mem = register_mem,
                                         .deregister_mem = deregister_mem};
  return PINRAIL_SUCCESS;
}
static void destroy(void* context, pinrail_registrar_t* registrar) { (void)context, (void)registrar; }

static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t entries;
  const pinrail_status_t status = host->param(host, "entries", &entries);
  if (status != PINRAIL_SUCCESS) return status;
  component_t* component = calloc(1, sizeof(*component));
  if (component == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  component->host = host;
  component->entries = entries.u;
  pthread_mutex_init(&component->mutex, NULL);
  if (entries.u < 64) {
    char text[32];
    snprintf(text, sizeof(text), "%u", (unsigned)entries.u);
    host->help(host, "few entries", &(pinrail_help_arg_t){"entries", text}, 1);
  }
  *context_out = component;
  return PINRAIL_SUCCESS;
}
static void close_it(void* context) {
  pthread_mutex_destroy(&((component_t*)context)->mutex);
  free(context);
}

static const char catalogue[] =
    "[few entries]\n"
    "What happened  registrar_@NAME@_entries is {entries}.\n"
    "What follows   a program that uses more buffers at the same time registers them again and again.\n"
    "What to do     raise it to at least 64.\n";

static const pinrail_param_t params[] = {
    {.size = sizeof(pinrail_param_t),
     .name = "entries",
     .fallback = "1048576",
     .help = "Ranges that the device has room for. When they are used up, idle ones are deregistered.",
     .type = PINRAIL_TYPE_UNSIGNED,
     .scope = PINRAIL_SCOPE_READONLY,
     .level = 5,
     .minimum = 1,
     .maximum = INT64_C(1) << 32}};

static const pinrail_registrar_ops_t ops = {.size = sizeof(ops), .create = create, .destroy = destroy};

PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {
    .size = sizeof(pinrail_component_t),
    .abi = PINRAIL_REGISTRAR_ABI,
    .priority = 1, /* below those of Pinrail; the highest that works is taken */
    .framework = "registrar",
    .name = "@NAME@",
    .version = "1.0.0",
    .help = "A device with a table of ranges.",
    .help_catalogue = catalogue,
    .params = params,
    .param_count = 1,
    .open = open_it,
    .close = close_it,
    .ops = &ops};
