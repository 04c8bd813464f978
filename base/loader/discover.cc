// SPDX-License-Identifier: BSD-3-Clause
// Finds components by the search path, and reads the selection lists. Start-up context, one thread.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <tuple>

#include "base/loader/loader.h"
#include "base/report/report.h"

#ifndef PINRAIL_PKGLIBDIR
#error "PINRAIL_PKGLIBDIR names the folder that components are installed into"
#endif

namespace pinrail::loader {
namespace {

constexpr const char* kPathParam = "mca_base_component_path";
constexpr const char* kBuiltIn = "built in";
constexpr std::string_view kSuffix = ".so";

// Returns the names of the entries, sorted.
std::vector<std::string> entries_of(DIR* folder) {
  std::vector<std::string> entries;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is the caller's own.
  while (const dirent* entry = readdir(folder)) entries.emplace_back(entry->d_name);
  std::sort(entries.begin(), entries.end());
  return entries;
}

constexpr char kNone[] = "none";  // no component has this name

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::string_view kBuildFolder = "/.libs";

std::string component_folder_beside(const std::string& folder) {
  struct stat about {};
  if (param::ends_with(folder, kBuildFolder)) {
    std::string in_build_tree = folder.substr(0, folder.size() - kBuildFolder.size()) + "/components/.libs";
    if (stat(in_build_tree.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) return in_build_tree;
  }
  return folder + "/pinrail";
}

}  // namespace

void Loader::log(int level, const std::string& line) const {
  report::log("loader", static_cast<int>(params_.value("mca_base_verbose").i), level, line);
}

// Returns the framework with its selection, or NULL.
const Chosen* Loader::chosen(std::string_view framework) const {
  const auto found = std::find_if(frameworks_.begin(), frameworks_.end(),
                                  [framework](const Chosen& it) { return it.framework.name == framework; });
  return found != frameworks_.end() ? &*found : nullptr;
}

// Returns the component, or NULL.
Component* Loader::component(std::string_view framework, std::string_view name) const {
  for (const auto& component : components_) {
    if (component->listed.framework == framework && component->listed.name == name) return component.get();
  }
  return nullptr;
}

// Declares the loader's own parameter and those that each framework has.
Status Loader::declare_own(const std::vector<Framework>& wanted) {
  const std::string path = default_component_path();
  const pinrail_param_t own = param::declaration(
      kPathParam, path.c_str(), "Folders to look for components in, with : between them; the first wins.",
      PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 2);
  Status result = params_.declare("", "", &own, 1);
  for (const Framework& framework : wanted) {
    const pinrail_param_t selection = param::declaration(
        "", "",
        "Components to use: names with commas between them; ^ before the list leaves these out; empty: "
        "all that work here; none: none.",
        PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 2);
    const pinrail_param_t verbose = param::declaration(
        "verbose", "0", "What the components of the framework say, unless they set their own: 0 to 100.",
        PINRAIL_TYPE_INT, PINRAIL_SCOPE_SETTABLE, 8, 100);
    result.keep_first(params_.declare(framework.name, "", &selection, 1));
    result.keep_first(params_.declare(framework.name, "base", &verbose, 1));
  }
  return result;
}

// Reads and parses the selection list of a framework. BAD_PARAM, with a message, if it is malformed.
Status Loader::choose(const Framework& framework) {
  Chosen chosen{framework, {}};
  std::string why;
  pinrail_param_info_t info{};
  Status status = params_.find(framework.name, &info);
  if (status.ok()) status = Selection::parse(info.value, &chosen.selection, &why);
  if (status.ok()) {
    frameworks_.push_back(std::move(chosen));
    return status;
  }
  report::help("wrong selection list", {{"value", info.value},
                                        {"name", framework.name},
                                        {"source", params_.origin(framework.name).c_str()},
                                        {"why", why.c_str()}});
  return status;
}

// Records a component unless one of its name was found before.
void Loader::add(Chosen* chosen, const std::string& name, const std::string& path,
                 const pinrail_component_t* descriptor) {
  const std::string framework = chosen->framework.name;
  const Component* earlier = component(framework, name);
  if (earlier != nullptr) {
    log(PINRAIL_LOG_DEBUG,
        path + " is hidden by the " + framework + " component " + name + " (" + earlier->listed.path + ")");
    return;
  }
  auto found = std::make_unique<Component>();
  found->chosen = chosen;
  found->listed.framework = framework;
  found->listed.name = name;
  found->listed.path = path;
  // The priority of a file is unknown yet; Loader::load() evaluates `selected` again.
  if (descriptor != nullptr) found->listed.priority = descriptor->priority;  // known before it is loaded: built in
  found->listed.selected = chosen->selection.allows(name, found->listed.priority);
  found->descriptor = descriptor;
  components_.push_back(std::move(found));
}

// Records the components that are linked into the library.
void Loader::find_built_in() {
  for (const pinrail_component_t* const* next = built_in_; next != nullptr && *next != nullptr; ++next) {
    for (Chosen& chosen : frameworks_) {
      if (text_of((*next)->framework) == chosen.framework.name) add(&chosen, text_of((*next)->name), kBuiltIn, *next);
    }
  }
}

// Records the component of a file that is named <framework>_<component>.so; other files are skipped.
void Loader::add_file(const std::string& folder, const std::string& file) {
  const std::string path = folder + "/" + file;
  if (!param::ends_with(file, kSuffix)) return;
  const std::string stem = file.substr(0, file.size() - kSuffix.size());
  for (Chosen& chosen : frameworks_) {
    const std::string prefix = std::string(chosen.framework.name) + "_";
    if (!param::starts_with(stem, prefix)) continue;
    const std::string name = stem.substr(prefix.size());
    if (!param::is_name(name) || name.size() >= sizeof(pinrail_component_t::name)) continue;
    add(&chosen, name, path, nullptr);
    return;
  }
  log(PINRAIL_LOG_DEBUG, path + " is not named <framework>_<component>.so");
}

// Who names the folders that are searched.
trust::Named Loader::path_named() const {
  pinrail_param_info_t info{};
  const bool by_default = params_.find(kPathParam, &info).ok() && info.source == PINRAIL_SOURCE_DEFAULT;
  return by_default ? trust::Named::by_default : trust::Named::by_user;
}

// Records the components in a folder. A folder that other users may change is skipped with a warning (files/X2).
void Loader::find_in_folder(const std::string& folder) {
  const trust::Named named = path_named();
  struct stat about {};
  struct stat link {};
  const bool is_there = lstat(folder.c_str(), &link) == 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(is_there ? opendir(folder.c_str()) : nullptr, closedir);
  if (stream == nullptr || fstat(dirfd(stream.get()), &about) != 0) {
    const std::string why = std::generic_category().message(errno);
    // A folder that the user named should exist; folders of the default path need not, as far as this user can tell.
    log(!is_there && named == trust::Named::by_default ? PINRAIL_LOG_DEBUG : PINRAIL_LOG_WARN,
        "no components in " + folder + " (" + kPathParam + "): " + why);
    return;
  }
  std::string why = trust::why_untrusted(link, named);  // who owns a link can let it lead elsewhere at any time
  if (why.empty()) why = trust::why_untrusted(about, named);
  if (!why.empty()) {
    const bool is_root = geteuid() == 0 || !trust::in_environment();
    const char* const because =
        is_root ? "this program runs with root's rights" : "mca_base_component_path does not name it";
    log(PINRAIL_LOG_WARN, "no component is loaded from " + folder + ": it " + why + ", and " + because);
    return;
  }
  for (const std::string& entry : entries_of(stream.get())) add_file(folder, entry);
}

// Finds the components of all frameworks and declares their parameters. BAD_PARAM: a parameter is malformed.
Status Loader::discover(const std::vector<Framework>& frameworks) {
  Status result = declare_own(frameworks);
  if (!result.ok()) return result;
  for (const Framework& framework : frameworks) result.keep_first(choose(framework));
  if (!result.ok()) return result;
  find_built_in();
  const std::string path = params_.value(kPathParam).s;  // earlier folders win
  if (std::count(path.begin(), path.end(), ':') > 1 && path == default_component_path())
    log(PINRAIL_LOG_WARN, "components beside the library are not found, for its folder's name has a colon: " + path);
  for (std::string_view folder : param::split(path, ":")) {
    // lstat("link/") would tell of the folder to which the link leads.
    while (folder.size() > 1 && folder.back() == '/') folder.remove_suffix(1);
    find_in_folder(std::string(folder));
  }
  std::sort(components_.begin(), components_.end(), [](const auto& a, const auto& b) {
    return std::tie(a->chosen, a->listed.name) < std::tie(b->chosen, b->listed.name);
  });
  for (const auto& component : components_) list_.push_back(&component->listed);
  return load_all();
}

// Parses a selection list. BAD_PARAM, and a reason in *why_out, if it is malformed.
Status Selection::parse(std::string_view text, Selection* selection_out, std::string* why_out) {
  Selection selection;
  const auto refuse = [why_out](const std::string& why) {
    *why_out = why;
    return Status(PINRAIL_ERR_BAD_PARAM);
  };
  text = param::trim(text);
  selection.exclude = !text.empty() && text[0] == '^';
  if (selection.exclude) text.remove_prefix(1);
  for (const std::string_view name : param::split(text, ",")) {
    if (!param::is_name(name)) {
      return refuse(name[0] == '^' ? "^ must be the first character, and leaves out the whole list"
                                   : "\"" + std::string(name) + "\" is not a component's name");
    }
    if (!contains(selection.names, name)) selection.names.emplace_back(name);
  }
  if (selection.exclude && selection.names.empty()) return refuse("^ leaves out nothing");
  if (contains(selection.names, kNone) && (selection.exclude || selection.names.size() != 1)) {
    return refuse("none stands alone");
  }
  *selection_out = std::move(selection);
  return success();
}

// Returns whether the selection permits a component of this name and priority.
bool Selection::allows(std::string_view name, int priority) const {
  if (requests(name)) return true;
  const bool all_but_names = exclude || names.empty();
  return all_but_names && priority >= 0 && !contains(names, name);
}

bool Selection::is_none() const { return !exclude && contains(names, kNone); }

bool Selection::requests(std::string_view name) const { return !exclude && contains(names, name); }

std::string default_component_path() {
  const std::string configured = PINRAIL_PKGLIBDIR, own = trust::own_file();  // "" if it is not known
  const std::string beside = own.empty() ? configured : component_folder_beside(own.substr(0, own.rfind('/')));
  return beside == configured ? configured : beside + ":" + configured;
}

}  // namespace pinrail::loader
