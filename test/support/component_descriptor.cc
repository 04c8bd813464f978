// SPDX-License-Identifier: BSD-3-Clause
#include "test/support/component_descriptor.h"
#include "config.h"

#include <dlfcn.h>

#include <cstring>

extern "C" const pinrail_component_t* const pinrail_static_components[];

namespace pinrail::test {

const pinrail_component_t* component_under_test(const char* framework, const char* name, std::string* why_out) {
  for (const auto* linked = pinrail_static_components; *linked != nullptr; ++linked) {
    if (std::strcmp((*linked)->framework, framework) == 0 && std::strcmp((*linked)->name, name) == 0) return *linked;
  }
  const std::string path = std::string(PINRAIL_TEST_BUILD "/components/.libs") + "/" + framework + "_" + name + ".so";
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* symbol = object == nullptr ? nullptr : dlsym(object, "pinrail_component");
  if (symbol == nullptr) *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
  return static_cast<const pinrail_component_t*>(symbol);
}

}  // namespace pinrail::test
