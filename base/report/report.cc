// SPDX-License-Identifier: BSD-3-Clause
#include "base/report/report.h"

#include <unistd.h>

#include <cerrno>
#include <set>

#include "base/core/forever.h"
#include "base/core/hook_scope.h"
#include "base/core/lock.h"
#include "base/core/no_cancel.h"
#include "base/core/set_aside.h"

namespace pinrail::report {
namespace {

const char kBaseHelp[] =
#include "base/report/base_help.txt"
    ;

// Beyond this many distinct texts all are forgotten: what is remembered stays bounded whatever the arguments are.
constexpr size_t kRememberedTexts = 1024;

Mutex mutex{LockRank::report};
Forever<std::set<std::string>> said GUARDED_BY(mutex);

bool first_time(const std::string& text) {
  Guard guard(mutex);
  if (said->size() >= kRememberedTexts) said->clear();
  return said->insert(text).second;
}

// Straight to the descriptor: stdio would need a lock of the program's, and may be closed already.
void put(std::string_view text) {
  const NoCancel no_cancel;
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; }

// The channel's mark and the text, each line of it below the mark if there are several.
std::string framed(std::string_view channel, std::string_view text) {
  std::string out = "[pinrail:";
  out += channel;
  out += "] ";
  for (const char c : text) {
    if (c == '\n') {
      out += "\n  ";
    } else {
      out += is_control(c) ? '?' : c;
    }
  }
  return out + "\n";
}

// What a component says about a topic that its catalogue lacks.
std::string missing(std::string_view topic, const pinrail_help_arg_t* args, size_t arg_count) {
  std::string out = "(no help text for \"" + std::string(topic) + "\")";
  for (size_t i = 0; i < arg_count; ++i) {
    if (args[i].name == nullptr || args[i].value == nullptr) continue;
    out += std::string(" ") + args[i].name + "=" + args[i].value;
  }
  return out;
}

}  // namespace

void log(std::string_view channel, int verbosity, int level, std::string_view line) {
  refuse_in_hook("a line is logged");
  if (level > verbosity && level > PINRAIL_LOG_WARN) return;
  std::string one_line(line);
  for (char& c : one_line) {
    if (c == '\n') c = ' ';
  }
  put(framed(channel, one_line));
}

void help(std::string_view channel, std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
          size_t arg_count) {
  refuse_in_hook("a help text is printed");
  const std::string body = render(catalogue, topic, args, arg_count);
  const std::string text =
      framed(channel, body.empty() ? missing(topic, args, arg_count) : std::string(topic) + "\n" + body);
  if (first_time(text)) put(text);
}

void help(std::string_view topic, std::initializer_list<pinrail_help_arg_t> args) {
  help("base", base_catalogue(), topic, args.begin(), args.size());
}

std::string_view base_catalogue() { return kBaseHelp; }

void forget() {
  Guard guard(mutex);
  said->clear();
}

void leave_parents_life() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::report);
  make_anew(&said);
}

}  // namespace pinrail::report
