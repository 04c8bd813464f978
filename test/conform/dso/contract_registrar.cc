// SPDX-License-Identifier: BSD-3-Clause
// contract_registrar.cc - a registrar component that breaks its contract in the way that PINRAIL_TEST_BREAKS names:
// "size" (a table of another size), "param" (asks for a parameter that it does not declare), "status of open", "status
// of create" (one that does not exist), "functions" (no destroy), "throws in" open, close, create or destroy. Otherwise
// it works.
#include <pinrail/component.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool breaks(const char* what) {
  const char* const asked = getenv("PINRAIL_TEST_BREAKS");
  return asked != nullptr && strcmp(asked, what) == 0;
}

// A class of its own, so its code is gone once the component is unmapped.
struct Thrown {
  virtual ~Thrown() { words += " and destroyed"; }
  std::string words = "thrown";
};
void throw_if_asked(const char* what) {
  if (breaks(what)) throw Thrown();
}

pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t deregister_mem(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_status_t create(void*, void*, pinrail_registrar_t* registrar_out) {
  throw_if_asked("throws in create");
  if (breaks("status of create")) return static_cast<pinrail_status_t>(5);
  pinrail_registrar_t table{};
  table.size = breaks("size") ? 8 : sizeof(table);
  table.name = "contract";
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = 4096;
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  *registrar_out = table;
  return PINRAIL_SUCCESS;
}
void destroy(void*, pinrail_registrar_t*) { throw_if_asked("throws in destroy"); }
pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  throw_if_asked("throws in open");
  if (breaks("status of open")) return static_cast<pinrail_status_t>(5);
  *context_out = nullptr;
  pinrail_param_value_t depth;
  return breaks("param") ? host->param(host, "depth", &depth) : PINRAIL_SUCCESS;
}
void close(void*) { throw_if_asked("throws in close"); }

pinrail_registrar_ops_t ops = {sizeof(pinrail_registrar_ops_t), create, destroy};
__attribute__((constructor)) void leave_out_functions() {
  if (breaks("functions")) ops.destroy = nullptr;
}

}  // namespace

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {sizeof(pinrail_component_t),
                                                      PINRAIL_REGISTRAR_ABI,
                                                      1,
                                                      "registrar",
                                                      "contract",
                                                      "1.0.0",
                                                      "Breaks its contract on request.",
                                                      nullptr,
                                                      nullptr,
                                                      0,
                                                      nullptr,
                                                      open,
                                                      close,
                                                      &ops};
