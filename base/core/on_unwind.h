// SPDX-License-Identifier: BSD-3-Clause
// on_unwind.h - what must be rolled back when an embedder's function does not return: it threw, or its thread ends
// inside it (pthread_exit, cancellation: forced unwinding).
//
// Threads  each object belongs to one thread.
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
