// SPDX-License-Identifier: BSD-3-Clause
// on_unwind.h - rolls back when an embedder's function does not return, because it throws or because its thread ends
// inside it (pthread_exit, cancellation: forced unwinding).
//
// Threads  An object is used by one thread.
// Context  start-up or API.
#ifndef PINRAIL_BASE_CORE_ON_UNWIND_H
#define PINRAIL_BASE_CORE_ON_UNWIND_H

#include <utility>

namespace pinrail {

// Calls the function if the scope is left before disarm().
template <typename Function>
class OnUnwind {
 public:
  explicit OnUnwind(Function function) : function_(std::move(function)) {}
  ~OnUnwind() {
    if (armed_) function_();
  }
  OnUnwind(const OnUnwind&) = delete;
  OnUnwind& operator=(const OnUnwind&) = delete;
  void disarm() { armed_ = false; }

 private:
  Function function_;
  bool armed_ = true;
};

}  // namespace pinrail

#endif
