/* SPDX-License-Identifier: BSD-3-Clause */
/* registrar_nothing.c - a registrar for a device that needs no registration.
 * cc -shared -fPIC $(pkg-config --cflags pinrail) registrar_nothing.c -o registrar_nothing.so */
#include <pinrail/component.h>

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  (void)context, (void)request;
  reg->lkey = reg->rkey = 1;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)context, (void)reg, (void)reason;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t create(void* component, void* native, pinrail_registrar_t* registrar_out) {
  (void)component, (void)native;
  *registrar_out = (pinrail_registrar_t){.size = sizeof(*registrar_out),
                                         .name = "nothing",
                                         .kinds = PINRAIL_KIND_HOST,
                                         .granularity = 4096,
                                         .register_mem = register_mem,
                                         .deregister_mem = deregister_mem};
  return PINRAIL_SUCCESS;
}
static void destroy(void* component, pinrail_registrar_t* registrar) { (void)component, (void)registrar; }
static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  *context_out = (void*)host;
  return PINRAIL_SUCCESS;
}
static void close_it(void* context) { (void)context; }

static const pinrail_registrar_ops_t ops = {sizeof(ops), create, destroy};
PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_REGISTRAR_ABI,
                                               .priority = 1,
                                               .framework = "registrar",
                                               .name = "nothing",
                                               .version = "1.0.0",
                                               .help = "Registers nothing.",
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
