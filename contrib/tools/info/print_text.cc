// SPDX-License-Identifier: BSD-3-Clause
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iomanip>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/program.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/info/monitors.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {
namespace {

constexpr int kNameWidth = 16;

void put_pair(std::ostream& out, const char* name, const std::string& value) {
  out << "  " << std::left << std::setw(kNameWidth) << name << "  " << value << '\n';
}

// As put_pair(), with a value that may need several lines.
void put_words(std::ostream& out, const std::string& name, const std::string& value) {
  const std::string indent(kNameWidth + 4, ' ');
  if (indent.size() + value.size() <= tools::text_width()) return put_pair(out, name.c_str(), value);
  std::string lines = tools::wrapped(value, indent);
  if (name.size() + 2 < indent.size()) lines.erase(0, name.size() + 2);
  out << "  " << name << (name.size() + 2 < indent.size() ? "" : "\n") << lines;
}

const pinrail_param_info_t* find(const Snapshot& snapshot, const std::string& name) {
  const auto found = std::find_if(snapshot.params.begin(), snapshot.params.end(),
                                  [&name](const pinrail_param_info_t& param) { return param.name == name; });
  return found != snapshot.params.end() ? &*found : nullptr;
}

void put_build(const Snapshot& snapshot, std::ostream& out) {
  out << "Build\n";
  for (const auto& fact : snapshot.facts) put_words(out, fact.name, *fact.value != '\0' ? fact.value : "(no option)");
}

// In the largest unit without a remainder; callers round memory down to MiB first.
std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"bytes", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; unit + 1 < kUnits.size() && bytes != 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return std::to_string(bytes) + " " + kUnits[unit];
}

void put_machine(const Snapshot& snapshot, std::ostream& out) {
  constexpr uint64_t kMebi = uint64_t{1} << 20;
  const pinrail_machine_t& machine = snapshot.machine;
  std::string pages = bytes_text(machine.page_size);
  for (const uint64_t bytes : hugepage_sizes(machine)) pages += ", " + bytes_text(bytes);
  out << "\nMachine  (by " << machine.source << ")\n";
  const uint64_t counted = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * machine.page_size / kMebi;
  std::string memory = std::to_string(machine.memory / kMebi) + " MiB";
  if (counted != machine.memory / kMebi)
    memory += " in the NUMA nodes, to plan with; the kernel counts " + std::to_string(counted) + " MiB";
  put_words(out, "memory", memory);
  put_pair(out, "pages", pages);
  put_pair(out, "NUMA nodes", std::to_string(machine.numa_nodes));
  const bool is_bounded = machine.default_limit != UINT64_MAX;
  put_words(out, "default limit",
            (is_bounded ? bytes_text(machine.default_limit) : "none") + ": " + machine.default_limit_from);
}

void put_choice(const Choice& choice, std::ostream& out) {
  out << "\nWhat a program gets here that names nothing\n";
  put_pair(out, "pool", choice.pool.empty() ? "none" : choice.pool);
  put_pair(out, "registrar", choice.registrar.empty() ? "none" : choice.registrar);
  put_pair(out, "monitors", choice.monitors.empty() ? "none" : choice.monitors);
  if (!choice.why_none.empty()) out << tools::wrapped("No pool can be made: " + choice.why_none + ".", "  ");
  for (const Passed& it : choice.passed) {
    out << tools::wrapped("not " + it.framework + " " + it.name + ": " + it.why, "  ");
  }
}

void put_memory_kinds(const Snapshot& snapshot, std::ostream& out) {
  out << "\nMemory that is kept registered  (monitors: " << (snapshot.monitors.empty() ? "none" : snapshot.monitors)
      << ")\n";
  for (const pinrail_memory_kind_t& kind : snapshot.memory_kinds) {
    put_words(out, kind.name, kind.is_kept != 0 ? "kept" : std::string("not kept: ") + kind.why_not);
  }
}

void put_paths(const Snapshot& snapshot, std::ostream& out) {
  out << "\nPaths\n";
  const pinrail_param_info_t* path = find(snapshot, "mca_base_component_path");
  if (path != nullptr) put_pair(out, "components", std::string(path->value) + "  (" + source_text(*path) + ")");
  for (const ParamFile& file : param_files(snapshot)) {
    const bool there = !file.path.empty() && access(file.path.c_str(), R_OK) == 0;
    put_pair(out, (std::string(file.role) + " params").c_str(), file.path + (there ? "" : "  (none)"));
  }
}

std::string selection_of(const Snapshot& snapshot, const std::string& framework) {
  const pinrail_param_info_t* list = find(snapshot, framework);
  if (list == nullptr || list->value[0] == '\0') return "";
  return "  (" + framework + " = " + list->value + ", " + source_text(*list) + ")";
}

void put_component(const pinrail_component_info_t& component, std::ostream& out) {
  const bool open = component.selected != 0 && component.status == PINRAIL_SUCCESS;
  std::string about = component.version;
  if (component.version[0] != '\0') about += "  priority " + std::to_string(component.priority) + "  ";
  put_words(out, component.name, about + state_text(component));
  if (component.help[0] != '\0') out << tools::wrapped(component.help, "                    ");
  if (!open) out << "                    " << component.path << '\n';
}

void put_components(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  for (const std::string& framework : frameworks(snapshot)) {
    bool headed = false;
    for (const auto& component : snapshot.components) {
      if (component.framework != framework || !wants(options, component)) continue;
      if (!headed) out << "\nFramework " << framework << selection_of(snapshot, framework) << '\n';
      headed = true;
      put_component(component, out);
    }
  }
}

void put_values(const pinrail_param_t& declaration, std::ostream& out) {
  if (declaration.values == nullptr) return;
  out << "    values:";
  for (const auto* v = declaration.values; v->name != nullptr; ++v) {
    out << (v == declaration.values ? " " : ", ") << v->name << " (" << v->value << ")";
  }
  out << '\n';
}

void put_synonyms(const pinrail_param_t& declaration, std::ostream& out) {
  if (declaration.synonyms == nullptr) return;
  out << "    old names:";
  for (const char* const* synonym = declaration.synonyms; *synonym != nullptr; ++synonym) out << ' ' << *synonym;
  out << '\n';
}

void put_param(const pinrail_param_info_t& param, std::ostream& out) {
  const pinrail_param_t& declaration = *param.declaration;
  out << "  " << param.name << " = " << (param.value[0] != '\0' ? param.value : "\"\"") << "  (" << source_text(param)
      << ")\n    level " << declaration.level << ", " << type_name(declaration.type) << ", "
      << scope_name(declaration.scope) << ", default "
      << (declaration.fallback[0] != '\0' ? declaration.fallback : "\"\"") << '\n';
  put_values(declaration, out);
  put_synonyms(declaration, out);
  out << tools::wrapped(declaration.help, "    ");
}

void put_params(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  Options everything;
  everything.params = options.params;
  everything.all = true;
  size_t shown = 0;
  size_t asked = 0;
  out << "\nParameters\n";
  for (const auto& param : snapshot.params) {
    if (wants(everything, param)) ++asked;
    if (!wants(options, param)) continue;
    put_param(param, out);
    ++shown;
  }
  if (shown < asked) out << "  (" << asked - shown << " more at higher levels: --level 9)\n";
}

void put_param_counts(const Snapshot& snapshot, std::ostream& out) {
  std::array<size_t, kHighestLevel + 1> counts{};
  for (const auto& param : snapshot.params) ++counts[static_cast<size_t>(param.declaration->level)];
  size_t rest = 0;
  for (size_t level = kUsualLevel + 1; level <= kHighestLevel; ++level) rest += counts[level];
  out << "\nParameters\n";
  for (size_t level = 1; level <= kUsualLevel; ++level) {
    put_pair(out, ("level " + std::to_string(level)).c_str(), std::to_string(counts[level]));
  }
  put_pair(out, "levels 4 to 9", std::to_string(rest));
  out << tools::wrapped("(see them with --all, --level N or --param FRAMEWORK COMPONENT)", "  ");
}

void put_stats(const Snapshot& snapshot, std::ostream& out) {
  out << "\nPerformance variables of a pool\n";
  for (const pinrail_stat_info_t* stat : snapshot.stats) {
    out << "  " << std::left << std::setw(24) << stat->name << std::setw(15) << stat->unit << stat->help << '\n';
  }
}

}  // namespace

