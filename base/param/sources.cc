// SPDX-License-Identifier: BSD-3-Clause
// The sources of this process, and the parameters of base itself. Start-up context.
#include "config.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/core/trust.h"
#include "base/param/registry_impl.h"

#ifndef PINRAIL_SYSCONFDIR
#error "PINRAIL_SYSCONFDIR names the folder of the site's parameter files"
#endif

namespace pinrail::param {
namespace {

const pinrail_enum_value_t kLeavePinnedValues[] = {{-1, "auto"}, {0, "no"}, {1, "yes"}, {0, nullptr}};

const pinrail_param_t kBaseParams[] = {
    {sizeof(pinrail_param_t), "mca_base_param_files", "",
     "Parameter files to read after the user's own, separated by : or , and the first one strongest. Empty: none.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 2, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "mca_base_verbose", "0",
     "What the base and the loader say: 0 only what is wrong, 10 also what is skipped and why, 50 every step.",
     PINRAIL_TYPE_INT, PINRAIL_SCOPE_SETTABLE, 8, nullptr, 0, 100, nullptr},
    {sizeof(pinrail_param_t), "leave_pinned", "auto",
     "Whether registrations stay after their last use, so that the next use costs nothing: auto: yes if a memory "
     "monitor works. For every pool that does not set its own.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 3, kLeavePinnedValues, 0, 0, nullptr},
};

std::string home_folder() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): start-up; a program that changes the environment now breaks every library.
  const char* home = secure_getenv("HOME");
  if (home != nullptr && home[0] != '\0') return home;
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return "";
  return found->pw_dir != nullptr ? found->pw_dir : "";
}

}  // namespace

Sources process_sources() {
  Sources sources;
  const std::string folder = PINRAIL_SYSCONFDIR;
  sources.site_file = folder + "/pinrail-mca-params.conf";
  sources.override_file = folder + "/pinrail-mca-params-override.conf";
  sources.environment_prefixes = {"PINRAIL_MCA_"};
#ifdef PINRAIL_ENVIRONMENT_PREFIX
  sources.environment_prefixes.emplace_back(PINRAIL_ENVIRONMENT_PREFIX);
#endif
  if (!trust::in_environment()) return sources;
  const std::string home = home_folder();
  if (!home.empty()) sources.user_file = home + "/.pinrail/mca-params.conf";
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    sources.environment.emplace_back(*variable);
  }
  return sources;
}

Status Registry::read_sources(const Sources& sources) {
  const Status read = impl_->settings.read(sources);
  const Status declared = declare("", "", kBaseParams, std::size(kBaseParams));
  return read.ok() ? declared : read;
}

void Registry::replace_default(const std::string& name, const std::string& value) {
  impl_->settings.add_default(name, value);
}

}  // namespace pinrail::param
