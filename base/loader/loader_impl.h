// SPDX-License-Identifier: BSD-3-Clause
// loader_impl.h - the state of a loader: frameworks, and the components that were found for each; and whether this
// library can call a component.
//
// Context  start-up; one thread at a time.
#ifndef PINRAIL_BASE_LOADER_LOADER_IMPL_H
#define PINRAIL_BASE_LOADER_LOADER_IMPL_H

#include <pinrail/component_mpool.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::loader {

// A framework, the user's selection for it, and its opened components, the highest priority first.
struct Chosen {
  Framework framework{};
  Selection selection;
  std::vector<Opened> opened;
};

// A component that was found. Its address does not change, because its host table points to it.
struct Component {
  Chosen* chosen;  // its framework
  Listed listed;
  void* handle = nullptr;                           // of dlopen, or NULL if it is built in
  const pinrail_component_t* descriptor = nullptr;  // NULL: not loaded, or refused
  bool opened = false;
  pinrail_host_t host{};
  param::Registry* params = nullptr;
  const std::atomic<int64_t>* verbosity = nullptr;

  bool is_requested() const { return chosen->selection.requests(listed.name); }
};

struct Loader::Impl {
  param::Registry& params;
  const pinrail_host_t services;
  const pinrail_component_t* const* built_in;

  std::vector<Chosen> frameworks;
  std::vector<std::unique_ptr<Component>> components;  // sorted by framework, in the order of `frameworks`, and name
  std::vector<const Listed*> list;                     // in the same order
  const std::vector<Opened> none;                      // of a framework that discover() has not named

  void log(int level, const std::string& line) const;
  const Chosen* chosen(std::string_view framework) const;
  Component* component(std::string_view framework, std::string_view name) const;

  Status declare_own(const std::vector<Framework>& wanted);
  Status choose(const Framework& framework);
  void find_built_in();
  void find_in_folders();
  void find_in_folder(const std::string& folder);
  void add_file(const std::string& folder, const std::string& file);
  void add(Chosen* chosen, const std::string& name, const std::string& path, const pinrail_component_t* descriptor);
  void sort_components();

  Status load_all();
  Status load(Component* component);
  Status map(Component* component);
  Status declare_params(Component* component);
  void refuse(Component* component, Status status, const std::string& why);

  void fill_host(Component* component);
  void open_one(Component* component);
  Status require_named(const Chosen& chosen);
  std::vector<std::string_view> names_of(std::string_view framework) const;
  Status report_missing(const Chosen& chosen, const std::string& name);
  Status report_unusable(const Component& component);
};

// A name in a descriptor, which need not be terminated.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

// Compares the part of a descriptor that never moves, and the size of its table. VERSION: it was built against another
// interface. ERROR: it has another framework or name, or lacks something. In both cases *why_out gets one line with
// both sides of each difference.
Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out);

// Finds the descriptor of a mapped shared object. ERROR: it exports none. VERSION: the exported object is too small.
Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out);

}  // namespace pinrail::loader

#endif
