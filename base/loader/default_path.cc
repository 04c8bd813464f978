// SPDX-License-Identifier: BSD-3-Clause
// Start-up context.
#include <sys/stat.h>

#include "base/core/trust.h"
#include "base/loader/loader.h"

#ifndef PINRAIL_PKGLIBDIR
#error "PINRAIL_PKGLIBDIR names the folder that components are installed into"
#endif

namespace pinrail::loader {
namespace {

constexpr std::string_view kBuildFolder = "/.libs";

bool is_folder(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

// Returns the folder of the shared object or program into which this code is linked; "" if it is not known.
std::string own_folder() {
  const std::string file = trust::own_file();
  return file.substr(0, file.rfind('/'));
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string component_folder_beside(const std::string& folder) {
  if (ends_with(folder, kBuildFolder)) {
    std::string in_build_tree = folder.substr(0, folder.size() - kBuildFolder.size()) + "/components/.libs";
    if (is_folder(in_build_tree)) return in_build_tree;
  }
  return folder + "/pinrail";
}

}  // namespace

std::vector<std::string> default_component_path() {
  std::vector<std::string> path;
  const std::string folder = own_folder();
  if (!folder.empty()) path.push_back(component_folder_beside(folder));
  if (path.empty() || path.front() != PINRAIL_PKGLIBDIR) path.emplace_back(PINRAIL_PKGLIBDIR);
  return path;
}

}  // namespace pinrail::loader
