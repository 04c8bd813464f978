// SPDX-License-Identifier: BSD-3-Clause
#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>

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

std::string resolved(const char* path) {
  const std::unique_ptr<char, void (*)(void*)> full(realpath(path, nullptr), std::free);
  return full != nullptr ? full.get() : "";
}

// The main program is known by the name that it was called by, which need not be a path: the kernel knows better.
bool is_main_program(const Dl_info& object) {
  Dl_info program{};
  const auto headers = static_cast<uintptr_t>(getauxval(AT_PHDR));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel hands the address over as a number.
  return dladdr(reinterpret_cast<const void*>(headers), &program) != 0 && program.dli_fbase == object.dli_fbase;
}

// The folder of the shared object, or of the program, that this code was linked into.
std::string own_folder() {
  Dl_info object{};
  if (dladdr(reinterpret_cast<const void*>(&default_component_path), &object) == 0) return "";
  const std::string file = resolved(is_main_program(object) ? "/proc/self/exe" : object.dli_fname);
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
