// SPDX-License-Identifier: BSD-3-Clause
// fake_host.h - a host table for driving one component without the library.
//
// Owns     the component's parameters, what it logged and what help it asked for; registrations that it hands out.
// Threads  All functions may run together; set() before the component is opened.
//
// Services of param, param_info, log, help and registration memory are there; the rest of the table is NULL, or what
// the constructor was given.
#ifndef PINRAIL_TEST_FAKE_FAKE_HOST_H
#define PINRAIL_TEST_FAKE_FAKE_HOST_H

#include <pinrail/component_mpool.h>

#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace pinrail::fake {

struct FakeHelp {
  std::string topic;
  std::map<std::string, std::string> args;
};

class FakeHost {
 public:
  explicit FakeHost(const pinrail_component_t& component);
  // With these services besides.
  FakeHost(const pinrail_component_t& component, const pinrail_host_t& services);
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  const pinrail_host_t* table() const { return &table_; }

  // Overrides a parameter, as a user would type it. False if the component declares none of that name, or the value
  // does not parse.
  bool set(const std::string& name, const std::string& text);

  std::vector<std::string> lines() const { return locked(lines_); }  // what was logged, at any level
  std::vector<FakeHelp> helps() const { return locked(helps_); }
  // Topics that were asked for and that the component's own catalogue lacks. Empty if all is well.
  std::vector<std::string> missing_topics() const;
  // Parameters that were asked for and that the component does not declare (C7).
  std::vector<std::string> undeclared() const { return locked(undeclared_); }
  // From here on each use of the table is noted: the component was closed, so the table is gone (C2).
  void end();
  bool used_after_end() const { return locked(used_after_end_); }

 private:
  template <typename T>
  T locked(const T& member) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return member;
  }
  static FakeHost* of(const pinrail_host_t* host) { return static_cast<FakeHost*>(const_cast<void*>(host->self)); }
  pinrail_status_t read(const char* name, pinrail_param_value_t* value_out);
  void note(const char* line);
  void note(FakeHelp help);

  const pinrail_component_t& component_;
  pinrail_host_t table_{};
  pinrail_registration_services_t registrations_{};

  mutable std::mutex mutex_;  // guards everything below
  std::map<std::string, pinrail_param_value_t> values_;
  std::list<std::string> texts_;  // what string values point to
  std::vector<std::string> lines_;
  std::vector<FakeHelp> helps_;
  std::vector<std::string> undeclared_;
  bool ended_ = false, used_after_end_ = false;
};

}  // namespace pinrail::fake

#endif
