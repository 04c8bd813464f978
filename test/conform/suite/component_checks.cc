// SPDX-License-Identifier: BSD-3-Clause
// What every component must do, whatever its framework: its file, its descriptor, its parameters, open and close.
#include <dlfcn.h>

#include <exception>

#include "base/loader/loader.h"
#include "base/param/param.h"
#include "framework/api/api.h"
#include "test/conform/suite/component.h"
#include "test/conform/suite/registrar.h"
#include "test/fake/fake_host.h"
#include "test/support/memory.h"
#include "test/support/process.h"

namespace pinrail::conform {
namespace {

loader::Framework framework_named(const std::string& name) {
  if (name == "mpool") return {"mpool", PINRAIL_MPOOL_ABI, sizeof(pinrail_mpool_ops_t)};
  if (name == "rcache") return {"rcache", PINRAIL_RCACHE_ABI, sizeof(pinrail_rcache_ops_t)};
  if (name == "registrar") return {"registrar", PINRAIL_REGISTRAR_ABI, sizeof(pinrail_registrar_ops_t)};
  return {"monitor", PINRAIL_MONITOR_ABI, sizeof(pinrail_monitor_ops_t)};
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// An opened component, which its destructor closes.
class Opened {
 public:
  Opened(const pinrail_component_t& component, Verdict* verdict)
      : component_(component), host_(component, api::make_services()) {
    context_ = &untouched_;
    try {
      status_ = component.open(host_.table(), &context_);
    } catch (const std::exception&) {
      verdict->breaks("C4", "open() throws");
    }
    if (!is_status(status_)) verdict->breaks("C5", "open() returns a code that does not exist");
    if (status_ != PINRAIL_SUCCESS && context_ != &untouched_) {
      verdict->breaks("C4", "open() fails and writes context_out all the same");
    }
  }
  ~Opened() { close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  void close() {
    if (status_ == PINRAIL_SUCCESS && component_.close != nullptr) component_.close(context_);
    status_ = PINRAIL_ERR_NOT_AVAILABLE;
    host_.end();
  }
  pinrail_status_t status() const { return status_; }
  void* context() const { return context_; }
  const fake::FakeHost& host() const { return host_; }

 private:
  const pinrail_component_t& component_;
  fake::FakeHost host_;
  char untouched_ = 0;
  void* context_ = nullptr;
  pinrail_status_t status_ = PINRAIL_ERR_NOT_AVAILABLE;
};

void the_file_is_a_component_of_this_version(const File& file, Verdict* verdict) {
  const pinrail_component_t* component = load(file, verdict);
  if (component == nullptr) return;
  const std::string name = file.framework + "_" + loader::text_of(component->name) + ".so";
  KEEPS("C1", base_name(file.path) == name, "the file must be named " + name);
  KEEPS("C1", component->help != nullptr && *component->help != '\0', "the descriptor has no line of help");
  KEEPS("C1", component->version != nullptr, "the descriptor has no version");
  KEEPS("C1", component->close != nullptr, "the descriptor has no close()");
}

void its_parameters_are_declared_and_their_defaults_are_valid(const File& file, Verdict* verdict) {
  const pinrail_component_t* component = load(file, verdict);
  if (component == nullptr) return;
  for (size_t i = 0; i < component->param_count; ++i) {
    const pinrail_param_t& param = component->params[i];
    verdict->at = param.name == nullptr ? "parameter " + std::to_string(i) : param.name;
    KEEPS("C1", param.size == sizeof(pinrail_param_t), "a parameter's size is not sizeof(pinrail_param_t)");
    KEEPS("C7", param.name != nullptr && param.fallback != nullptr && param.help != nullptr && *param.help != '\0',
          "a parameter has no name, no default or no help");
    KEEPS("C7", param.level >= 1 && param.level <= 9, "a parameter's level is not 1 to 9");
    pinrail_param_value_t value{};
    std::string why;
    KEEPS("C7", param::parse(param, param.fallback, &value, &why).ok(), "a default is not valid: " + why);
  }
  verdict->at.clear();
  const Opened opened(*component, verdict);
  const auto undeclared = opened.host().undeclared();
  KEEPS("C7", undeclared.empty(), "open() asks for a parameter that is not declared: " + undeclared.front());
  const auto missing = opened.host().missing_topics();
  KEEPS("C1", missing.empty(), "its help catalogue lacks the topic that it shows: " + missing.front());
}

// Calls what makes a component use its host table and its globals.
void exercise(const pinrail_component_t& component, void* context) {
  const std::string framework = loader::text_of(component.framework);
  if (framework == "registrar") {
    const auto& ops = *static_cast<const pinrail_registrar_ops_t*>(component.ops);
    pinrail_registrar_t registrar{};
    registrar.size = sizeof(registrar);
    if (ops.create(context, nullptr, &registrar) != PINRAIL_SUCCESS) return;
    const test::Mapping mapping(4 * test::page_size());
    test::Registration(registrar).make(mapping.base(), test::page_size(), 0).ignore();  // and it is given back
    ops.destroy(context, &registrar);
  } else if (framework == "rcache") {
    const auto& ops = *static_cast<const pinrail_rcache_ops_t*>(component.ops);
    void* module = nullptr;
    if (ops.create(context, 0, &module) != PINRAIL_SUCCESS) return;
    if (ops.check != nullptr) static_cast<void>(ops.check(module));
    ops.destroy(module);
  }
}

void two_copies_of_the_library_can_load_it(const File& file, Verdict* verdict) {
  const pinrail_component_t* component = load(file, verdict);
  if (component == nullptr) return;
  Opened first(*component, verdict);
  APPLIES_IF(first.status() == PINRAIL_SUCCESS, "it cannot be opened here");
  Opened second(*component, verdict);
  KEEPS("C2", second.status() == PINRAIL_SUCCESS, "a second copy of the library cannot open it while the first has it");
  second.close();
  exercise(*component, first.context());
  first.close();
  KEEPS("C2", !second.host().used_after_end(),
        "it keeps the host table of one copy in a global variable and uses it for the other");
}

void open_and_close_leave_nothing_behind(const File& file, Verdict* verdict) {
  const pinrail_component_t* component = load(file, verdict);
  if (component == nullptr) return;
  pinrail_status_t status;
  {
    const Opened warm(*component, verdict);
    status = warm.status();
  }
  KEEPS("C3", status == PINRAIL_SUCCESS || status == PINRAIL_ERR_NOT_AVAILABLE,
        std::string("open() returns ") + pinrail_status_name(status) + ", with every parameter at its default");
  constexpr size_t kTimes = 20, kTolerated = 8;  // bytes of each; what is kept for the next open() grows less
  const auto open_and_close = [&] {
    for (size_t i = 0; i < kTimes; ++i) {
      const Opened opened(*component, verdict);
    }
  };
  const size_t descriptors = test::open_descriptors();
  open_and_close();
  const size_t heap = test::heap_bytes();
  open_and_close();
  KEEPS("R10", test::open_descriptors() == descriptors, "close() leaves descriptors open");
  KEEPS("R10", test::heap_bytes() < heap + kTimes * kTolerated, "close() leaves memory of each open() allocated");
}

}  // namespace

const pinrail_component_t* load(const File& file, Verdict* verdict) {
  std::string why;
  // PERM: root loads it from no folder that others write, but the file may be right.
  const Status checked = loader::check_file(file.path, trust::Named::by_user, &why);
  if (!checked.ok() && !checked.is(PINRAIL_ERR_PERM)) {
    verdict->breaks("C3", "the file " + why);
    return nullptr;
  }
  void* const handle = dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string reason = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    verdict->breaks(reason.find("undefined symbol: pinrail_") != std::string::npos ? "C2" : "C3", reason);
    return nullptr;
  }
  const pinrail_component_t* component = nullptr;
  Status status = loader::find_descriptor(handle, &component, &why);
  if (status.ok()) {
    const std::string name =
        component->size < offsetof(pinrail_component_t, version) ? "" : loader::text_of(component->name);
    status = loader::check_descriptor(*component, framework_named(file.framework), name, &why);
  }
  if (status.ok()) return component;
  verdict->breaks("C1", "it " + why);
  return nullptr;
}

const std::vector<FileCheck>& component_checks() {
#define CHECK_OF(rule, function) \
  { rule, #function, function }
  static const auto* const checks = new std::vector<FileCheck>{
      CHECK_OF("C1", the_file_is_a_component_of_this_version),
      CHECK_OF("C7", its_parameters_are_declared_and_their_defaults_are_valid),
      CHECK_OF("C2", two_copies_of_the_library_can_load_it), CHECK_OF("R10", open_and_close_leave_nothing_behind)};
#undef CHECK_OF
  return *checks;
}

}  // namespace pinrail::conform
