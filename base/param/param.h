// SPDX-License-Identifier: BSD-3-Clause
// param.h - the registry of MCA parameters. All sources are read first; each declaration then takes its value from
// them.
//
// Owns     settings (name, text, source), and declared parameters with their values. Everything that a declaration
//          points to is copied: a component may be unmapped while its parameters stay listed.
// Threads  read_sources(), declare(), expect() and finish() run one at a time; the others may run together.
// Context  read_sources(), declare(), expect() and finish(): start-up. The others: start-up or API. All except
//          expect() take the registry's lock, and all may throw bad_alloc; the API catches it. A value behind
//          watch() is read without the lock.
//
// param/P2  The strongest source that sets the parameter, or a synonym of it, decides. Of equal sources the later one
//     decides; in the environment, which has no order, the name decides before its synonyms. Of the files in
//     mca_base_param_files the first one is the strongest, as in a search path.
//
// A malformed value is an error; the message names value, parameter, source and line. No other value replaces it. A
// parameter that follows another one (see declare) takes the other's value unless it is set itself. Strings that were
// returned stay valid until the registry is destroyed, also after the parameter is set again.
#ifndef PINRAIL_BASE_PARAM_PARAM_H
#define PINRAIL_BASE_PARAM_PARAM_H

#include <pinrail/params.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::param {

struct Setting {
  std::string name;
  std::string value;
};

// The sources of settings. The API fills this from the process; tests fill it as they need.
struct Sources {
  std::vector<Setting> defaults;                  // replace built-in defaults
  std::vector<Setting> settings;                  // those of pinrail_init()
  std::string settings_from = "the program";      // what messages call the source of these settings
  std::string site_file;                          // $sysconfdir/pinrail-mca-params.conf
  std::string user_file;                          // ~/.pinrail/mca-params.conf
  std::string override_file;                      // $sysconfdir/pinrail-mca-params-override.conf
  std::vector<std::string> environment;           // "NAME=value", as in environ
  std::vector<std::string> environment_prefixes;  // the weakest first: {"PINRAIL_MCA_", "FOO_MCA_"}
};

// Returns the sources of this process: environment, home folder, and the files of the configured sysconfdir. A program
// with more rights than its caller (setuid) has only the site's files.
Sources process_sources();

// What a registry has: all settings with their sources, of which one decides, and the declared parameters, each a copy
// of its declaration with its value. Settings are used at start-up only, one thread at a time. A declaration does not
// change after it was made. A value is guarded by the registry's lock, except `number`, which may be read without it.
//
// A name that a parameter asked for is marked as used. Settings that stay unused name no parameter.

// Sources, the weakest first, as pinrail_param_source_t has them, with room for several of one kind. Each prefix of
// environment variables has a strength of its own.
constexpr int kStrengths = 1000000;
enum Strength : int {
  kDerivedDefault = PINRAIL_SOURCE_DEFAULT * kStrengths,
  kCallersDefault,
  kSiteFile = PINRAIL_SOURCE_FILE * kStrengths,
  kUserFile,
  kListedFile,
  kEnvironment = PINRAIL_SOURCE_ENVIRONMENT * kStrengths,
  kCommandLine = PINRAIL_SOURCE_COMMAND_LINE * kStrengths,
  kOverrideFile = PINRAIL_SOURCE_OVERRIDE * kStrengths
};

// One setting as it was given.
struct Given {
  std::string name;
  std::string value;
  std::string file;  // "" if it is not from a file
  int line = 0;      // 0 if it is not from a file
  int strength = kCallersDefault;
  std::string from = {};  // for settings of pinrail_init(): what gave them
  size_t number = 0;      // in the order of reading

  pinrail_param_source_t source() const { return static_cast<pinrail_param_source_t>(strength / kStrengths); }
  // Returns for example "the environment" or "/etc/x.conf line 3".
  std::string origin() const;
};

class Settings {
 public:
  // Reads all sources and reports what is malformed. BAD_PARAM: a line or a file is malformed; all others were read.
  Status read(const Sources& sources);

  void add(Given given);

  // Returns the setting that decides a parameter of this name and these synonyms, or NULL. Marks the names as used.
  // synonyms: NULL ends them; or NULL.
  const Given* decide(const std::string& name, const char* const* synonyms);

  // Returns all settings of exactly this name, the weakest first; NULL: there is none.
  const std::list<Given>* all_of(const std::string& name) const;

  // Returns the strongest setting of each name that no decide() asked for, sorted by name.
  std::vector<const Given*> unused() const;

 private:
  void add_pairs(const std::vector<Setting>& pairs, int strength, const std::string& from);
  void add_environment(const Sources& sources);
  Status add_file(const std::string& path, int strength);
  Status add_listed_files();

  struct Named {
    std::list<Given> all;  // by strength, then in the order of reading; values point to them
    bool is_used = false;
  };
  std::map<std::string, Named> by_name_;
  size_t count_ = 0;
};

// Keeps one copy of each distinct text, at a fixed address, as long as the object lives.
class Strings {
 public:
  const char* keep(std::string_view text) { return texts_.emplace(text).first->c_str(); }

