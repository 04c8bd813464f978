// SPDX-License-Identifier: BSD-3-Clause
// registry_impl.h - the state of a registry: all settings with their sources, of which one decides, and the declared
// parameters, each a copy of its declaration with its value.
//
// Threads  The functions of Registry::Impl are called with the lock held. Settings are used at start-up only, one
// thread
//          at a time. A declaration does not change after it was made. A value is guarded by the registry's lock,
//          except `number`, which may be read without it.
//
// A name that a parameter asked for is marked as used. Settings that stay unused name no parameter.
#ifndef PINRAIL_BASE_PARAM_REGISTRY_IMPL_H
#define PINRAIL_BASE_PARAM_REGISTRY_IMPL_H

#include <pinrail/params.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"
#include "base/param/param.h"
#include "base/sync/lock.h"

namespace pinrail::param {

// Sources, the weakest first. Each prefix of environment variables has a strength of its own.
enum Strength : int {
  kDerivedDefault = -1,
  kCallersDefault = 0,
  kSiteFile,
  kUserFile,
  kListedFile,
  kEnvironment = 100,
  kCommandLine = 1000000,
  kOverrideFile
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

  pinrail_param_source_t source() const;
  // Returns for example "the environment" or "/etc/x.conf line 3".
  std::string origin() const;
  bool in_environment() const { return strength >= kEnvironment && strength < kCommandLine; }
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
  const std::vector<Given>* all_of(const std::string& name) const;

  // Returns the strongest setting of each name that no decide() asked for, sorted by name.
  std::vector<const Given*> unused() const;

 private:
  void add_pairs(const std::vector<Setting>& pairs, int strength);
  void add_environment(const Sources& sources);
  Status add_file(const std::string& path, int strength);
  Status add_listed_files();

  struct Named {
    std::vector<Given> all;  // by strength, then in the order of reading
    bool is_used = false;
  };
  std::map<std::string, Named> by_name_;
  size_t count_ = 0;
  std::string settings_from_;
};

// Keeps one copy of each distinct text, at a fixed address, as long as the object lives.
class Strings {
 public:
  const char* keep(std::string_view text) { return texts_.emplace(text).first->c_str(); }

 private:
  std::set<std::string> texts_;
};

// A value and its source.
struct Value {
  pinrail_param_value_t typed{};
  const char* text = "";
  pinrail_param_source_t source = PINRAIL_SOURCE_DEFAULT;
  const char* file = "";
  const char* from = "";  // what gave it, for settings of pinrail_init()
  int line = 0;
};

// How firmly a value was chosen. A parameter that follows another one takes the other's value if that was chosen more
// firmly.
enum class Precedence : uint8_t { fallback, callers_default, set };

struct Parameter {
  std::string name;  // the full name
  std::string framework, component;
  pinrail_param_t declaration{};  // the registry keeps everything that it points to
  std::vector<pinrail_enum_value_t> values;
  std::vector<const char*> synonyms;  // full names; NULL ends them

  // The parameter whose value this one takes as long as it is not set itself, or NULL.
  Parameter* followed = nullptr;
  Value own;    // the value that it was set to itself
  Value value;  // the effective value: own, or that of `followed`
  Precedence precedence = Precedence::fallback;
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

// Returns what is wrong with a declaration, or NULL.
const char* fault_of(const pinrail_param_t& declaration);

// Copies a declaration and all that it points to. May throw bad_alloc.
std::unique_ptr<Parameter> copy_declaration(const Family& family, const pinrail_param_t& declaration, Strings* strings);

// Converts a text to a value, and leaves its source alone; texts are kept in `strings`. BAD_PARAM and a reason if it is
// malformed.
Status read_value(const pinrail_param_t& declaration, std::string_view text, Strings* strings, Value* value_inout,
                  std::string* why_out);

struct Registry::Impl {
  Settings settings;               // start-up only
  std::set<std::string> expected;  // start-up only: components that exist but are not loaded

  mutable Mutex mutex{LockRank::params};
  Strings strings GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Parameter>> parameters GUARDED_BY(mutex);  // sorted by framework, component and name
  // Names and synonyms. One that is both means the parameter of that name.
  std::map<std::string, Parameter*, std::less<>> names GUARDED_BY(mutex);

  // Returns the parameter of this name or synonym, or NULL.
  Parameter* lookup_locked(std::string_view name) const REQUIRES(mutex);

  // The three steps of a declaration: prepare_locked() checks and copies it, take_value_locked() gives it its value,
  // commit_locked() adds it.
  Status prepare_locked(const Family& family, const pinrail_param_t& declaration,
                        std::unique_ptr<Parameter>* parameter_out) REQUIRES(mutex);
  Status take_value_locked(Parameter* parameter) REQUIRES(mutex);
  void commit_locked(std::vector<std::unique_ptr<Parameter>> declared) REQUIRES(mutex);

  // Returns the parameter whose value this one takes as long as it is not set itself, or NULL.
  Parameter* followed_by_locked(const Parameter& parameter) const REQUIRES(mutex);
  // Returns the parameter's value while it follows that one: its own one, if it cannot have the other's.
  Value followed_value_locked(const Parameter& parameter, const Value& followed) REQUIRES(mutex);
  // Sets the parameter's own value, and so that of those that follow it. May throw bad_alloc; then nothing has changed.
  void set_own_value_locked(Parameter* parameter, const Value& own) REQUIRES(mutex);

  std::vector<std::string_view> all_names_locked() const REQUIRES(mutex);
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

}  // namespace pinrail::param

#endif
