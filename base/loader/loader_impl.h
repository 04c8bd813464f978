// SPDX-License-Identifier: BSD-3-Clause
// loader_impl.h - the state of a loader: frameworks, and the components that were found for each; and whether this
// library can call a component.
//
// Context  start-up; one thread at a time.
#ifndef PINRAIL_BASE_LOADER_LOADER_IMPL_H
#define PINRAIL_BASE_LOADER_LOADER_IMPL_H

#include <pinrail/component_mpool.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::loader {

// The object to which a host table's `self` points.
struct HostRecord {
  const void* services_self = nullptr;
  param::Registry* params = nullptr;
  std::string framework, name;
  const char* catalogue = "";
  const std::atomic<int64_t>* verbosity = nullptr;
};

// A component that was found. Its address does not change, because its host table points to its record.
struct Component {
  Listed listed;
  void* handle = nullptr;                           // of dlopen, or NULL if it is built in
  const pinrail_component_t* descriptor = nullptr;  // NULL: not loaded, or refused
  bool opened = false;
  void* context = nullptr;
  pinrail_host_t host{};
  HostRecord record;
};

// A framework, and the user's selection for it.
struct Chosen {
  Framework framework{};
  Selection selection;
};

struct Loader::Impl {
  param::Registry& params;
  const pinrail_host_t services;
  const pinrail_component_t* const* built_in;

  std::vector<Chosen> frameworks;
  std::vector<std::unique_ptr<Component>> components;  // in the order in which they were found
  std::vector<Component*> mapped;                      // in the order of dlopen
  std::vector<Component*> open_order;
  std::vector<Listed> list;

  void log(int level, const std::string& line) const;
  const Chosen* chosen(std::string_view framework) const;
  Component* component(std::string_view framework, std::string_view name) const;

  Status declare_own(const std::vector<Framework>& wanted);
  Status choose(const Framework& framework);
  void find_built_in();
  void find_in_folders();
  void find_in_folder(const std::string& folder);
  void add_file(const std::string& folder, const std::string& file);
  bool add(const Chosen& framework, const std::string& name, const std::string& path,
           const pinrail_component_t* descriptor);

  Status load_all();
  Status load(Component* component);
  Status map(Component* component);
  Status declare_params(Component* component);
  void refuse(Component* component, Status status, const std::string& why);

  void fill_host(Component* component);
  Status open_one(Component* component);
  Opened opened_of(const Component& component) const;
  Status require_named(const Chosen& framework);
  std::vector<std::string_view> names_of(std::string_view framework) const;
  Status report_missing(const Chosen& framework, const std::string& name);
  Status report_unusable(const Component& component);
  void close_one(Component* component);
  void write_list();
};

// Return the names in a descriptor, which need not be terminated.
std::string framework_of(const pinrail_component_t& descriptor);
std::string name_of(const pinrail_component_t& descriptor);

// Compares the part of a descriptor that never moves, and the size of its table. VERSION: it was built against another
// interface. ERROR: it has another framework or name, or lacks something. In both cases *why_out gets one line with
// both sides of each difference.
Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out);

// Finds the descriptor of a mapped shared object. ERROR: it exports none. VERSION: the exported object is too small.
Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out);

}  // namespace pinrail::loader

#endif
