// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iomanip>

#include "contrib/tools/common/json.h"
#include "contrib/tools/info/monitors.h"
#include "contrib/tools/info/print.h"

namespace pinrail::info {
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
  constexpr int kNameWidth = 28, kWidth = 12;
  out << "What each memory monitor sees, tried on this machine\n\n" << std::left << std::setw(kNameWidth) << "event";
  for (const MonitorColumn& column : columns) {
    if (column.why_not.empty()) out << std::setw(kWidth) << column.name;
  }
  size_t row = 0;
  for (const tools::MemoryEvent& event : tools::memory_events()) {
    out << '\n' << std::setw(kNameWidth) << event.name;
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
