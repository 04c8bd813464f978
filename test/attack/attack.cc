// SPDX-License-Identifier: BSD-3-Clause
// attack - random calls of pools beside a model of the rules; what it finds it can replay and shorten.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "test/attack/world.h"

namespace pinrail::attack {
namespace {

constexpr char kHelp[] =
    "attack - random calls of pools beside a model of the rules R1 to R13, E1 and E2\n"
    "  --seed N       the first seed (default 1)\n"
    "  --worlds N     how many seeds, one after the other, each in a process of its own (default 200)\n"
    "  --steps N      steps of each (default 600)\n"
    "  --seconds N    go on with further seeds for so long\n"
    "  --threads N    instead: so many threads at once, with looser checks, for each seed\n"
    "  --only A,B,C   these steps only, by number\n"
    "  --tolerate T   goes on after faults whose text contains this; may be given more than once\n"
    "  --minimise     of the first seed that fails, leave out what can be left out, and print the rest\n"
    "Without an option: the defaults, then ten seeds with four threads.\n"
    "A failure prints what was done last, and the command that does it again. Exit status 1 then.\n";

struct Options {
  uint64_t seed = 1, worlds = 200, steps = 600, seconds = 0;
  size_t threads = 0;
  std::vector<uint64_t> only;
  std::vector<std::string> tolerated;
  bool minimises = false;
};

enum class Output { shown, hidden };

uint64_t seed_of(uint64_t world, uint64_t step) {
  uint64_t mixed = world * 0x9e3779b97f4a7c15 + step;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

// An exit status for each kind of fault, which is what stands before the colon.
int status_of(const std::string& fault) {
  constexpr size_t kStatuses = 120;
  return static_cast<int>(1 + std::hash<std::string>()(fault.substr(0, fault.find(':') + 24)) % kStatuses);
}

// In a process of its own: true if nothing was wrong.
bool run_steps(const Options& given, uint64_t seed, const std::vector<uint64_t>& steps, uint64_t* failed_step_out) {
  World world(seed, given.tolerated);
  for (const uint64_t step : steps) {
    *failed_step_out = step;
    world.step(seed_of(seed, step));
    if (!world.model().fault().empty()) break;
  }
  if (world.model().fault().empty()) world.end();
  if (world.model().fault().empty()) return true;
  for (const std::string& line : world.trace()) std::printf("    %s\n", line.c_str());
  std::printf("seed %" PRIu64 " step %" PRIu64 ": %s\n", seed, *failed_step_out, world.model().fault().c_str());
  std::fflush(stdout);
  // Threads may wait in calls, and pools are as they are.
  _exit(status_of(world.model().fault()));
}

// Forks, for a process that failed is of no use any more, and one that hangs can be ended.
int status_after(const Options& given, uint64_t seed, const std::vector<uint64_t>& steps, Output output) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    constexpr unsigned kMaxSeconds = 120;
    alarm(kMaxSeconds);
    if (output == Output::hidden) {
      (void)!std::freopen("/dev/null", "w", stdout);
      (void)!std::freopen("/dev/null", "w", stderr);
    }
    uint64_t step = 0;
    const bool passed =
        given.threads != 0 ? run_threads(seed, given.threads, given.steps) : run_steps(given, seed, steps, &step);
    std::fflush(stdout);
    _exit(passed ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && output == Output::shown) {
    std::printf("seed %" PRIu64 ": ended by signal %d\n", seed, WTERMSIG(status));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

std::string list_of(const std::vector<uint64_t>& steps) {
  std::string text;
  for (const uint64_t step : steps) text += (text.empty() ? "" : ",") + std::to_string(step);
  return text;
}

// Leaves out pieces as long as it fails in the same way without them, larger ones first.
std::vector<uint64_t> minimised(const Options& given, std::vector<uint64_t> steps, int failure) {
  for (size_t piece = steps.size() / 2; piece != 0; piece /= 2) {
    for (size_t at = 0; at < steps.size();) {
      std::vector<uint64_t> fewer(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(at));
      const size_t end = std::min(at + piece, steps.size());
      fewer.insert(fewer.end(), steps.begin() + static_cast<std::ptrdiff_t>(end), steps.end());
      if (status_after(given, given.seed, fewer, Output::hidden) == failure) {
        steps = std::move(fewer);
      } else {
        at += piece;
      }
    }
  }
  return steps;
}

std::vector<uint64_t> steps_of(const Options& given) {
  if (!given.only.empty()) return given.only;
  std::vector<uint64_t> steps(given.steps);
  for (uint64_t i = 0; i < given.steps; ++i) steps[i] = i;
  return steps;
}

int run(Options given) {
  const std::time_t begin = std::time(nullptr);
  const uint64_t first = given.seed;
  uint64_t done = 0;
  const auto goes_on = [&] {
    if (given.seconds == 0) return done < given.worlds;
    return std::time(nullptr) - begin < static_cast<std::time_t>(given.seconds);
  };
  for (uint64_t seed = first; goes_on(); ++seed, ++done) {
    given.seed = seed;
    const int status = status_after(given, seed, steps_of(given), Output::shown);
    if (status == 0) continue;
    const std::string mode = given.threads != 0 ? " --threads " + std::to_string(given.threads) : "";
    std::printf("failed; again: test/attack/attack --seed %" PRIu64 " --worlds 1 --steps %" PRIu64 "%s\n", seed,
                given.steps, mode.c_str());
    if (given.minimises && given.threads == 0) {
      const std::vector<uint64_t> steps = minimised(given, steps_of(given), status);
      status_after(given, seed, steps, Output::shown);
      std::printf("shortest: test/attack/attack --seed %" PRIu64 " --worlds 1 --only %s\n", seed,
                  list_of(steps).c_str());
    }
    return 1;
  }
  std::printf("attack: %" PRIu64 " seeds from %" PRIu64 " on, %" PRIu64 " steps each, nothing was wrong\n", done, first,
              given.steps);
  return 0;
}

bool parse(int count, char** arguments, Options* options) {
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--minimise") {
      options->minimises = true;
      continue;
    }
    if (i + 1 == count) return false;
    const char* const value = arguments[++i];
    const uint64_t number = std::strtoull(value, nullptr, 10);
    if (name == "--seed") {
      options->seed = number;
    } else if (name == "--worlds") {
      options->worlds = number;
    } else if (name == "--steps") {
      options->steps = number;
    } else if (name == "--seconds") {
      options->seconds = number;
    } else if (name == "--threads") {
      options->threads = number;
    } else if (name == "--tolerate") {
      options->tolerated.emplace_back(value);
    } else if (name == "--only") {
      for (const char* at = value; at != nullptr && *at != '\0'; at = std::strchr(at, ',')) {
        if (*at == ',') ++at;
        options->only.push_back(std::strtoull(at, nullptr, 10));
      }
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace pinrail::attack

int main(int count, char** arguments) {
  pinrail::attack::Options options;
  if (!pinrail::attack::parse(count, arguments, &options)) {
    std::fputs(pinrail::attack::kHelp, stderr);
    return 2;
  }
  const int status = pinrail::attack::run(options);
  if (count > 1 || status != 0) return status;
  options.threads = 4;
  options.worlds = 10;
  options.steps = 4000;
  return pinrail::attack::run(options);
}
