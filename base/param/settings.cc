// SPDX-License-Identifier: BSD-3-Clause
// The sources of this process and the parameters of base itself, and reads the sources of settings. Start-up context,
// one thread; no lock.
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <tuple>

#include "base/core/files.h"
#include "base/param/param.h"
#include "base/report/report.h"
#include "config.h"

#ifndef PINRAIL_SYSCONFDIR
#error "PINRAIL_SYSCONFDIR names the folder of the site's parameter files"
#endif

namespace pinrail::param {
namespace {

constexpr const char* kFileList = "mca_base_param_files";

const char* role_of(int strength) {
  switch (strength) {
    case kSiteFile: return "the site's file";
    case kUserFile: return "the user's file";
    case kOverrideFile: return "the site's override file";
    default: return "named in mca_base_param_files";
  }
}

// A user's file that is unreadable for this process (it may run as another user) does not stop the program. Any other
// file is meant for all processes.
bool may_be_unreadable(int strength, const FileError& error) {
  return strength == kUserFile && error.error_number == EACCES;
}

void report_unreadable(const std::string& path, int strength, const FileError& error) {
  const bool goes_on = may_be_unreadable(strength, error), lacks = is_lack(error.error_number);
  const char* const stops = lacks ? "Pinrail does not start (OUT_OF_RESOURCE)." : "Pinrail does not start (BAD_PARAM).";
  const char* const advice = strength == kListedFile ? "name a readable file, or take it out of mca_base_param_files"
                                                     : "make it a readable file, or remove it";
  report::help("unreadable file", {{"file", path.c_str()},
                                   {"source", role_of(strength)},
                                   {"why", error.why.c_str()},
                                   {"follows", goes_on ? "its settings are not used." : stops},
                                   {"advice", lacks ? "close files, or raise \"ulimit -n\"" : advice}});
}

// A file of the list cannot set the list itself: the result would depend on the order of reading.
void drop_file_lists(const std::string& path, std::vector<FileLine>* lines) {
  const auto is_list = [](const FileLine& line) { return line.name == kFileList; };
  for (const FileLine& line : *lines) {
    if (!is_list(line)) continue;
    report::help("nested file list", {{"file", path.c_str()}, {"line", std::to_string(line.line).c_str()}});
  }
  lines->erase(std::remove_if(lines->begin(), lines->end(), is_list), lines->end());
}

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

std::string Given::origin() const {
  if (!file.empty()) return file + " line " + std::to_string(line);
  if (source() == PINRAIL_SOURCE_ENVIRONMENT) return "the environment";
  return source() == PINRAIL_SOURCE_DEFAULT ? "the caller's defaults" : from;
}

void Settings::add(Given given) {
  given.number = count_++;
  std::list<Given>& all = by_name_[given.name].all;
  const auto is_weaker = [](int strength, const Given& other) { return strength < other.strength; };
  all.insert(std::upper_bound(all.begin(), all.end(), given.strength, is_weaker), std::move(given));
}

void Settings::add_pairs(const std::vector<Setting>& pairs, int strength, const std::string& from) {
  for (const Setting& pair : pairs) add({pair.name, pair.value, "", 0, strength, from});
}

// Adds the environment variables that begin with one of the prefixes; each prefix is stronger than the one before.
void Settings::add_environment(const Sources& sources) {
  int strength = kEnvironment;
  for (const std::string& prefix : sources.environment_prefixes) {
    for (const std::string& variable : sources.environment) {
      const size_t equals = variable.find('=');
      if (equals == std::string::npos || equals <= prefix.size() || !starts_with(variable, prefix)) continue;
      const std::string name = variable.substr(prefix.size(), equals - prefix.size());
      add({name, variable.substr(equals + 1), "", 0, strength});
    }
    ++strength;
  }
}

// Adds a file's settings. BAD_PARAM, with a message, if it is malformed or cannot be read; OUT_OF_RESOURCE if no
// descriptor or memory is left for that. A missing file is an error only in mca_base_param_files.
Status Settings::add_file(const std::string& path, int strength) {
  if (path.empty()) return success();
  std::vector<FileLine> lines;
  FileError error;
  const Status status = read_file(path, &lines, &error);
  if (status.is(PINRAIL_ERR_NOT_FOUND) && strength != kListedFile) return success();
  if (status.is(PINRAIL_ERR_BAD_PARAM)) {
    report::help("malformed line",
                 {{"file", path.c_str()}, {"line", std::to_string(error.line).c_str()}, {"why", error.why.c_str()}});
    return status;
  }
  if (!status.ok()) {
    report_unreadable(path, strength, error);
    if (may_be_unreadable(strength, error)) return success();
    return is_lack(error.error_number) ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_BAD_PARAM;
  }
  if (strength == kListedFile) drop_file_lists(path, &lines);
  for (FileLine& line : lines) add({std::move(line.name), std::move(line.value), path, line.line, strength});
  return success();
}

// Adds the last file first, so that the first one is the strongest.
Status Settings::add_listed_files() {
  const std::list<Given>* const given = all_of(kFileList);
  if (given == nullptr) return success();
  const std::string list = given->back().value;
  const std::vector<std::string_view> paths = split(list, ":,");
  Status result = success();
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    result.keep_first(add_file(std::string(*path), kListedFile));
  }
  return result;
}

Status Settings::read(const Sources& sources) {
  add_pairs(sources.defaults, kCallersDefault, "");
  Status result = add_file(sources.site_file, kSiteFile);
  result.keep_first(add_file(sources.user_file, kUserFile));
  add_environment(sources);
  add_pairs(sources.settings, kCommandLine, sources.settings_from);
  result.keep_first(add_file(sources.override_file, kOverrideFile));
  result.keep_first(add_listed_files());
  return result;
}

// Returns the setting that decides a parameter (param/P2), or NULL, and marks its names as used.
const Given* Settings::decide(const std::string& name, const char* const* synonyms) {
  const Given* best = nullptr;
  const auto consider = [&](const std::string& candidate) {
    const auto found = by_name_.find(candidate);
    if (found == by_name_.end()) return;
    found->second.is_used = true;
    const Given& given = found->second.all.back();
    const auto rank = [&](const Given& it) {
      const bool is_own_name = it.source() == PINRAIL_SOURCE_ENVIRONMENT && it.name == name;
      return std::make_tuple(it.strength, is_own_name, it.number);
    };
    if (best == nullptr || rank(given) > rank(*best)) best = &given;
  };
  consider(name);
  for_texts(synonyms, consider);
  return best;
}

const std::list<Given>* Settings::all_of(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second.all;
}

std::vector<const Given*> Settings::unused() const {
  std::vector<const Given*> unused;
  for (const auto& [name, named] : by_name_) {
    if (!named.is_used) unused.push_back(&named.all.back());
  }
  return unused;
}

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
  Status result = settings_.read(sources);
  result.keep_first(declare("", "", kBaseParams, std::size(kBaseParams)));
  return result;
}

