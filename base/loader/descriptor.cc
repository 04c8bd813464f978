// SPDX-License-Identifier: BSD-3-Clause
// Checks component descriptors. Start-up context.
#include "base/loader/loader_impl.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace pinrail::loader {
namespace {

// The part that descriptors of all versions have. Only this may be read before the size is known to be ours.
constexpr size_t kFixedPart = offsetof(pinrail_component_t, version);

std::string both(const char* what, uint64_t its, uint64_t ours) {
  return std::string(what) + " " + std::to_string(its) + " (this library: " + std::to_string(ours) + ")";
}

void append(std::string* differences, const std::string& difference) {
  if (!differences->empty()) *differences += ", ";
  *differences += difference;
}

// Returns the differences in ABI number and sizes between a descriptor and this library, or "".
std::string differences_of(const pinrail_component_t& descriptor, const Framework& framework) {
  std::string differences;
  if (descriptor.abi != framework.abi) {
    append(&differences, std::string(framework.name) + both(" ABI", descriptor.abi, framework.abi));
  }
  if (descriptor.size != sizeof(pinrail_component_t)) {
    append(&differences, both("descriptor size", descriptor.size, sizeof(pinrail_component_t)));
    return differences;
  }
  if (descriptor.ops == nullptr) return differences;
  size_t ops_size = 0;
  std::memcpy(&ops_size, descriptor.ops, sizeof(ops_size));
  // A larger table is a newer one with more at its end: with equal ABI numbers its known part is valid.
  if (ops_size < framework.ops_size) append(&differences, both("size of the table", ops_size, framework.ops_size));
  return differences;
}

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

// Returns the size of the object that this symbol names; 0: there is none. Where the C library does not tell (musl),
// the descriptor's own size has to do.
uint64_t size_of(const void* symbol) {
#ifdef __GLIBC__
  Dl_info info{};
  void* extra = nullptr;
  if (dladdr1(symbol, &info, &extra, RTLD_DL_SYMENT) == 0 || extra == nullptr) return 0;
  return static_cast<const ElfW(Sym)*>(extra)->st_size;
#else
  return static_cast<const pinrail_component_t*>(symbol)->size;
#endif
}

}  // namespace

std::string framework_of(const pinrail_component_t& descriptor) {
  return {descriptor.framework, strnlen(descriptor.framework, sizeof(descriptor.framework))};
}

std::string name_of(const pinrail_component_t& descriptor) {
  return {descriptor.name, strnlen(descriptor.name, sizeof(descriptor.name))};
}

Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out) {
  const std::string its_framework = framework_of(descriptor);
  if (its_framework != framework.name) {
    *why_out = "says that it is of framework " + quoted(its_framework) + ", not " + quoted(framework.name);
    return PINRAIL_ERR_ERROR;
  }
  const std::string differences = differences_of(descriptor, framework);
  if (!differences.empty()) {
    *why_out = "was built against another Pinrail: " + differences;
    return PINRAIL_ERR_VERSION;
  }
  const std::string its_name = name_of(descriptor);
  if (its_name != name) {
    *why_out = "says that its name is " + quoted(its_name) + ", its file name says " + quoted(name);
    return PINRAIL_ERR_ERROR;
  }
  if (descriptor.ops == nullptr || descriptor.open == nullptr) {
    *why_out = descriptor.ops == nullptr ? "has no table of functions" : "has no open()";
    return PINRAIL_ERR_ERROR;
  }
  if (framework.is_complete != nullptr && !framework.is_complete(descriptor.ops)) {
    *why_out = "lacks a function that is not optional (component.h)";
    return PINRAIL_ERR_ERROR;
  }
  if (descriptor.params == nullptr && descriptor.param_count != 0) {
    *why_out = "counts parameters but has none";
    return PINRAIL_ERR_ERROR;
  }
  return success();
}

Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out) {
  void* const symbol = dlsym(handle, "pinrail_component");
  if (symbol == nullptr) {
    *why_out = "exports no symbol pinrail_component";
    return PINRAIL_ERR_ERROR;
  }
  const auto* descriptor = static_cast<const pinrail_component_t*>(symbol);
  const uint64_t bytes = size_of(symbol);
  if (bytes == 0) {
    *why_out = "exports a symbol pinrail_component that lies nowhere";
    return PINRAIL_ERR_ERROR;
  }
  if (bytes < kFixedPart || bytes < descriptor->size) {
    *why_out = "exports a symbol pinrail_component of " + std::to_string(bytes) +
               " bytes (this library: " + std::to_string(sizeof(pinrail_component_t)) + ")";
    return PINRAIL_ERR_VERSION;
  }
  *descriptor_out = descriptor;
  return success();
}

}  // namespace pinrail::loader