void print_text(const Options& options, const Snapshot& snapshot, std::ostream& out) {
  out << "Pinrail " << pinrail_version() << "\n";
  if (options.params.empty()) {
    out << '\n';
    put_build(snapshot, out);
    put_machine(snapshot, out);
    put_choice(snapshot.choice, out);
    put_memory_kinds(snapshot, out);
    put_paths(snapshot, out);
  }
  put_components(options, snapshot, out);
  if (options.lists_params()) {
    put_params(options, snapshot, out);
  } else {
    put_param_counts(snapshot, out);
  }
  if (options.all) put_stats(snapshot, out);
}

namespace {

// By Outcome.
struct Words {
  const char *name, *meaning;
};
constexpr Words kOutcomes[] = {{"before", "the registration was given up before the kernel acted"},
                               {"after", "it was given up, but the kernel may have acted first"},
                               {"not seen", "it still answered: STALE"},
                               {"kept", "it still answered, as it should: the pages stay the same"},
                               {"dropped", "it was given up although the pages stay the same: costs a registration"},
                               {"not cached", "such memory is not kept registered under this monitor"},
                               {"-", "this kernel or C library cannot do it"},
                               {"broken", "the trial itself failed"}};

bool occurs(Outcome outcome, const std::vector<MonitorColumn>& columns) {
  return std::any_of(columns.begin(), columns.end(), [outcome](const MonitorColumn& column) {
    return std::find(column.outcomes.begin(), column.outcomes.end(), outcome) != column.outcomes.end();
  });
}

void print_kept(const MonitorTable& table, std::ostream& out) {
  constexpr int kWidth = 28;
  out << "\nWhat is kept registered as it is set now  (monitors: " << (table.at_work.empty() ? "none" : table.at_work)
      << ")\n\n";
  for (const KeptKind& kind : table.kept) {
    out << std::setw(kWidth) << kind.name << (kind.why_not.empty() ? "kept" : "not kept: " + kind.why_not) << '\n';
  }
}

void print_text(const MonitorTable& table, std::ostream& out) {
  const std::vector<MonitorColumn>& columns = table.columns;
  constexpr int kEventWidth = 28, kWidth = 12;
  out << "What each memory monitor sees, tried on this machine\n\n" << std::left << std::setw(kEventWidth) << "event";
  for (const MonitorColumn& column : columns) {
    if (column.why_not.empty()) out << std::setw(kWidth) << column.name;
  }
  size_t row = 0;
  for (const tools::MemoryEvent& event : tools::memory_events()) {
    out << '\n' << std::setw(kEventWidth) << event.name;
    for (const MonitorColumn& column : columns) {
      if (column.why_not.empty()) out << std::setw(kWidth) << outcome_name(column.outcomes[row]);
    }
    ++row;
  }
  out << "\n\n";
  for (const Words& outcome : kOutcomes) {
    if (occurs(static_cast<Outcome>(&outcome - kOutcomes), columns))
      out << std::setw(kWidth) << outcome.name << outcome.meaning << '\n';
  }
  for (const MonitorColumn& column : columns) {
    if (!column.why_not.empty()) out << "not usable here: " << column.name << ": " << column.why_not << '\n';
  }
  print_kept(table, out);
}

void print_parsable(const MonitorTable& table, std::ostream& out) {
  out << "monitors:at_work:" << parsable_field(table.at_work) << '\n';
  for (const KeptKind& kind : table.kept) {
    const std::string begin = "memory:" + parsable_field(kind.name) + ":";
    out << begin << "kept:" << (kind.why_not.empty() ? "yes" : "no") << '\n';
    if (!kind.why_not.empty()) out << begin << "why_not:" << parsable_field(kind.why_not) << '\n';
  }
  for (const MonitorColumn& column : table.columns) {
    const std::string begin = "monitor:" + parsable_field(column.name) + ":";
    if (!column.why_not.empty()) out << begin << "why_not:" << parsable_field(column.why_not) << '\n';
    for (size_t i = 0; i < column.outcomes.size(); ++i) {
      out << begin << "event:" << tools::memory_events().first[i].name << ':' << outcome_name(column.outcomes[i])
          << '\n';
    }
  }
}

tools::Json event_json(const std::vector<MonitorColumn>& columns, size_t index) {
  const tools::MemoryEvent& event = tools::memory_events().first[index];
  tools::Json seen = tools::Json::object();
  for (const MonitorColumn& column : columns) {
    if (column.why_not.empty()) seen[column.name] = outcome_name(column.outcomes[index]);
  }
  return {{"name", event.name},
          {"help", event.help},
          {"memory", memory_kind_name(event.kind)},
          {"raw", event.way() == tools::Way::raw},
          {"pages_replaced", event.pages == tools::Pages::replaced},
          {"seen", seen}};
}

void print_json(const MonitorTable& table, std::ostream& out) {
  using tools::Json;
  Json monitors = Json::array(), memory = Json::array(), events = Json::array();
  for (const MonitorColumn& column : table.columns) {
    monitors.push_back({{"name", column.name}, {"usable", column.why_not.empty()}, {"reason", column.why_not}});
  }
  for (const KeptKind& kind : table.kept) {
    memory.push_back({{"kind", kind.name}, {"kept", kind.why_not.empty()}, {"why_not", kind.why_not}});
  }
  for (size_t i = 0; i < tools::memory_events().count; ++i) events.push_back(event_json(table.columns, i));
  tools::print({{"monitors", monitors}, {"at_work", table.at_work}, {"memory", memory}, {"events", events}}, out);
}

}  // namespace

const char* outcome_name(Outcome outcome) { return kOutcomes[static_cast<size_t>(outcome)].name; }

void print_monitors(Format format, const MonitorTable& table, std::ostream& out) {
  switch (format) {
    case Format::text: print_text(table, out); break;
    case Format::parsable: print_parsable(table, out); break;
    case Format::json: print_json(table, out); break;
  }
}

}  // namespace pinrail::info
