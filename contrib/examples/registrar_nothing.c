/* SPDX-License-Identifier: BSD-3-Clause */
/* registrar_nothing.c - a registrar for a device that needs no registration.
 * cc -shared -fPIC $(pkg-config --cflags pinrail) registrar_nothing.c -o registrar_nothing.so */
#include <pinrail/component.h>

/* What no registrar takes (rule R2 of share/doc/pinrail/RULES). pinrail_conform checks this, and more. */
static pinrail_status_t check(const pinrail_register_request_t* r) {
  const uint32_t unknown = (r->rights & ~PINRAIL_RIGHTS_MASK) | (r->traits & ~PINRAIL_TRAITS_MASK);
  const uintptr_t addr = (uintptr_t)r->addr;
  if (unknown != 0 || r->kind == 0 || (r->kind & (r->kind - 1)) != 0) return PINRAIL_ERR_BAD_PARAM;
  if (r->kind != PINRAIL_KIND_HOST || (r->traits & PINRAIL_TRAIT_ON_DEMAND) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (r->length == 0 || (addr | r->length) % 4096 != 0 || addr + r->length < addr) return PINRAIL_ERR_BAD_PARAM;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  (void)context, (void)reg; /* its keys stay 0: this device has none */
  return check(request);
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
