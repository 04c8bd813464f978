// SPDX-License-Identifier: BSD-3-Clause
// team.h - several threads that do the same.
#ifndef PINRAIL_TEST_SUPPORT_TEAM_H
#define PINRAIL_TEST_SUPPORT_TEAM_H

#include <thread>
#include <type_traits>
#include <vector>

namespace pinrail::test {

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
