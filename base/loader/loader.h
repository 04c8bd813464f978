// SPDX-License-Identifier: BSD-3-Clause
// loader.h - finds components (built in, or shared objects in folders), checks them, and opens the selected ones.
//
// Owns     the dlopen handles, the components' host tables and contexts. The registry and the services must outlive the
//          loader. The registry has copies of all that descriptors declare, so it may outlive the loader as well.
// Threads  One at a time. opened() and listed() may run together between the last open() and close_all().
// Context  start-up. Functions may throw bad_alloc.
//
// No function of a component runs before its descriptor's size, framework, ABI and table size were compared. dlopen
// maps a file only after its ELF header and segment extents were checked against its length. A component that cannot be
// loaded is skipped with one message; if it was asked for by name, that is an error. A component that the selection
// leaves out is not mapped. Of several components with one framework and name, the built-in one is taken, otherwise
// that of the earliest folder.
//
// loader/L6  Code in which hooks may run is never unmapped: components of framework "monitor" stay once they were
//     opened (E7).
#ifndef PINRAIL_BASE_LOADER_LOADER_H
#define PINRAIL_BASE_LOADER_LOADER_H

#include <pinrail/component_mpool.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/compiler.h"
#include "base/core/files.h"
#include "base/core/status.h"
#include "base/param/param.h"

// The components that are linked into this library; NULL ends the table. The build generates it.
extern "C" const pinrail_component_t* const pinrail_static_components[];

namespace pinrail::loader {

// The interface of one framework, as this library was compiled with it.
struct Framework {
  const char* name;
  uint32_t abi;
  size_t ops_size;
  // Whether the table has all functions that are not optional; NULL: that is found out where the table is used.
  bool (*is_complete)(const void* ops) = nullptr;
};

// An opened component.
struct Opened {
  const pinrail_component_t* descriptor;
  void* context;
  const pinrail_host_t* host;
  bool named;  // the selection list asks for it by name
};

// The facts about a component that was found, opened or not. For listings.
struct Listed {
  std::string framework, name, version, help;
  std::string path;  // "built in", or the path of the file
  int priority = 0;
  Status status = PINRAIL_SUCCESS;  // of the checks and of open()
  std::string reason;               // why it was not opened; empty if it was
  bool selected = false;            // true if the selection permits it
};

// A selection list: "grdma,rgpusm", "^rgpusm", "none" or "" (all components). "^" must come first and excludes the
// whole list. White space around names, empty names and repeated names are ignored.
struct Selection {
  bool exclude = false;
  std::vector<std::string> names;
  // BAD_PARAM and a reason: "^" is in the middle or alone, or a piece cannot be a component's name.
  static Status parse(std::string_view text, Selection* selection_out, std::string* why_out);
  bool allows(std::string_view name, int priority) const;  // a component with priority < 0 must be named
  bool requests(std::string_view name) const;
  bool is_none() const;
};

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

class Loader : NonCopyable {
 public:
  // services: the part of the host table that the loader does not fill (registrar, rcache, monitor and registration
  // services). It is copied for each component.
  Loader(param::Registry& params, const pinrail_host_t& services,
         const pinrail_component_t* const* built_in = pinrail_static_components)
      : params_(params), services_(services), built_in_(built_in) {}
  ~Loader() { close_all(); }

  // Finds the components of all frameworks and declares their parameters (also selection lists and verbosities) and
  // mca_base_component_path. Call it once. BAD_PARAM: a parameter's value is malformed.
  Status discover(const std::vector<Framework>& frameworks);

  // Reports the names in "^" lists that belong neither to a component that was found nor to one of `shipped`
  // ("framework_component"): a misspelled name excludes nothing.
  void check_exclusions(const std::vector<std::string>& shipped);

  // Opens the selected components of one framework, the highest priority first. If a component that was asked for by
  // name cannot be opened: NOT_FOUND, or the status of its checks or of its open(); the others are open nevertheless.
  Status open(std::string_view framework);

  // Returns the opened components, the highest priority first; equal priorities by name. Allocates nothing.
  const std::vector<Opened>& opened(std::string_view framework) const;

  // Closes the opened components, the last framework of discover() first, and unmaps them (except loader/L6).
  // Descriptors and host tables are invalid after that.
  void close_all();

  // Sorted by framework, in the order of discover(), then by name. Does not change after the last open().
  const std::vector<const Listed*>& listed() const { return list_; }

 private:
  void log(int level, const std::string& line) const;
  const Chosen* chosen(std::string_view framework) const;
  Component* component(std::string_view framework, std::string_view name) const;

  Status declare_own(const std::vector<Framework>& wanted);
  Status choose(const Framework& framework);
  trust::Named path_named() const;
  void find_built_in();
  void find_in_folder(const std::string& folder);
  void add_file(const std::string& folder, const std::string& file);
  void add(Chosen* chosen, const std::string& name, const std::string& path, const pinrail_component_t* descriptor);

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

  param::Registry& params_;
  const pinrail_host_t services_;
  const pinrail_component_t* const* built_in_;

  std::vector<Chosen> frameworks_;
  std::vector<std::unique_ptr<Component>> components_;  // sorted by framework, in the order of `frameworks_`, and name
  std::vector<const Listed*> list_;                     // in the same order
  const std::vector<Opened> none_;                      // of a framework that discover() has not named
};

// Records the last line that a component logs on this thread while an object of this class exists, also if the line is
// not shown. If the component cannot be used, that line is the reason. Objects may be nested; start-up or API context.
class LastLogLine : NonCopyable {
 public:
  LastLogLine();
  ~LastLogLine();
  // Returns for example "NOT_AVAILABLE (no RDMA device: /sys/class/infiniband is missing or empty)".
  std::string with(Status status) const;

 private:
  friend void record_last_log_line(const char* line);
  std::string line_;
  LastLogLine* const outer_;
};

// Checks a component's file. PERM and a reason: other users may change it (files/X2). ERROR and a reason: it is not a
// complete ELF object of this machine.
Status check_file(const std::string& path, trust::Named named, std::string* why_out);

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

// Returns the default search path: a folder beside the shared object that contains this function (installed:
// <libdir>/pinrail; if that object is in a folder .libs of a build tree: components/.libs beside it), then the
// configured folder, with : between them.
std::string default_component_path();

// Calls functions of components that begin or end something, so that no exception and no unknown
// status gets past them (C4, C5).
//
// Threads  all functions may run together. Start-up or API context; the caller holds no lock.

// Records the line for LastLogLine, as if the component had logged it. May throw bad_alloc.
void record_last_log_line(const char* line);

// Reports that the component's function threw an exception. Without memory the message is dropped.
void report_thrown(const char* framework, const char* name, const char* function);

// As answer_of_foreign(); of an ERROR that the function has not returned, LastLogLine has the reason. The exception
// ends here, because its code may be unmapped soon. A forced unwinding of the thread is passed on.
template <typename Function>
Status answer_of_component(Function&& function) {
  const char* fault;
  const Status answer = answer_of_foreign(function, &fault);
  if (fault != nullptr && answer.is(PINRAIL_ERR_ERROR)) record_last_log_line(fault);
  return answer;
}

// Calls a function that ends something. What it throws is reported and ends here. Allocates nothing: it also runs in
// destructors, and where memory is exhausted.
template <typename Function>
void end_by_component(const char* framework, const char* name, const char* function_name, Function&& function) {
  const Status ended = guarded([&] { function(); });
  if (!ended.ok()) report_thrown(framework, name, function_name);
}

}  // namespace pinrail::loader

#endif
