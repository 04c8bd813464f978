// SPDX-License-Identifier: BSD-3-Clause
// tasks.h - the threads of this process as the kernel names them, and waiting for something without a fixed time.
#ifndef PINRAIL_TEST_SUPPORT_TASKS_H
#define PINRAIL_TEST_SUPPORT_TASKS_H

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace pinrail::test {

// The signals that the thread of that name blocks, as a mask; -1: there is no such thread, and 0 may be an answer.
inline int64_t blocked_signals_of(const std::string& name) {
  DIR* const tasks = opendir("/proc/self/task");
  int64_t found = -1;
  while (const dirent* task = tasks == nullptr ? nullptr : readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + task->d_name;
    std::string line;
    std::ifstream comm(folder + "/comm");
    if (!std::getline(comm, line) || line != name) continue;
    std::ifstream status(folder + "/status");
    while (std::getline(status, line)) {
      if (line.rfind("SigBlk:", 0) == 0) found = std::strtoll(line.c_str() + 7, nullptr, 16);
    }
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}
inline bool has_thread(const std::string& name) { return blocked_signals_of(name) >= 0; }

// Looks until it is so; false after half a minute.
template <typename Condition>
bool comes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace pinrail::test

#endif
