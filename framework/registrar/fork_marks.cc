// SPDX-License-Identifier: BSD-3-Clause
// Marks and unmarks ranges; mark() and unmark() hold `mutex` across madvise(). API context; the callers hold no lock.
#include "framework/registrar/fork_marks.h"

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "base/core/page_counts.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/lock.h"

namespace pinrail::fork_marks {
namespace {

constexpr size_t kLargestPage = size_t{16} << 30;

enum Choice : int64_t { kAuto = -1, kNever, kAlways };
constexpr pinrail_enum_value_t kChoices[] = {{kAuto, "auto"}, {kNever, "never"}, {kAlways, "always"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "fork_marks", "auto",
     "Whether memory is kept out of forked children while a device has it pinned (madvise DONTFORK). auto: on kernels "
     "before 5.12, where a device could otherwise go on with pages that are the child's after a fork. A child that "
     "touches memory that is marked ends with SIGSEGV.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 6, kChoices, 0, 0, nullptr}};

bool is_needed = false;  // written at start-up

Mutex mutex{LockRank::leaf};
Forever<PageCounts> counts GUARDED_BY(mutex);

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Calls attempt(span), and for hugetlbfs again with the span extended to whole huge pages: madvise refuses parts of
// them.
template <typename Try>
bool with_whole_pages(Span span, Try attempt) {
  if (attempt(span)) return true;
  for (size_t page = 2 * page_bytes(); errno == EINVAL && page <= kLargestPage; page *= 2) {
    Span whole = span;
    if (!round_out(&whole, page)) return false;
    if (attempt(whole)) return true;
  }
  return false;
}

bool advise(Span span, int advice) { return madvise(pointer(span.base), span.length(), advice) == 0; }

// Whether no page of the span has a count.
bool is_unheld_locked(Span span) REQUIRES(mutex) {
  size_t free = 0;
  counts->for_each_unheld(span, [&](Span piece) { free += piece.length(); });
  return free == span.length();
}

// Unmarks the pages of the span that have no count. A large page stays marked while a part of it has one.
void unmark_unheld_locked(Span span) REQUIRES(mutex) {
  counts->for_each_unheld(span, [](Span piece) NO_THREAD_SAFETY_ANALYSIS {  // runs inside the call, under the mutex
    with_whole_pages(piece, [](Span whole) NO_THREAD_SAFETY_ANALYSIS {
      return !is_unheld_locked(whole) || advise(whole, MADV_DOFORK);
    });
  });
}

// Marks the span and counts its pages. BAD_PARAM: a part is not mapped. OUT_OF_RESOURCE: no memory, or too many
// mappings.
Status mark_locked(Span span) REQUIRES(mutex) {
  if (with_whole_pages(span, [](Span whole) { return advise(whole, MADV_DONTFORK); })) return counts->add(span);
  return errno == EAGAIN ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_BAD_PARAM;
}

}  // namespace

Status declare(param::Registry* params) {
  return params->declare("registrar", "", kParams, sizeof(kParams) / sizeof(kParams[0]));
}

void start(const param::Registry& params) {
  const int64_t choice = params.value("registrar_fork_marks").i;
  utsname kernel{};
  is_needed = choice == kAlways || (choice == kAuto && (uname(&kernel) != 0 || kernel_shares_pins(kernel.release)));
}

bool needed() { return is_needed; }

// Marks and counts the span; on an error no page stays marked that was not before. Takes `mutex`.
Status mark(Span span) {
  if (!round_out(&span, page_bytes())) return PINRAIL_ERR_BAD_PARAM;
  Guard guard(mutex);
  const Status status = mark_locked(span);
  if (!status.ok()) unmark_unheld_locked(span);
  return status;
}

// Uncounts the span and unmarks what has no count left; is_gone: its memory was unmapped, so marks stay. Takes
// `mutex`.
void unmark(Span span, bool is_gone) {
  if (!round_out(&span, page_bytes())) return;  // nor could it be marked
  Guard guard(mutex);
  if (counts->remove(span, [](Span) {}).ok() && !is_gone) unmark_unheld_locked(span);
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  replace_in_child(&counts);
}

}  // namespace pinrail::fork_marks
