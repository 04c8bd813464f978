// SPDX-License-Identifier: BSD-3-Clause
// settings.h - all settings with their sources, and which of them decides.
//
// Owns     the settings.
// Threads  One at a time; start-up only.
//
// settings/G1  Positions rise with strength: a later setting is never weaker than an earlier one.
// settings/G2  A name that a parameter asked for is marked as used. Settings that stay unused name no parameter.
#ifndef PINRAIL_BASE_PARAM_SETTINGS_H
#define PINRAIL_BASE_PARAM_SETTINGS_H

#include <pinrail/params.h>

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/core/status.h"
#include "base/param/file.h"
#include "base/param/param.h"

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

  pinrail_param_source_t source() const;
  // Returns for example "the environment" or "/etc/x.conf line 3".
  std::string origin() const;
  bool in_environment() const { return strength >= kEnvironment && strength < kCommandLine; }
};

class Settings {
 public:
  // Reads all sources and reports what is malformed. BAD_PARAM: a line or a file is malformed; all others were read.
  Status read(const Sources& sources);

  // Adds a setting that is weaker than those of all sources.
  void add_default(const std::string& name, const std::string& value);

  // Returns the setting that decides a parameter of this name and these synonyms, or NULL. Marks the names as used.
  const Given* decide(const std::string& name, const std::vector<std::string>& synonyms);

  // Returns the strongest setting of exactly this name, or NULL.
  const Given* strongest(const std::string& name) const;

  // Returns all settings of exactly this name, the weakest first.
  std::vector<const Given*> all_of(const std::string& name) const;

  // Returns the strongest setting of each name that no decide() asked for, sorted by name.
  std::vector<const Given*> unused() const;

 private:
  void add_pairs(const std::vector<Setting>& pairs, int strength);
  void add_environment(const Sources& sources);
  Status add_file(const std::string& path, int strength);
  Status add_listed_files();
  void sort();

  std::vector<Given> all_;
  std::unordered_map<std::string, std::vector<size_t>> by_name_;  // positions in all_, rising
  std::set<std::string> used_;
  std::string settings_from_;
};

}  // namespace pinrail::param

#endif
