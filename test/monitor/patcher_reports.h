// SPDX-License-Identifier: BSD-3-Clause
// patcher_reports.h - what a test of monitor/patcher asks of its reports, and calls of the C library that it may lack.
#ifndef PINRAIL_TEST_MONITOR_PATCHER_REPORTS_H
#define PINRAIL_TEST_MONITOR_PATCHER_REPORTS_H

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <string>
#include <vector>

#include "base/core/kernel.h"
#include "test/monitor/patcher_host.h"

namespace pinrail::test {

constexpr size_t kPage = kPageBytes;

// The functions of libc as a program calls them, looked up so that no compiler knows better.
inline int pidfd_of_self() { return static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)); }

// The C library's process_madvise(); before glibc 2.36 it has none.
inline ssize_t advise_process(int process, const iovec* list, size_t count, int advice, unsigned flags) {
  using Function = ssize_t(int, const iovec*, size_t, int, unsigned);
  static auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "process_madvise"));
  if (function != nullptr) return function(process, list, count, advice, flags);
  return syscall(SYS_process_madvise, process, list, count, advice, flags);
}

#define NEED_PATCHER(patcher) ASSERT_EQ((patcher).status, PINRAIL_SUCCESS) << testing::PrintToString((patcher).said())

// The range came, whole and exact, first of all that touch it, and while the memory still held its marks.
inline testing::AssertionResult came_first(const Patcher& patcher, uintptr_t base, size_t length) {
  const std::vector<Report> found = patcher.recorder.touching(base, length);
  if (found.empty()) return testing::AssertionFailure() << "no report";
  const Report& first = found.front();
  if (first.base != base || first.length != length) {
    return testing::AssertionFailure() << "[" << std::hex << first.base << ", +" << first.length << ") instead of ["
                                       << base << ", +" << length << ")";
  }
  if (!first.marked) return testing::AssertionFailure() << "the kernel had acted already";
  return testing::AssertionSuccess();
}

// It came after the kernel had acted: what stands there now is new.
inline bool came_after(const Patcher& patcher, uintptr_t base, size_t length) {
  for (const Report& report : patcher.recorder.touching(base, length)) {
    if (report.base == base && report.length == length && !report.marked) return true;
  }
  return false;
}

// A patcher that works.
class PatcherEvents : public testing::Test {
 protected:
  void SetUp() override { NEED_PATCHER(patcher_); }
  testing::AssertionResult came_first(uintptr_t base, size_t length) const {
    return test::came_first(patcher_, base, length);
  }
  bool came_after(uintptr_t base, size_t length) const { return test::came_after(patcher_, base, length); }
  std::vector<Report> touching(uintptr_t base, size_t length) const { return patcher_.recorder.touching(base, length); }
  std::vector<Report> reports() const { return patcher_.recorder.reports(); }
  void clear() { patcher_.recorder.clear(); }
  // Marked pages; reports are those since then.
  uintptr_t marked(size_t pages, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
    const uintptr_t base = marked_pages(pages, flags);
    clear();
    return base;
  }
  Patcher patcher_;
};

inline std::string first_bytes(const char* name) { return {static_cast<const char*>(at(libc_function(name))), 16}; }

}  // namespace pinrail::test

#endif
