// SPDX-License-Identifier: BSD-3-Clause
// pinrail_conform - does a component keep the promises of its framework? Runs each check of the framework's suite in a
// process of its own, which is ended when it takes too long, and names the rule of framework/RULES that is broken.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iostream>
#include <set>

#include "base/loader/loader.h"
#include "contrib/tools/common/json.h"
#include "contrib/tools/common/program.h"
#include "test/conform/suite/component.h"
#include "test/conform/suite/registrar.h"
#include "test/support/libc_allocator.h"

// Counts this thread's allocations (E3). Elsewhere than on glibc, and under a sanitizer, nothing is counted.

#if defined(__GLIBC__) && !defined(PINRAIL_SANITIZERS_ALLOCATOR)

namespace {
__thread long count __attribute__((tls_model("initial-exec")));
void on_take() { ++count; }
void on_give() { ++count; }
}  // namespace

long pinrail::conform::allocations_of_thread() {
  const long since = count;
  count = 0;
  return since;
}

#else

long pinrail::conform::allocations_of_thread() { return -1; }

#endif

namespace pinrail::conform {
namespace {

constexpr char kNotes[] =
    "FRAMEWORK is mpool, rcache, registrar or monitor. The checks load and run the component's code.\n"
    "Exit status: 0 if every rule is kept, 1 if one is broken, 2 for an invalid command line.";

struct Options {
  std::string framework;
  File file;
  bool json = false;
  bool all = false;
  unsigned seconds = 20;
};

// One check without its function's type.
struct Task {
  const char* rule;
  std::string claim;
  std::function<void(Verdict*)> run;
};

struct Result {
  std::string claim;
  Verdict verdict;
};

std::string sentence(std::string claim) {
  std::replace(claim.begin(), claim.end(), '_', ' ');
  return claim;
}

// Rule, words and the reason to skip, as three strings that end with 0.
void tell(int to, const Verdict& verdict) {
  const std::string text = verdict.rule + '\0' + verdict.words + '\0' + verdict.skipped + '\0';
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(to, text.data() + done, text.size() - done);
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
}

[[noreturn]] void run_in_child(const Task& task, int to, unsigned seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);
  const rlimit processor{seconds + 5, seconds + 5}, core{0, 0};
  setrlimit(RLIMIT_CPU, &processor);
  setrlimit(RLIMIT_CORE, &core);
  setpgid(0, 0);  // what the component starts ends with it
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  Verdict verdict;
  verdict.trial = std::chrono::milliseconds(seconds) * 25;
  task.run(&verdict);
  tell(to, verdict);
  _exit(0);
}

using Clock = std::chrono::steady_clock;

// Reads what the child tells until it ends, has told all, or has closed the pipe, or its time is over. False: its time
// is over.
bool listen(int from, Clock::time_point end, std::string* text_out) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    pollfd one{from, POLLIN, 0};
    const int ready = poll(&one, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char buffer[4096];
    const ssize_t got = read(from, buffer, sizeof(buffer));
    if (got <= 0) return true;
    text_out->append(buffer, static_cast<size_t>(got));
    if (std::count(text_out->begin(), text_out->end(), '\0') == 3) return true;
  }
}

// Whether the child ends in time. A component may close the pipe, which is not its own, and stay.
bool ends_in_time(pid_t child, Clock::time_point end) {
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0) {
    if (Clock::now() >= end) return false;
    usleep(1000);
  }
  return true;
}

Verdict parse(const std::string& text) {
  Verdict verdict;
  std::string* const parts[] = {&verdict.rule, &verdict.words, &verdict.skipped};
  size_t at = 0;
  for (std::string* part : parts) {
    *part = text.c_str() + at;
    at += part->size() + 1;
  }
  return verdict;
}

// R9: a component ends no process.
Verdict ended(const Task& task, int status) {
  Verdict verdict;
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT) {
    verdict.breaks(task.rule, std::string("it crashes: ") +
                                  strsignal(WTERMSIG(status)));  // NOLINT(concurrency-mt-unsafe): one thread
  } else {
    verdict.breaks("R9", "it ends the process, by abort or exit");
  }
  return verdict;
}

Result run(const Task& task, unsigned seconds) {
  int ends[2];
  Result result{task.claim, {}};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    result.verdict.skipped = "no pipe can be made";
    return result;
  }
  const pid_t child = fork();
  if (child == 0) run_in_child(task, ends[1], seconds);
  close(ends[1]);
  std::string text;
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  bool in_time = child > 0 && listen(ends[0], end, &text);
  close(ends[0]);
  int status = 0;
  const bool whole = std::count(text.begin(), text.end(), '\0') == 3;
  if (in_time && !whole) in_time = ends_in_time(child, end);
  if (child > 0) {
    if (!in_time || whole) kill(-child, SIGKILL);
    if (!in_time || whole) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (!in_time) {
    result.verdict.breaks(task.rule, "it did not return within " + std::to_string(seconds) + " s");
  } else {
    result.verdict = whole ? parse(text) : ended(task, status);
  }
  return result;
}

