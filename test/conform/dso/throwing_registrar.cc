// SPDX-License-Identifier: BSD-3-Clause
// throwing_registrar.cc - a registrar component that throws in the function that PINRAIL_TEST_BREAKS names: "open",
// "close", "create" or "destroy". The exception's class is its own, so its code is gone once the component is unmapped.
#include <pinrail/component.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Thrown {
  virtual ~Thrown() { words += " and destroyed"; }
  std::string words = "thrown";
};

void throw_if_asked(const char* in) {
  const char* const asked = getenv("PINRAIL_TEST_BREAKS");
  if (asked != nullptr && strcmp(asked, in) == 0) throw Thrown();
}

pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t deregister_mem(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_status_t create(void*, void*, pinrail_registrar_t* registrar_out) {
  throw_if_asked("create");
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "thrower";
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = 4096;
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  *registrar_out = table;
  return PINRAIL_SUCCESS;
}
void destroy(void*, pinrail_registrar_t*) { throw_if_asked("destroy"); }
pinrail_status_t open(const pinrail_host_t*, void** context_out) {
  throw_if_asked("open");
  *context_out = nullptr;
  return PINRAIL_SUCCESS;
}
void close(void*) { throw_if_asked("close"); }

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

}  // namespace

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {sizeof(pinrail_component_t),
                                                      PINRAIL_REGISTRAR_ABI,
                                                      1,
                                                      "registrar",
                                                      "thrower",
                                                      "1.0.0",
                                                      "Throws on request.",
                                                      nullptr,
                                                      nullptr,
                                                      0,
                                                      nullptr,
                                                      open,
                                                      close,
                                                      &kOps};
