// SPDX-License-Identifier: BSD-3-Clause
// threads.h - the threads of this process as the kernel names them, waiting for something without a fixed time, how
// much of it there is to do, and several threads that do the same.
#ifndef PINRAIL_TEST_SUPPORT_THREADS_H
#define PINRAIL_TEST_SUPPORT_THREADS_H

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace pinrail::test {

// What the kernel says of this thread under that name in its status; empty if there is no such thread.
inline std::string status_of(const std::string& thread, const std::string& name) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(name + ":\t", 0) == 0) return line.substr(name.size() + 2);
  }
  return {};
}
// The number of the thread of that name; empty: there is none.
inline std::string thread_called(const std::string& name) {
  DIR* const tasks = opendir("/proc/self/task");
  std::string found;
  while (const dirent* task = tasks == nullptr ? nullptr : readdir(tasks)) {
    if (status_of(task->d_name, "Name") == name) found = task->d_name;
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}
inline bool has_thread(const std::string& name) { return !thread_called(name).empty(); }

// The signals that the thread of that name blocks, as a mask; -1: there is no such thread, and 0 may be an answer.
inline int64_t blocked_signals_of(const std::string& name) {
  const std::string mask = status_of(thread_called(name), "SigBlk");
  return mask.empty() ? -1 : std::strtoll(mask.c_str(), nullptr, 16);
}

// How long this thread has had a processor.
inline std::chrono::nanoseconds own_cpu_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

inline bool sleeps(const std::string& thread) { return status_of(thread, "State").rfind('S', 0) == 0; }

// What make check does of what takes long, or all of it (test/README).
template <typename Amount>
Amount short_or_long(Amount in_short, Amount in_long) {
  return std::getenv("PINRAIL_TEST_LONG") != nullptr ? in_long : in_short;
}

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

// body(i), or body(), on each of `count` threads, until join() or the end of the scope.
class Team {
 public:
  template <typename Count, typename Body>
  Team(Count count, const Body& body) {
    for (Count i = 0; i < count; ++i) {
      if constexpr (std::is_invocable_v<const Body&>) {
        threads_.emplace_back(body);
      } else {
        threads_.emplace_back(body, i);
      }
    }
  }
  ~Team() { join(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

template <typename Count, typename Body>
void on_threads(Count count, const Body& body) {
  Team(count, body).join();
}

}  // namespace pinrail::test

#endif
