// SPDX-License-Identifier: BSD-3-Clause
// registry_impl.h - the state of a registry.
//
// Threads  The functions are called with the lock held. settings and expected are used at start-up only.
#ifndef PINRAIL_BASE_PARAM_REGISTRY_IMPL_H
#define PINRAIL_BASE_PARAM_REGISTRY_IMPL_H

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/param/param.h"
#include "base/param/parameter.h"
#include "base/param/settings.h"
#include "base/sync/lock.h"

namespace pinrail::param {

struct Registry::Impl {
  using Names = std::map<std::string, Parameter*, std::less<>>;

  Settings settings;               // start-up only
  std::set<std::string> expected;  // start-up only: components that exist but are not loaded

  mutable Mutex mutex{LockRank::params};
  Strings strings GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Parameter>> parameters GUARDED_BY(mutex);  // sorted by framework, component and name
  Names names GUARDED_BY(mutex);
  Names synonyms GUARDED_BY(mutex);

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
  // Sets the parameter's effective value: its own one, or that of the parameter that it follows.
  void update_effective_value_locked(Parameter* parameter) REQUIRES(mutex);
  // Sets the parameter's own value, and so that of those that follow it. May throw bad_alloc; then nothing has changed.
  Status set_own_value_locked(Parameter* parameter, const Value& own) REQUIRES(mutex);

  std::vector<std::string_view> all_names_locked() const REQUIRES(mutex);
  std::set<std::string> components_locked() const REQUIRES(mutex);
  std::set<std::string> frameworks_locked() const REQUIRES(mutex);
};

// Returns for example "the default", "the environment" or "/etc/x.conf line 3".
std::string origin_of(const Value& value);

}  // namespace pinrail::param

#endif