void Registry::replace_default(const std::string& name, const std::string& value) {
  settings_.add({name, value, "", 0, kDerivedDefault});
}

// Reads parameter files. Start-up context, no lock.

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string message_of(int error_number) { return std::generic_category().message(error_number); }

Status refuse(FileError* error_out, const std::string& why, int error_number = 0) {
  error_out->line = 0;
  error_out->error_number = error_number;
  error_out->why = why;
  return PINRAIL_ERR_ERROR;
}

// Returns the text before a comment.
std::string_view without_comment(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins_word = i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t';
    if (text[i] == '#' && begins_word) return text.substr(0, i);
  }
  return text;
}

// Parses the text behind the =. Returns what is wrong, or NULL.
const char* parse_value(std::string_view text, std::string* value_out) {
  const std::string_view rest = trim(text);
  const bool quoted = !rest.empty() && (rest[0] == '"' || rest[0] == '\'');
  if (!quoted) {
    *value_out = trim(without_comment(text));
    return nullptr;
  }
  const size_t end = rest.find(rest[0], 1);
  if (end == std::string_view::npos) return "has a quote that is not closed";
  if (!trim(without_comment(rest.substr(end + 1))).empty()) return "has text behind the closing quote";
  *value_out = rest.substr(1, end - 1);
  return nullptr;
}

// Parses one line. Returns what is wrong, or NULL. The name stays empty if the line sets nothing.
const char* parse_line(std::string_view line, FileLine* setting_out) {
  if (line.size() > kLongestLine) return "is longer than 65536 bytes";
  if (line.find('\0') != std::string_view::npos) return "has a NUL byte";
  const std::string_view text = trim(line);
  if (text.empty() || text[0] == '#') return nullptr;
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return "has no =";
  const std::string_view name = trim(text.substr(0, equals));
  if (!is_name(name)) return "has no parameter's name before the =";
  const char* why = parse_value(text.substr(equals + 1), &setting_out->value);
  if (why == nullptr) setting_out->name = name;
  return why;
}

// Reads the whole file. ERROR if it cannot be read or is too large.
Status read_all(int fd, std::string* text_out, FileError* error_out) {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(error_out, message_of(errno), errno);
    if (got == 0) return success();
    if (text_out->size() > kLargestFile) return refuse(error_out, "it is larger than 16M");
    text_out->append(buffer.data(), static_cast<size_t>(got));
  }
}

}  // namespace

Status parse_file(std::string_view text, std::vector<FileLine>* lines_out, FileError* error_out) {
  std::vector<FileLine> lines;
  if (starts_with(text, kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    FileLine setting{"", "", number};
    const char* why = parse_line(text.substr(0, end), &setting);
    if (why != nullptr) {
      *error_out = {number, 0, why};
      return PINRAIL_ERR_BAD_PARAM;
    }
    if (!setting.name.empty()) lines.push_back(std::move(setting));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  *lines_out = std::move(lines);
  return success();
}

Status read_file(const std::string& path, std::vector<FileLine>* lines_out, FileError* error_out) {
  // O_NONBLOCK: opening a FIFO must not block the start of the program.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    const int error = errno;
    refuse(error_out, message_of(error), error).ignore();
    return error == ENOENT || error == ENOTDIR ? PINRAIL_ERR_NOT_FOUND : PINRAIL_ERR_ERROR;
  }
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return refuse(error_out, message_of(errno), errno);
  if (S_ISDIR(about.st_mode)) return refuse(error_out, "it is a folder", EISDIR);
  // Users name /dev/null to mean "no file", so character devices are permitted.
  if (!S_ISREG(about.st_mode) && !S_ISCHR(about.st_mode)) return refuse(error_out, "it is not a regular file");
  const std::string why_not = S_ISREG(about.st_mode) ? trust::why_untrusted(about, trust::Named::by_user) : "";
  if (!why_not.empty())
    return refuse(error_out, "it " + why_not + ", and this program runs with root's rights", EACCES);
  std::string text;
  const Status status = read_all(file.get(), &text, error_out);
  return status.ok() ? parse_file(text, lines_out, error_out) : status;
}

}  // namespace pinrail::param
