// SPDX-License-Identifier: BSD-3-Clause
// non_copyable.h - a base of classes whose objects are not copied, such as those that undo something at a scope's end.
// A class with a member that cannot be copied needs it not.
//
// Context  any.
#ifndef PINRAIL_BASE_CORE_NON_COPYABLE_H
#define PINRAIL_BASE_CORE_NON_COPYABLE_H

namespace pinrail {

class NonCopyable {
 public:
  NonCopyable(const NonCopyable&) = delete;
  NonCopyable& operator=(const NonCopyable&) = delete;

 protected:
  NonCopyable() = default;
  ~NonCopyable() = default;
};

}  // namespace pinrail

#endif
