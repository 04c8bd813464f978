/* SPDX-License-Identifier: BSD-3-Clause
 * contract_registrar.c - a registrar component that breaks its contract in the way that PINRAIL_TEST_BREAKS names:
 * "size" (a table of another size), "param" (asks for a parameter that it does not declare), "status of open", "status
 * of create" (one that does not exist), "functions" (no destroy). Otherwise it works. */
#include <pinrail/component.h>
#include <stdlib.h>
#include <string.h>

static int breaks(const char* what) {
  const char* asked = getenv("PINRAIL_TEST_BREAKS");
  return asked != NULL && strcmp(asked, what) == 0;
}

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  (void)context, (void)request, (void)reg;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)context, (void)reg, (void)reason;
  return PINRAIL_SUCCESS;
}
static pinrail_status_t create(void* component, void* native, pinrail_registrar_t* registrar_out) {
  (void)component, (void)native;
  if (breaks("status of create")) return (pinrail_status_t)5;
  *registrar_out = (pinrail_registrar_t){.size = breaks("size") ? 8 : sizeof(*registrar_out),
                                         .name = "contract",
                                         .kinds = PINRAIL_KIND_HOST,
                                         .granularity = 4096,
                                         .register_mem = register_mem,
                                         .deregister_mem = deregister_mem};
  return PINRAIL_SUCCESS;
}
static void destroy(void* component, pinrail_registrar_t* registrar) { (void)component, (void)registrar; }
static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t depth;
  if (breaks("status of open")) return (pinrail_status_t)5;
  *context_out = (void*)host;
  return breaks("param") ? host->param(host, "depth", &depth) : PINRAIL_SUCCESS;
}
static void close_it(void* context) { (void)context; }

static pinrail_registrar_ops_t ops = {sizeof(ops), create, destroy};
__attribute__((constructor)) static void leave_out_functions(void) {
  if (breaks("functions")) ops.destroy = NULL;
}
PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_REGISTRAR_ABI,
                                               .priority = 1,
                                               .framework = "registrar",
                                               .name = "contract",
                                               .version = "1.0.0",
                                               .help = "Breaks its contract on request.",
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