 private:
  std::set<std::string> texts_;
};

// How firmly a value was chosen. A parameter that follows another one takes the other's value if that was chosen more
// firmly.
enum class Precedence : uint8_t { fallback, callers_default, set };

// A value and its source.
struct Value {
  pinrail_param_value_t typed{};
  const char* text = "";
  pinrail_param_source_t source = PINRAIL_SOURCE_DEFAULT;
  const Given* given = nullptr;  // NULL: the built-in default, or what set() was called with

  Precedence precedence() const {
    if (source != PINRAIL_SOURCE_DEFAULT) return Precedence::set;
    return given == nullptr ? Precedence::fallback : Precedence::callers_default;
  }
};

struct Parameter {
  std::string name;  // the full name
  std::string framework, component;
  pinrail_param_t declaration{};  // the registry keeps everything that it points to
  std::vector<pinrail_enum_value_t> values;
  std::vector<const char*> synonyms;  // full names; NULL ends them

  // The parameter whose value this one takes as long as it is not set itself, or NULL.
  Parameter* followed = nullptr;
  Value own;                       // the value that it was set to itself
  Value value;                     // the effective value: own, or that of `followed`
  std::atomic<int64_t> number{0};  // value.typed.i, for readers without the lock

  void take(const Value& effective) {
    value = effective;
    number.store(value.typed.i, std::memory_order_relaxed);  // relaxed: no other data is published with the number
  }
};

// The parts with which the names of a component's parameters begin.
struct Family {
  std::string_view framework, component;
  const char* const* synonym_prefixes;  // NULL ends them; or NULL
};

// Calls visit(text) for each text of a list that NULL ends.
template <typename Visit>
void for_texts(const char* const* texts, Visit visit) {
  for (; texts != nullptr && *texts != nullptr; ++texts) visit(*texts);
}

// Converts a text to a value, and leaves its source alone; texts are kept in `strings`. BAD_PARAM and a reason if it is
// malformed.
Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_inout,
                  std::string* why_out);

class Registry : NonCopyable {
 public:
  // Call it once, before anything is declared. Also declares mca_base_param_files, mca_base_verbose and leave_pinned.
  // BAD_PARAM (and a message with file and line): a line is not `name = value`, or a file of mca_base_param_files
  // cannot be read. A missing site, user or override file is no error.
  Status read_sources(const Sources& sources);

  // Replaces the built-in default of a parameter that is declared later. All sources are stronger, also the caller's
  // own defaults. Start-up.
  void replace_default(const std::string& name, const std::string& value);

  // Declares the parameters of a component. Component "base": those of a framework; framework "": names without a
  // prefix. A component's `verbose` follows <framework>_base_verbose, its `leave_pinned` follows the parameter
  // leave_pinned. BAD_PARAM: a value is malformed or out of range. VERSION: the declarations have another size. ERROR:
  // a declaration is wrong in itself, or its name is in use. After an error nothing was declared.
  Status declare(std::string_view framework, std::string_view component, const pinrail_param_t* params, size_t count,
                 const char* const* synonym_prefixes = nullptr);

  // Says that the component "framework_component" exists but is not loaded: finish() does not warn of its parameters.
  void expect(std::string_view component);

  // Warns, once, of every setting that names no parameter, with a suggestion if a name is similar. shipped: names
  // "framework_component" of components that exist but are not loaded here (also old names such as "rcache_rgpusm");
  // there is no warning about their parameters.
  void finish(const std::vector<std::string>& shipped);

  // Sets a SETTABLE parameter while the program runs. NOT_FOUND: there is no such parameter. PERM: it is not settable,
  // or the override file sets it. BAD_PARAM: the value is malformed. Each error prints a message.
  Status set(std::string_view name, std::string_view value);
  // Describe a parameter, by name or synonym, or by index in the order of framework, component and name. NOT_FOUND.
  Status find(std::string_view name, pinrail_param_info_t* info_out) const;
  Status at(size_t index, pinrail_param_info_t* info_out) const;
  size_t count() const;

  // Returns the value by full name, for code that declared the parameter itself. Zero if there is no such parameter.
  pinrail_param_value_t value(std::string_view name) const;
  // Returns where the value of a BOOL, INT or ENUM can be read without a lock as long as the registry lives; NULL if
  // there is no such parameter.
  const std::atomic<int64_t>* watch(std::string_view name) const;
  // Returns for example "unlimited, from the default", "8M, from the environment" or "8M, from /etc/...conf line 3".
  std::string describe(std::string_view name) const;
  // Returns only where the value comes from, for example "the environment".
  std::string origin(std::string_view name) const;

 private:
  // Returns the parameter of this name or synonym, or NULL.
  Parameter* lookup_locked(std::string_view name) const REQUIRES(mutex_);

  // The three steps of a declaration: prepare_locked() checks and copies it, take_value_locked() gives it its value,
  // commit_locked() adds it.
  Status prepare_locked(const Family& family, const pinrail_param_t& declaration,
                        std::unique_ptr<Parameter>* parameter_out) REQUIRES(mutex_);
  Status take_value_locked(Parameter* parameter) REQUIRES(mutex_);
  void commit_locked(std::vector<std::unique_ptr<Parameter>> declared) REQUIRES(mutex_);

