// SPDX-License-Identifier: BSD-3-Clause
// What a miss registers beside what was asked for, and what is learned from what becomes of it. API context, but
// died_hook(). No lock is taken.
#include "components/mpool/grdma/grdma_extent.h"

namespace pinrail::grdma {

// Where the windows rest, it is one miss less until they are tried again.
Span Extents::window_for(const Span& asked) {
  const int chances = chances_.load(std::memory_order_relaxed);
  if (chances < 0) chances_.store(chances == -1 ? kChancesLater : chances + 1, std::memory_order_relaxed);
  if (chances <= 0 || (seen_at(asked) & kRefusesWider) != 0) return asked;
  Span window{asked.base & ~(window_ - 1), (asked.end + window_ - 1) & ~(window_ - 1)};
  if (window.end < asked.end) window.end = asked.end;
  return window;
}

void Extents::note_refused_wider(const Span& asked, bool lacks_room) {
  if (lacks_room) return chances_.store(-kRest, std::memory_order_relaxed);
  if (all_rights_) note_refused_rights(asked);
  note(asked, seen_at(asked) | kRefusesWider);
}

void Extents::mark_wider(pinrail_registration_t* reg, const Span& asked) {
  const Span whole = span_of(reg);
  const auto pages = [](uintptr_t bytes) {
    return static_cast<uint32_t>(std::min<uintptr_t>(bytes >> kPageShift, kMostPages));
  };
  reg->link = kWider | pages(asked.base - whole.base) << kBeforeShift | pages(whole.end - asked.end);
}

// Counts a hit that the wider part earned: a request beyond what was first asked for. The caller has a reference, and
// `link` is the word with the flag. By an exchange, because a displacement may use the word for its tree meanwhile, in
// which it never has the flag.
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

// A wider registration that has answered too little for its pages costs a chance (grdma_extent/X2).
void Extents::died_hook(const pinrail_registration_t* reg) {
  const uint32_t link = __atomic_load_n(&reg->link, __ATOMIC_RELAXED);
  const uint32_t before = link >> kBeforeShift & kMostPages, behind = link & kMostPages;
  const bool is_wider = (link & kWider) != 0;
  Span where = span_of(reg);
  if (is_wider) where.base += uintptr_t{before} << kPageShift;
  if (seen_at(where) != 0) note(where, 0);
  const uint32_t answers = (link & ~kWider) >> kAnswersShift;
  if (!is_wider || answers * kPagesOfACall >= before + behind) return;
  lost_.fetch_add(1, std::memory_order_relaxed);
  const int chances = chances_.load(std::memory_order_relaxed);
  if (chances > 0) chances_.store(chances == 1 ? -kRest : chances - 1, std::memory_order_relaxed);
}

}  // namespace pinrail::grdma
