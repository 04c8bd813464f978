// SPDX-License-Identifier: BSD-3-Clause
// What a miss registers beside what was asked for, and what is learned from what becomes of it. API context, but
// died_hook(). No lock is taken.
#include "components/mpool/grdma/grdma_extent.h"

namespace pinrail::grdma {
namespace {

// Of one step and the next: 2 MiB, 256 KiB, 64 KiB, 16 KiB, and nothing beside the range.
constexpr unsigned kShrinks[] = {0, 3, 5, 7};

}  // namespace

// A miss beside a registration that is there: the window may be too small. Where events come it is so by chance now and
// then, so it grows after some such misses without an event.
Span Extents::window_for(const Span& asked) {
  uint32_t seen = seen_at(asked);
  if ((seen & kRegistered) != 0) {
    const uint32_t misses = ((seen & kMisses) >> kMissesShift) + 1;
    const bool grows = misses == kMissesToGrow;
    seen = (seen & ~kMisses) | (grows ? 0 : misses << kMissesShift);
    if (grows) change_score(kGain);
    if (grows && steps_of(seen) != 0) seen = with_steps(seen, steps_of(seen) - 1);
    note(asked, seen);
  }
  const auto most = static_cast<uint32_t>(-score_.load(std::memory_order_relaxed) / 10);
  const uint32_t steps = std::max(steps_of(seen), most);
  if (steps >= kSmallest) return asked;
  const size_t size = window_ >> kShrinks[steps];
  Span window{asked.base & ~(size - 1), (asked.end + size - 1) & ~(size - 1)};
  if (window.end < asked.end) window.end = asked.end;
  return window;
}

void Extents::note_refused_wider(const Span& asked, bool lacks_room) {
  if (lacks_room) return score_.store(kLowest, std::memory_order_relaxed);
  if (all_rights_) note_refused_rights(asked);
  note(asked, with_steps(seen_at(asked), kSmallest));
}

void Extents::mark_wider(pinrail_registration_t* reg, const Span& asked) {
  const Span whole = span_of(reg);
  const auto pages = [](uintptr_t bytes) {
    return static_cast<uint32_t>(std::min<uintptr_t>(bytes >> kPageShift, kMostPages));
  };
  reg->link = kWider | pages(asked.base - whole.base) << kBeforeShift | pages(whole.end - asked.end);
}

// By an exchange, because a displacement may use the word for its tree meanwhile, in which it never has the flag.
void Extents::answered_by_wider(pinrail_registration_t* reg, uint32_t link, const Span& asked) {
  const Span whole = span_of(reg);
  const uintptr_t before = uintptr_t{link >> kBeforeShift & kMostPages} << kPageShift;
  const uintptr_t behind = uintptr_t{link & kMostPages} << kPageShift;
  if (Span{whole.base + before, whole.end - behind}.contains(asked)) return;
  hits_.fetch_add(1, std::memory_order_relaxed);
  if ((link & ~kWider) >> kAnswersShift == kMostAnswers) return;
  __atomic_compare_exchange_n(&reg->link, &link, link + (1u << kAnswersShift), false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

// What becomes of a wider registration is learned: what it has answered, beside its pages (grdma_extent/X2).
void Extents::died_hook(const pinrail_registration_t* reg) {
  const uint32_t link = __atomic_load_n(&reg->link, __ATOMIC_RELAXED);
  const uint32_t before = link >> kBeforeShift & kMostPages, behind = link & kMostPages;
  const bool is_wider = (link & kWider) != 0;
  Span where = span_of(reg);
  if (is_wider) where.base += uintptr_t{before} << kPageShift;
  const uint32_t known = seen_at(where);
  uint32_t seen = known & ~(kRefusesRights | kRegistered | kMisses);
  const uint32_t answers = (link & ~kWider) >> kAnswersShift;
  if (is_wider && answers * kPagesOfACall < before + behind) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    change_score(-kLoss);
    if (steps_of(seen) < kSmallest) seen = with_steps(seen, steps_of(seen) + 1);
  }
  if (seen != known) note(where, seen);
}

}  // namespace pinrail::grdma
