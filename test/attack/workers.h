// SPDX-License-Identifier: BSD-3-Clause
// workers.h - threads of which one at a time does something.
#ifndef PINRAIL_TEST_ATTACK_WORKERS_H
#define PINRAIL_TEST_ATTACK_WORKERS_H

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pinrail::attack {

// Runs what it is handed, on a thread of its own.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Returns when the thread has done it.
  void run(const std::function<void()>& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    changed_.notify_all();
    changed_.wait(lock, [this] { return task_ == nullptr; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return task_ != nullptr || ends_; });
      if (task_ == nullptr) return;
      lock.unlock();
      (*task_)();
      lock.lock();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  bool ends_ = false;
  std::thread thread_;  // last: it begins when all else is there
};

class Workers {
 public:
  explicit Workers(size_t size) : workers_(size), busy_(size, false) {
    for (auto& worker : workers_) worker = std::make_unique<Worker>();
  }

  size_t size() const { return workers_.size(); }
  bool is_busy(size_t index) const { return busy_[index]; }
  // The worker that was handed a task last; size(): none.
  size_t innermost() const { return stack_.empty() ? size() : stack_.back(); }

  void run(size_t index, const std::function<void()>& task) {
    busy_[index] = true;
    stack_.push_back(index);
    workers_[index]->run(task);
    stack_.pop_back();
    busy_[index] = false;
  }
  // The thread ends, and another one takes its place.
  void replace(size_t index) {
    workers_[index].reset();
    workers_[index] = std::make_unique<Worker>();
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<bool> busy_;
  std::vector<size_t> stack_;
};

}  // namespace pinrail::attack

#endif
