// SPDX-License-Identifier: BSD-3-Clause
// settings.h - everything that was set, by whom, and which of it decides.
//
// Owns     the settings.
// Threads  one at a time: start-up only.
//
// settings/G1  Positions rise with strength: a later setting is never weaker than an earlier one.
// settings/G2  A name that a parameter asked for is used; what stays unused named nothing.
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

// Sources, weakest first. Each prefix of the environment is a step of its own.
enum Strength : int {
  kCallersDefault = 0,
  kSiteFile,
  kUserFile,
  kListedFile,
  kEnvironment = 100,
  kCommandLine = 1000000,
  kOverrideFile
};

// One setting, as it was given.
struct Given {
  std::string name;
  std::string value;
  std::string file;  // or ""
  int line = 0;      // or 0
  int strength = kCallersDefault;
  std::string from = {};  // of settings of pinrail_init(): who gave them

  pinrail_param_source_t source() const;
  // "the environment", "/etc/x.conf line 3", ...
  std::string origin() const;
  bool in_environment() const { return strength >= kEnvironment && strength < kCommandLine; }
};

class Settings {
 public:
  // Reads all sources, and says what is wrong. BAD_PARAM: a line or a file is; the rest was read nevertheless.
  Status read(const Sources& sources);

  // The setting that decides a parameter of this name and these synonyms; NULL: nothing sets it. Marks the names used.
  const Given* decide(const std::string& name, const std::vector<std::string>& synonyms);

  // The strongest setting of exactly this name, or NULL.
  const Given* strongest(const std::string& name) const;

  // All settings of exactly this name, the weakest first.
  std::vector<const Given*> all_of(const std::string& name) const;

  // The strongest setting of each name that nobody asked for, in the order of the names.
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
