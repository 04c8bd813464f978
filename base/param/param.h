// SPDX-License-Identifier: BSD-3-Clause
// param.h - MCA parameters: sources are read first, declarations take their values from them as they come.
//
// Owns     settings (name, text, source) and declared parameters with their values. Everything that a declaration
//          points to is copied: a component may be unmapped while its parameters stay listed.
// Threads  read_sources(), declare(), expect() and finish() at start-up only; the rest may run together.
//          std::bad_alloc may leave all of them: C faces catch it.
//
// param/P1  A declared parameter always has a valid value.
// param/P2  The strongest source that names it (or a synonym of it) decides; equal sources: the later one, and in the
//     environment, which has no order, the name before its synonyms. Of the files of mca_base_param_files the first
//     one is the strongest, as folders are in a path.
// param/P3  A malformed value is an error that names value, parameter, source and line; nothing takes its place.
// param/P4  A parameter that follows another (see declare) takes the other's value unless it is set itself.
// param/P5  Strings that were handed out stay until the registry is destroyed, also when the parameter is set.
#ifndef PINRAIL_BASE_PARAM_PARAM_H
#define PINRAIL_BASE_PARAM_PARAM_H

#include <pinrail/params.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"

namespace pinrail::param {

struct Setting {
  std::string name;
  std::string value;
};

// Where to look. The C face fills this from the process; tests fill it as they like.
struct Sources {
  std::vector<Setting> defaults;                  // replace built-in defaults
  std::vector<Setting> settings;                  // of pinrail_init()
  std::string settings_from = "the program";      // what messages call them
  std::string site_file;                          // $sysconfdir/pinrail-mca-params.conf
  std::string user_file;                          // ~/.pinrail/mca-params.conf
  std::string override_file;                      // $sysconfdir/pinrail-mca-params-override.conf
  std::vector<std::string> environment;           // "NAME=value", as environ
  std::vector<std::string> environment_prefixes;  // weakest first: {"PINRAIL_MCA_", "FOO_MCA_"}
};

// What this process has: environment, home, and the files of the configured sysconfdir. A program that runs with more
// rights than its caller (setuid) has only the site's files.
Sources process_sources();

class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Once, before anything is declared; then declares mca_base_param_files, mca_base_verbose and leave_pinned.
  // BAD_PARAM (and a message with file and line) for a line that is not `name = value`, or an unreadable file of
  // mca_base_param_files. A missing site, user or override file is no error.
  Status read_sources(const Sources& sources);

  // Declares a component's parameters (component "base": those of a framework; framework "": bare names).
  // A component's `verbose` follows <framework>_base_verbose, its `leave_pinned` the bare leave_pinned.
  // BAD_PARAM: a value is malformed, out of range or sets a constant. VERSION: a declaration of another size.
  // ERROR: a declaration is wrong in itself, or of a name that is taken. Nothing was declared then.
  Status declare(std::string_view framework, std::string_view component, const pinrail_param_t* params, size_t count,
                 const char* const* synonym_prefixes = nullptr);

  // A component "framework_component" exists, but is not loaded: finish() keeps quiet about its names.
  void expect(std::string_view component);

  // Warns, once, of every setting that named nothing: with a did-you-mean for a known framework. shipped lists
  // "framework_component" names that exist but are not loaded here (also old families such as "rcache_rgpusm"); theirs
  // are silent.
  void finish(const std::vector<std::string>& shipped);

  Status set(std::string_view name, std::string_view value);
  Status find(std::string_view name, pinrail_param_info_t* info_out) const;
  Status at(size_t index, pinrail_param_info_t* info_out) const;
  size_t count() const;

  // For code that declared them itself: the value, by full name. Zero if there is no such parameter.
  pinrail_param_value_t value(std::string_view name) const;
  // The value of a BOOL, INT or ENUM where it can be looked at without a lock, for as long as the registry lives; NULL
  // if there is no such parameter.
  const std::atomic<int64_t>* watch(std::string_view name) const;
  // "unlimited, from the default"; "8M, from the environment"; "8M, from /etc/...conf line 3".
  std::string describe(std::string_view name) const;
  // The second half of that: "the environment".
  std::string origin(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Text to value by declaration; BAD_PARAM and a reason ("is not a number") otherwise. Of a STRING every text is right,
// and value_out->s is text.data(): the caller keeps the text, and sees to it that it is terminated.
Status parse(const pinrail_param_t& declaration, std::string_view text, pinrail_param_value_t* value_out,
             std::string* why_out);

// "8 MiB"-free text of a value, as a user may type it again: "8M", "unlimited", "yes", "auto".
std::string format(const pinrail_param_t& declaration, pinrail_param_value_t value);

// What parse() takes: "auto (-1), no (0) or yes (1)", "a number from 0 to 100".
std::string accepted(const pinrail_param_t& declaration);

// "<framework>_<component>_<name>" of the parts that are not empty.
std::string full_name(std::string_view framework, std::string_view component, std::string_view name);

// For C faces: as much of info as fits into info_out->size, which the caller has set. BAD_PARAM if it is 0.
Status copy_info(const pinrail_param_info_t& info, pinrail_param_info_t* info_out);

}  // namespace pinrail::param

#endif
