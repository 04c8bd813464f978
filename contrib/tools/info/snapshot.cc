// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/info/snapshot.h"

#include <pinrail/pinrail.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "contrib/tools/common/text.h"

namespace pinrail::info {
namespace {

constexpr const char* kBaseFramework = "mca";
constexpr const char* kBaseComponent = "base";

bool answers(const std::string& asked, const std::string& name) { return asked == kAll || asked == name; }

using ParamFilter = std::pair<std::string, std::string>;  // of a framework and a component

bool answers(const ParamFilter& filter, const std::string& framework, const std::string& component) {
  return answers(filter.first, framework) && answers(filter.second, component);
}

template <typename Items>
bool any_wanted(const ParamFilter& filter, const Items& items) {
  return std::any_of(items.begin(), items.end(),
                     [&filter](const auto& item) { return answers(filter, item.first, item.second); });
}

using Names = std::vector<std::pair<std::string, std::string>>;

// Every (framework, component) that a filter may name.
Names names_of(const Snapshot& snapshot) {
  Names names;
  for (const auto& param : snapshot.params) names.emplace_back(framework_of(param), component_of(param));
  for (const auto& component : snapshot.components) names.emplace_back(component.framework, component.name);
  return names;
}

void add_once(std::vector<std::string>* list, const std::string& text) {
  if (std::find(list->begin(), list->end(), text) == list->end()) list->push_back(text);
}

std::string fact(const Snapshot& snapshot, std::string_view name) {
  for (const auto& it : snapshot.facts) {
    if (it.name == name) return it.value;
  }
  return "";
}

}  // namespace

Snapshot take_snapshot() {
  Snapshot snapshot;
  for (size_t i = 0; pinrail_build_at(i) != nullptr; ++i) snapshot.facts.push_back(*pinrail_build_at(i));
  snapshot.machine.size = sizeof(snapshot.machine);
  if (pinrail_machine_read(&snapshot.machine) != PINRAIL_SUCCESS) snapshot.machine.source = "nothing";
  for (size_t i = 0; pinrail_stat_at(i) != nullptr; ++i) snapshot.stats.push_back(pinrail_stat_at(i));
  pinrail_component_info_t component{};
  component.size = sizeof(component);
  for (size_t i = 0; pinrail_component_at(i, &component) == PINRAIL_SUCCESS; ++i) {
    snapshot.components.push_back(component);
  }
  snapshot.choice = find_choice(snapshot.components);
  pinrail_param_info_t param{};
  param.size = sizeof(param);
  for (size_t i = 0; pinrail_param_at(i, &param) == PINRAIL_SUCCESS; ++i) snapshot.params.push_back(param);
  snapshot.monitors = pinrail_monitors_at_work();
  pinrail_memory_kind_t kind{};
  kind.size = sizeof(kind);
  for (size_t i = 0; pinrail_memory_kind_at(i, &kind) == PINRAIL_SUCCESS; ++i) snapshot.memory_kinds.push_back(kind);
  return snapshot;
}

std::vector<uint64_t> hugepage_sizes(const pinrail_machine_t& machine) {
  const auto* end = std::find(std::begin(machine.hugepage_sizes), std::end(machine.hugepage_sizes), uint64_t{0});
  return {std::begin(machine.hugepage_sizes), end};
}

std::vector<ParamFile> param_files(const Snapshot& snapshot) {
  const std::string folder = fact(snapshot, "sysconfdir");
  // NOLINTBEGIN(concurrency-mt-unsafe): this program changes no environment, and is one thread.
  const char* home = secure_getenv("HOME");
  const passwd* const user = home == nullptr || *home == '\0' ? getpwuid(getuid()) : nullptr;
  // NOLINTEND(concurrency-mt-unsafe)
  if (user != nullptr) home = user->pw_dir;
  return {{"site", folder + "/pinrail-mca-params.conf"},
          {"user", home != nullptr ? std::string(home) + "/.pinrail/mca-params.conf" : ""},
          {"override", folder + "/pinrail-mca-params-override.conf"}};
}

std::string framework_of(const pinrail_param_info_t& param) {
  return param.framework[0] != '\0' ? param.framework : kBaseFramework;
}

std::string component_of(const pinrail_param_info_t& param) {
  return param.component[0] != '\0' ? param.component : kBaseComponent;
}

// A framework's selection list has an empty name of its own.
std::string short_name_of(const pinrail_param_info_t& param) {
  return param.declaration->name[0] != '\0' ? param.declaration->name : param.name;
}

const char* type_name(pinrail_param_type_t type) {
  constexpr const char* kNames[] = {"bool", "int", "unsigned", "size", "string", "enum"};
  return type < std::size(kNames) ? kNames[type] : "unknown";
}

const char* scope_name(pinrail_param_scope_t scope) {
  constexpr const char* kNames[] = {"unknown", "read-only", "settable"};
  return kNames[scope < std::size(kNames) ? scope : 0];
}

const char* source_name(const pinrail_param_info_t& param) {
  // This program's own settings are those of its command line.
  return param.source == PINRAIL_SOURCE_COMMAND_LINE ? "command line" : pinrail_param_source_name(param.source);
}

std::string source_text(const pinrail_param_info_t& param) {
  std::string text = source_name(param);
  if (param.source_file[0] != '\0') {
    text += std::string(" ") + param.source_file + " line " + std::to_string(param.source_line);
  }
  return text;
}

std::string state_text(const pinrail_component_info_t& component) {
  if (component.selected == 0) return component.reason;
  if (component.status == PINRAIL_SUCCESS) {
    return *component.reason == '\0' ? "open" : std::string("open, not at work: ") + component.reason;
  }
  const std::string status = pinrail_status_name(component.status), reason = component.reason;
  return reason.find(status) != std::string::npos ? reason : status + ": it " + reason;
}

bool wants(const Options& options, const pinrail_param_info_t& param) {
  if (param.declaration->level > options.highest_level()) return false;
  if (options.params.empty()) return options.lists_params();
  return std::any_of(options.params.begin(), options.params.end(), [&param](const ParamFilter& filter) {
    return answers(filter, framework_of(param), component_of(param));
  });
}

bool wants(const Options& options, const pinrail_component_info_t& component) {
  if (options.params.empty()) return true;
  return std::any_of(options.params.begin(), options.params.end(), [&component](const ParamFilter& filter) {
    return answers(filter, component.framework, component.name);
  });
}

bool check_filters(const Options& options, const Snapshot& snapshot, std::string* why_out) {
  const Names names = names_of(snapshot);
  for (const ParamFilter& filter : options.params) {
    if (any_wanted(filter, names)) continue;
    const bool framework_exists = any_wanted({filter.first, kAll}, names);
    std::vector<std::string> known;
    for (const auto& [framework, component] : names) {
      if (framework_exists && answers(filter.first, framework)) add_once(&known, component);
      if (!framework_exists) add_once(&known, framework);
    }
    *why_out = framework_exists ? "--param " + filter.first + " " + filter.second + ": no such component; try all"
                                : "--param " + filter.first + ": no such framework; try all";
    for (const std::string& name : known) *why_out += ", " + name;
    return false;
  }
  return true;
}

std::vector<std::string> frameworks(const Snapshot& snapshot) {
  std::vector<std::string> all;
  for (const auto& component : snapshot.components) add_once(&all, component.framework);
  for (const auto& param : snapshot.params) {
    if (param.framework[0] != '\0') add_once(&all, param.framework);
  }
  return all;
}

// Which pool and registrar a program gets that names none, found out by creating pools.

namespace {

// Creates a pool for a trial. Pinrail's messages are not printed meanwhile: the first one is the reason of a refusal.
class Trial {
 public:
  Trial(const char* mpool, const char* registrar) {
    pinrail_set_message_function(record, this);
    const pinrail_registrar_choice_t choice = {registrar, nullptr, nullptr};
    status_ = pinrail_mpool_create(mpool, &choice, "pinrail_info", nullptr, &pool_);
  }
  ~Trial() {
    if (pool_ != nullptr) pinrail_mpool_destroy(pool_, 0);
    pinrail_set_message_function(nullptr, nullptr);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool worked() const { return pool_ != nullptr; }
  std::string pool() const { return pinrail_mpool_name(pool_); }
  std::string registrar() const { return pinrail_mpool_registrar_name(pool_); }
  std::string why() const { return recorded_.empty() ? pinrail_status_text(status_) : recorded_; }

 private:
  static void record(void* self, int /*level*/, const char* /*channel*/, const char* text) {
    auto* const trial = static_cast<Trial*>(self);
    if (trial->recorded_.empty()) trial->recorded_ = tools::what_happened(text);
  }

  pinrail_mpool_t* pool_ = nullptr;
  pinrail_status_t status_ = PINRAIL_SUCCESS;
  std::string recorded_;
};

bool is_open(const pinrail_component_info_t& component) {
  return component.selected != 0 && component.status == PINRAIL_SUCCESS;
}

std::string why_passed(const pinrail_component_info_t& component, const Choice& choice) {
  if (!is_open(component)) return state_text(component);
  const std::string framework = component.framework;
  if (framework == "monitor") return component.reason;
  const bool is_pool = framework == "mpool";
  const Trial trial(is_pool ? component.name : nullptr, is_pool ? nullptr : component.name);
  if (!trial.worked()) return trial.why();
  return "it works, but " + (is_pool ? choice.pool : choice.registrar) + " has a higher priority";
}

bool is_used(const pinrail_component_info_t& component, const Choice& choice) {
  const std::string framework = component.framework, name = component.name;
  if (framework == "monitor") return is_open(component) && *component.reason == '\0';
  return name == (framework == "mpool" ? choice.pool : choice.registrar);
}

}  // namespace

Choice find_choice(const std::vector<pinrail_component_info_t>& components) {
  Choice choice;
  {
    const Trial any(nullptr, nullptr);
    if (any.worked()) {
      choice.pool = any.pool();
      choice.registrar = any.registrar();
    } else {
      choice.why_none = any.why();
    }
  }
  choice.monitors = pinrail_monitors_at_work();
  for (const pinrail_component_info_t& component : components) {
    const std::string framework = component.framework;
    if (framework == "rcache" || is_used(component, choice)) continue;
    choice.passed.push_back({framework, component.name, why_passed(component, choice)});
  }
  return choice;
}

std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err) {
  Options* const o = options_out;
  tools::CommandLine line(
      "pinrail_info",
      "Shows what this Pinrail is: version, build, what a program would get here, components (and why one is not "
      "used), "
      "and parameters with their values and where these came from.",
      "Exit status: 0; 1 if the library cannot start (it has said why), or the output cannot be written; 2 for a wrong "
      "command line.",
      &o->mca);
  line.flag("-a,--all", "Everything: also all parameters and performance variables.", &o->all);
  line.pairs("--param", "FRAMEWORK COMPONENT",
             "Only the parameters of that component; either may be \"all\". Framework \"mca\" has those of the base, "
             "component \"base\" those of a framework. May be repeated.",
             &o->params);
  line.number("--level", "N",
              "Parameters up to that level, 1 (end user) to 9 (developer); 9 with --all, otherwise 3 unless given.", 1,
              kHighestLevel, &o->level);
  line.flag("--monitors",
            "What each memory monitor sees, tried on this machine event by event, each in a process of its own; takes "
            "some seconds.",
            &o->monitors);
  line.flag("--parsable,--parseable", "One fact a line, fields separated by colons; fields with colons are quoted.",
            &o->parsable);
  line.flag("--json", "One JSON document.", &o->json);
  line.exclude("--json", "--parsable");
  for (const char* const lists : {"--all", "--param", "--level"}) line.exclude("--monitors", lists);
  return line.read(argc, argv, out, err);
}

}  // namespace pinrail::info
