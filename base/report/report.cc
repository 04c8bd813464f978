// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. Each function takes the lock of messages only while it reads or changes this file's state.
#include "base/report/report.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <set>

#include "base/core/calling_thread.h"
#include "base/core/compiler.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/hook_scope.h"
#include "base/sync/lock.h"

namespace pinrail::report {
namespace {

const char kBaseHelp[] =
#include "base/report/base_help.txt"
    ;

// When this many distinct texts are remembered, all are forgotten, so that the memory is bounded whatever the arguments
// are.
constexpr size_t kRememberedTexts = 1024;

Mutex mutex{LockRank::leaf};
Forever<std::set<std::string>> said GUARDED_BY(mutex);

struct Listener {
  pinrail_message_t function;
  void* arg;
};
Listener listener GUARDED_BY(mutex) = {nullptr, nullptr};

// Takes the lock and copies the listener.
Listener current_listener() {
  Guard guard(mutex);
  return listener;
}

// Takes the lock. Returns whether this text was not printed before, and remembers it.
bool first_time(const std::string& text) {
  Guard guard(mutex);
  if (said->size() >= kRememberedTexts) said->clear();
  return said->insert(text).second;
}

// While it exists, a write that is refused does not end the process: to a thread that writes into a pipe without a
// reader, or beyond the limit of files (ulimit -f), the kernel sends a signal. What was pending before stays so.
class NoSignalOfWrite : NonCopyable {
 public:
  NoSignalOfWrite() {
    sigset_t pending;
    sigpending(&pending);
    sigemptyset(&blocked_);
    for (const int number : {SIGPIPE, SIGXFSZ}) {
      if (sigismember(&pending, number) == 0) sigaddset(&blocked_, number);
    }
    pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  }
  ~NoSignalOfWrite() {
    constexpr timespec kNow = {0, 0};
    while (sigtimedwait(&blocked_, nullptr, &kNow) > 0 || errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t blocked_, before_;
};

// Writes to the descriptor directly: stdio takes a lock of the program's and may be closed already.
void put(std::string_view text) {
  const NoCancel no_cancel;
  const NoSignalOfWrite no_signal;
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::string without_controls(std::string_view text) {
  std::string out(text);
  const auto is_control = [](unsigned char c) { return (c < 0x20 && c != '\t' && c != '\n') || c == 0x7F; };
  std::replace_if(out.begin(), out.end(), is_control, '?');
  return out;
}

// Returns the text with something else in place of each end of a line.
std::string with_line_ends(std::string_view text, std::string_view line_end) {
  std::string out;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    out.append(text.substr(0, end)).append(line_end);
  }
  return out.append(text);
}

// Returns the text with the channel's mark before it; further lines are indented.
std::string framed(std::string_view channel, std::string_view text) {
  return "[pinrail:" + std::string(channel) + "] " + with_line_ends(text, "\n  ") + "\n";
}

// Passes the message to the program's function, or to stderr. No lock is held meanwhile (report/T3).
void pass_on(std::string_view channel, int level, const std::string& text) {
  const Listener to = current_listener();
  if (to.function == nullptr) {
    put(framed(channel, text));
    return;
  }
  const NoCancel no_cancel;
  to.function(to.arg, level, std::string(channel).c_str(), text.c_str());
}

// The text for a topic that the component's catalogue lacks.
std::string missing(std::string_view topic, const pinrail_help_arg_t* args, size_t arg_count) {
  std::string out = "(no help text for \"" + std::string(topic) + "\")";
  for (size_t i = 0; i < arg_count; ++i) {
    if (args[i].name == nullptr || args[i].value == nullptr) continue;
    out += std::string(" ") + args[i].name + "=" + args[i].value;
  }
  return out;
}

// Continues a value in the column where a help line's text begins, after "What happened  ".
constexpr std::string_view kContinuation = "\n               ";

// Returns the lines below [topic], without blank lines at the end; empty if there is no such topic. A line in brackets
// is a heading. Copies nothing: messages are also about a lack of memory.
std::string_view body_of(std::string_view catalogue, std::string_view topic) {
  std::string_view body;
  bool is_inside = false;
  for (size_t at = 0; at < catalogue.size();) {
    const size_t end = std::min(catalogue.find('\n', at), catalogue.size());
    const std::string_view line = catalogue.substr(at, end - at);
    const bool is_heading = line.size() >= 2 && line.front() == '[' && line.back() == ']';
    if (is_heading && is_inside) break;
    if (is_inside && !line.empty()) body = {body.data(), static_cast<size_t>(line.data() + line.size() - body.data())};
    at = std::min(end + 1, catalogue.size());
    if (!is_heading || line.substr(1, line.size() - 2) != topic) continue;
    is_inside = true;
    body = catalogue.substr(at, 0);
  }
  return body;
}

}  // namespace

void log(std::string_view channel, int verbosity, int level, std::string_view line) {
  abort_in_hook_scope("a line is logged");
  if (level > verbosity && level > PINRAIL_LOG_WARN) return;
  pass_on(channel, level, without_controls(with_line_ends(line, " ")));
}

static std::string help_text(std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
                             size_t arg_count) {
  abort_in_hook_scope("a help text is printed");
  const std::string body = render(catalogue, topic, args, arg_count);
  return without_controls(body.empty() ? missing(topic, args, arg_count) : std::string(topic) + "\n" + body);
}

void help_again(std::string_view channel, std::string_view catalogue, std::string_view topic,
                std::initializer_list<pinrail_help_arg_t> args) {
  pass_on(channel, PINRAIL_LOG_WARN, help_text(catalogue, topic, args.begin(), args.size()));
}

void help(std::string_view channel, std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
          size_t arg_count) {
  const std::string text = help_text(catalogue, topic, args, arg_count);
  if (first_time(std::string(channel) + ": " + text)) pass_on(channel, PINRAIL_LOG_WARN, text);
}

void help(std::string_view topic, std::initializer_list<pinrail_help_arg_t> args) {
  help("base", base_catalogue(), topic, args.begin(), args.size());
}

std::string_view base_catalogue() { return kBaseHelp; }

void divert(pinrail_message_t function, void* arg) {
  Guard guard(mutex);
  listener = {function, arg};
}

void forget() {
  Guard guard(mutex);
  said->clear();
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  replace_in_child(&said);
}

std::string render(std::string_view catalogue, std::string_view topic, const pinrail_help_arg_t* args,
                   size_t arg_count) {
  std::string_view body = body_of(catalogue, topic);
  std::string out;
  while (!body.empty()) {
    const size_t open = body.find('{');
    const size_t close = open == std::string_view::npos ? open : body.find('}', open);
    out += body.substr(0, open);
    if (close == std::string_view::npos) {
      if (open != std::string_view::npos) out += body.substr(open);
      break;
    }
    const std::string_view name = body.substr(open + 1, close - open - 1);
    const pinrail_help_arg_t* const arg = std::find_if(
        args, args + arg_count, [&](const auto& each) { return each.name != nullptr && name == each.name; });
    if (arg != args + arg_count) {
      out += with_line_ends(arg->value != nullptr ? arg->value : "", kContinuation);
    } else {
      out += body.substr(open, close + 1 - open);
    }
    body.remove_prefix(close + 1);
    // If a value that ends in '?' was filled in, the line's own full stop is dropped.
    if (!out.empty() && out.back() == '?' && !body.empty() && body.front() == '.') body.remove_prefix(1);
  }
  return out;
}

}  // namespace pinrail::report