  // Returns the parameter whose value this one takes as long as it is not set itself, or NULL.
  Parameter* followed_by_locked(const Parameter& parameter) const REQUIRES(mutex_);
  // Returns the parameter's value while it follows that one: its own one, if it cannot have the other's.
  Value followed_value_locked(const Parameter& parameter, const Value& followed) REQUIRES(mutex_);
  // Sets the parameter's own value, and so that of those that follow it. May throw bad_alloc; then nothing has changed.
  void set_own_value_locked(Parameter* parameter, const Value& own) REQUIRES(mutex_);

  std::vector<std::string_view> all_names_locked() const REQUIRES(mutex_);

  Settings settings_;               // start-up only
  std::set<std::string> expected_;  // start-up only: components that exist but are not loaded

  mutable Mutex mutex_{LockRank::params};
  Strings strings_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Parameter>> parameters_ GUARDED_BY(mutex_);  // sorted by framework, component and name
  // Names and synonyms. One that is both means the parameter of that name.
  std::map<std::string, Parameter*, std::less<>> names_ GUARDED_BY(mutex_);
};

// Returns for example "the default", "the environment" or "/etc/x.conf line 3".
std::string origin_of(const Value& value);

// Reads parameter files, which contain `name = value` lines.
//
//   # a comment; a line may also be blank
//   mpool_grdma_size_limit = 8G     # a comment needs white space before its #
//   mpool = "grdma"                 # one pair of quotes, " or ', is removed: white space and # inside are kept
//
// Lines end in LF or CRLF; the last one need not end.
//
// Threads  All functions may run together.
// Context  start-up or API. They allocate, and may throw bad_alloc.
constexpr size_t kLongestLine = size_t{64} * 1024;
constexpr size_t kLargestFile = size_t{16} * 1024 * 1024;

struct FileLine {
  std::string name;
  std::string value;
  int line;
};

struct FileError {
  int line = 0;          // the first line that is wrong; 0: the file cannot be read
  int error_number = 0;  // errno, if a system call failed
  std::string why;       // for example "has no =" or "it is a folder"
};

// Parses a text. BAD_PARAM: a line is neither blank, nor a comment, nor a setting.
Status parse_file(std::string_view text, std::vector<FileLine>* lines_out, FileError* error_out);

// Reads and parses a file. NOT_FOUND: it does not exist. ERROR: it cannot be read, or other users may change it
// (base/core/files.h). BAD_PARAM: as parse_file().
Status read_file(const std::string& path, std::vector<FileLine>* lines_out, FileError* error_out);

// Converts a text to a value of the declaration's type. BAD_PARAM and a reason ("is not a number") if it is malformed.
// For a STRING every text is valid, and value_out->s is text.data(): the caller keeps the text and terminates it.
Status parse(const pinrail_param_t& declaration, std::string_view text, pinrail_param_value_t* value_out,
             std::string* why_out);

// Formats a value so that a user may type it again: "8M" (not "8 MiB"), "unlimited", "yes", "auto".
std::string format(const pinrail_param_t& declaration, pinrail_param_value_t value);

// Describes what parse() accepts: "auto (-1), no (0) or yes (1)", "a whole number from 0 to 100".
std::string accepted(const pinrail_param_t& declaration);

// A declaration in one line. maximum: of a number; 0: none.
constexpr pinrail_param_t declaration(const char* name, const char* fallback, const char* help,
                                      pinrail_param_type_t type, pinrail_param_scope_t scope, int level,
                                      int64_t maximum = 0) {
  return {sizeof(pinrail_param_t), name, fallback, help, type, scope, level, nullptr, 0, maximum, nullptr};
}

// Returns "<framework>_<component>_<name>", without the parts that are empty.
std::string full_name(std::string_view framework, std::string_view component, std::string_view name);

// For the API: copies as much of info as fits into info_out->size, which the caller has set. BAD_PARAM if it is 0.
Status copy_info(const pinrail_param_info_t& info, pinrail_param_info_t* info_out);

// Small text functions for parsers and messages. ASCII only, independent of the locale. They may be called by
// any thread.

// Returns the text without white space at both ends.
std::string_view trim(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);

bool starts_with(std::string_view text, std::string_view beginning);
bool ends_with(std::string_view text, std::string_view ending);

// Returns whether a text may be the name of a parameter or component: letters, digits and underscores, at least one.
bool is_name(std::string_view text);

// Returns the trimmed, non-empty pieces between the separators.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

// Returns how many letters must be added, removed, replaced or swapped with their neighbour to turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns "did you mean NAME?" with the most similar of the names, or otherwise `advice`.
std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& names, std::string_view advice);

// Returns the candidate most similar to name if it may be a typing error (one letter in four differs, at most 3);
// otherwise an empty text. Of equally similar ones it returns the first.
std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace pinrail::param

#endif
