// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. No function takes a lock.
#include "base/core/files.h"

#include <dlfcn.h>

#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace pinrail::trust {
namespace {

// Returns the path without symbolic links, or "" if it does not exist.
std::string resolved(const char* path) {
  const std::unique_ptr<char, void (*)(void*)> full(realpath(path, nullptr), std::free);
  return full != nullptr ? full.get() : "";
}

// dladdr() knows the main program by argv[0], which need not be a path. /proc/self/exe is its path.
bool is_main_program(const Dl_info& object) {
  Dl_info program{};
  const auto headers = static_cast<uintptr_t>(getauxval(AT_PHDR));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel hands the address over as a number.
  return dladdr(reinterpret_cast<const void*>(headers), &program) != 0 && program.dli_fbase == object.dli_fbase;
}

// The file of the mapping that holds the address.
std::string file_mapped_at(uintptr_t at) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> list(std::fopen("/proc/self/maps", "re"), std::fclose);
  for (char line[PATH_MAX + 128]; list != nullptr && std::fgets(line, sizeof(line), list.get()) != nullptr;) {
    uintptr_t base = 0, end = 0;
    int path = 0;
    std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR "%*s%*s%*s%*s %n", &base, &end, &path);
    if (base <= at && at < end) return {line + path, std::strcspn(line + path, "\n")};
  }
  return "";
}

// UINT32_MAX, which is no user, if it cannot be found out.
uid_t owner_of(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 ? about.st_uid : UINT32_MAX;
}

}  // namespace

std::string own_file() {
  Dl_info object{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &object) == 0) return "";
  if (is_main_program(object)) return resolved("/proc/self/exe");
  // A relative path, as from LD_LIBRARY_PATH=lib, was one of the folder in which the program began.
  if (object.dli_fname[0] == '/') return resolved(object.dli_fname);
  return resolved(file_mapped_at(reinterpret_cast<uintptr_t>(&own_file)).c_str());
}

std::string why_untrusted(const struct stat& about, const Owners& owners) {
  const bool is_ours = about.st_uid == 0 || about.st_uid == owners.self || about.st_uid == owners.own_file;
  if (!is_ours) return "belongs to user " + std::to_string(about.st_uid);
  if ((about.st_mode & S_IWOTH) != 0) return "may be written by all users (chmod go-w)";
  if ((about.st_mode & S_IWGRP) != 0 && about.st_gid != 0)
    return "may be written by group " + std::to_string(about.st_gid) + " (chmod go-w)";
  return "";
}

std::string why_untrusted(const struct stat& found, Named named) {
  if (why_untrusted(found, {0, 0}).empty()) return "";  // only root may change it: no more has to be known
  const uid_t self = geteuid();
  struct stat about = found;
  if (S_ISLNK(about.st_mode)) about.st_mode &= ~(S_IWGRP | S_IWOTH);  // always set, and only its owner may change it
  if (self != 0 && in_environment()) {
    if (named == Named::by_user) return "";
    about.st_mode &= ~S_IWGRP;
  }
  // What belongs to root or to this user is trusted whatever file contains Pinrail, which is then not looked for.
  if (about.st_uid == 0 || about.st_uid == self) return why_untrusted(about, {self, self});
  const std::string file = own_file(), folder = file.substr(0, file.rfind('/') + 1);
  const bool is_of_folder = about.st_uid == owner_of(folder);
  return why_untrusted(about, {self, is_of_folder ? about.st_uid : owner_of(file)});
}

std::string why_untrusted_link(const std::string& path, Named named) {
  struct stat about {};
  const std::string file = resolved(path.c_str());
  if (stat(file.c_str(), &about) != 0) return "";
  std::string why = why_untrusted(about, named);
  if (!why.empty()) return why;
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  if (stat(folder.c_str(), &about) != 0) return "";
  const std::string of_folder = why_untrusted(about, named);
  return of_folder.empty() ? "" : "is in " + folder + ", which " + of_folder;
}

}  // namespace pinrail::trust
