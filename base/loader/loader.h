// SPDX-License-Identifier: BSD-3-Clause
// loader.h - finds components (built in, or DSOs in folders), checks them, and opens those that were selected.
//
// Owns     dlopen handles, the component's host tables and contexts. The registry and the services must outlive it;
//          the registry keeps copies of all that descriptors declare, so it may outlive it too.
// Threads  start-up only; opened components may be read by all, until close_all(). std::bad_alloc may leave it.
//
// loader/L1  No function of a component runs before its descriptor's size, framework, ABI and table size were compared.
// loader/L2  A file is mapped by dlopen only after its ELF header and segment extents were checked against its length.
// loader/L3  A component that cannot be had is skipped with one message; asked for by name it is an error.
// loader/L4  A component that the selection leaves out is not even mapped.
// loader/L5  Of several components of one framework and name the built-in one is taken, else that of the earliest
//     folder.
// loader/L6  What hooks may run in is never unmapped: components of framework "monitor", once they were opened (E7).
#ifndef PINRAIL_BASE_LOADER_LOADER_H
#define PINRAIL_BASE_LOADER_LOADER_H

#include <pinrail/component.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"
#include "base/param/param.h"

// The components that are linked into this library; NULL ends the table. The build writes it.
extern "C" const pinrail_component_t* const pinrail_static_components[];

namespace pinrail::loader {

// One framework's border, as this library knows it.
struct Framework {
  const char* name;
  uint32_t abi;
  size_t ops_size;
};

// An opened component.
struct Opened {
  const pinrail_component_t* descriptor;
  void* context;
  const pinrail_host_t* host;
  bool named;  // asked for by name in the selection list
};

// What was found of a component, opened or not: for listings.
struct Listed {
  std::string framework, name, version, help;
  std::string path;  // "built in" or the file
  int priority = 0;
  Status status = PINRAIL_SUCCESS;  // of checks and open
  std::string reason;               // why not, if not opened
  bool selected = false;            // the selection allows it
};

// A selection list: "grdma,rgpusm", "^rgpusm", "none" or "" (everything). "^" must come first and excludes the whole
// list. White space around names and empty or repeated names mean nothing.
struct Selection {
  bool exclude = false;
  std::vector<std::string> names;
  // BAD_PARAM and a reason: "^" elsewhere or alone, or something that no component can be called.
  static Status parse(std::string_view text, Selection* selection_out, std::string* why_out);
  bool allows(std::string_view name, int priority) const;  // priority < 0 must be named
  bool names_it(std::string_view name) const;
  bool is_none() const;
};

class Loader {
 public:
  // services: the host table's upper half (registrar, rcache, monitor, registration services), copied per component.
  Loader(param::Registry& params, const pinrail_host_t& services,
         const pinrail_component_t* const* built_in = pinrail_static_components);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Finds the components of all frameworks and declares their parameters (selection lists and verbosities too), and
  // mca_base_component_path. Once. BAD_PARAM: a parameter's value is wrong.
  Status discover(const std::vector<Framework>& frameworks);

  // Says which names of "^" lists no component has, of those found and of `shipped` ("framework_component"): a slip of
  // the finger leaves in what was meant to be out.
  void check_exclusions(const std::vector<std::string>& shipped);

  // Opens the selected components of one framework, highest priority first. An error if one that was asked for by
  // name cannot be had: NOT_FOUND, or what its checks or its open() said; the others are open nevertheless.
  Status open(std::string_view framework);

  // Opened ones, highest priority first; equal priorities by name.
  std::vector<Opened> opened(std::string_view framework) const;

  // Closes what was opened, in reverse, and unmaps it (but loader/L6). Descriptors and host tables are gone then.
  void close_all();

  // By framework, in the order of discover(), then by name. Stays as it is after the last open().
  const std::vector<Listed>& listed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The `self` of the services that the loader was given, from a component's host table.
const void* services_self(const pinrail_host_t* host);

// Reads the ELF header and program headers of the file: ERROR and a reason if it is not a whole ELF object of this
// machine.
Status check_elf(const std::string& path, std::string* why_out);

// Where components of this build live: beside the object that this function is in (installed: <libdir>/pinrail; in a
// build tree, where that is in a folder .libs: components/.libs of it), then the folder that was configured.
std::vector<std::string> default_component_path();

}  // namespace pinrail::loader

#endif