// The suite of registrars learns the facts anew in each process, because the component's code runs there only.
void check_registrar(const File& file, const test::RegistrarCheck& check, Verdict* verdict) {
  const pinrail_component_t* component = load(file, verdict);
  if (component == nullptr) return;
  test::Subject subject;
  subject.name = loader::text_of(component->name);
  subject.open = [component](std::unique_ptr<test::Device>* device_out, std::string* why_out) {
    return test::ComponentDevice::open(*component, {}, nullptr, device_out, why_out);
  };
  std::string why;
  const Status learned = test::learn(&subject, &why);
  APPLIES_IF(!learned.is(PINRAIL_ERR_NOT_AVAILABLE), "it is not available here: " + why);
  KEEPS("C3", learned.ok(), std::string("open() or create() returns ") + status_name(learned.code()) + ": " + why);
  APPLIES_IF(test::is_for(check, subject), "it is for registrars that pin pages, or that move bytes");
  test::run_registrar_check(subject, check, verdict);
}

std::vector<Task> tasks_of(const File& file) {
  std::vector<Task> tasks;
  const auto add = [&](const std::vector<FileCheck>& checks) {
    for (const FileCheck& check : checks) {
      tasks.push_back({check.rule, check.claim, [&check, &file](Verdict* verdict) { check.run(file, verdict); }});
    }
  };
  add(component_checks());
  if (file.framework == "rcache") add(rcache_checks());
  if (file.framework == "mpool") add(mpool_checks());
  if (file.framework == "monitor") add(monitor_checks());
  if (file.framework != "registrar") return tasks;
  for (const test::RegistrarCheck& check : test::registrar_checks()) {
    tasks.push_back(
        {check.rule, check.claim, [&check, &file](Verdict* verdict) { check_registrar(file, check, verdict); }});
  }
  return tasks;
}

void print_text(const Options& options, const std::vector<Result>& results) {
  size_t kept = 0, skipped = 0, broken = 0;
  for (const Result& result : results) {
    const Verdict& verdict = result.verdict;
    if (!verdict.kept()) {
      ++broken;
      std::cout << verdict.rule << " broken   " << verdict.words << "\n"
                << "            in the check: " << sentence(result.claim) << "\n";
    } else if (!verdict.skipped.empty()) {
      ++skipped;
      if (options.all) std::cout << "   skipped  " << sentence(result.claim) << ": " << verdict.skipped << "\n";
    } else {
      ++kept;
      if (options.all) std::cout << "   kept     " << sentence(result.claim) << "\n";
    }
  }
  std::cout << options.file.path << ": " << kept << " checks kept, " << broken << " broken, " << skipped
            << " not applicable here\n";
}

void print_json(const Options& options, const std::vector<Result>& results) {
  nlohmann::ordered_json document;
  document["framework"] = options.framework;
  document["file"] = options.file.path;
  std::set<std::string> rules;
  document["broken"] = nlohmann::ordered_json::array();
  document["checks"] = nlohmann::ordered_json::array();
  for (const Result& result : results) {
    const Verdict& verdict = result.verdict;
    nlohmann::ordered_json check;
    check["check"] = result.claim;
    check["result"] = !verdict.kept() ? "broken" : verdict.skipped.empty() ? "kept" : "skipped";
    if (!verdict.kept()) check["rule"] = verdict.rule;
    if (!verdict.words.empty() || !verdict.skipped.empty()) {
      check["why"] = verdict.kept() ? verdict.skipped : verdict.words;
    }
    if (!verdict.kept()) rules.insert(verdict.rule);
    document["checks"].push_back(check);
  }
  for (const std::string& rule : rules) document["broken"].push_back(rule);
  tools::print(document, std::cout);
}

std::string take_framework(const std::string& value) {
  for (const char* one : {"mpool", "rcache", "registrar", "monitor"}) {
    if (value == one) return "";
  }
  return "\"" + value + "\" is none of mpool, rcache, registrar, monitor";
}

int check(const Options& options) {
  // The component's first check says whether it can be loaded; without that the others would repeat it.
  std::vector<Result> results;
  for (const Task& task : tasks_of(options.file)) {
    results.push_back(run(task, options.seconds));
    const std::string& rule = results.back().verdict.rule;
    if (results.size() == 1 && !rule.empty()) break;
  }
  if (options.json) {
    print_json(options, results);
  } else {
    print_text(options, results);
  }
  const bool kept = std::all_of(results.begin(), results.end(), [](const Result& one) { return one.verdict.kept(); });
  return tools::close_output("pinrail_conform", kept ? 0 : 1);
}

}  // namespace
}  // namespace pinrail::conform

int main(int argc, char** argv) {
  using namespace pinrail::conform;
  Options options;
  pinrail::tools::Pairs mca;
  pinrail::tools::CommandLine line("pinrail_conform", "Does a component keep the promises of its framework?", kNotes,
                                   &mca);
  line.argument("FRAMEWORK", "of the component", [&](const std::string& value) {
    options.framework = options.file.framework = value;
    return take_framework(value);
  });
  line.argument("FILE.so", "the component", [&](const std::string& value) {
    options.file.path = value.find('/') == std::string::npos ? "./" + value : value;
    return std::string();
  });
  line.flag("--json", "one JSON document", &options.json);
  line.flag("--all", "name the checks that were kept or skipped, too", &options.all);
  line.number("--seconds", "N", "time of each check (20)", 1, 600, &options.seconds);
  line.text("--components", "DIR", "where the other components are that a pool needs", &options.file.other_components);
  if (const std::optional<int> status = line.read(argc, argv, std::cout, std::cerr)) {
    return pinrail::tools::close_output("pinrail_conform", *status);
  }
  for (const auto& one : mca) setenv(("PINRAIL_MCA_" + one.first).c_str(), one.second.c_str(), 1);
  return check(options);
}
