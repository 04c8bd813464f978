// SPDX-License-Identifier: BSD-3-Clause
// Which parts of a range are registered? API context; the caller holds no lock.
#include <vector>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Drops a reference without recording a use, so that the order of eviction stays as it was.
void Pool::drop_unused(pinrail_thread_t* thread, pinrail_handle_t handle) {
  if (!references::drop_own(thread, handle.reg)) return Status(drop_elsewhere(thread, handle)).ignore();
  const uint64_t after = state::load(handle.reg);
  if ((after & state::kDead) != 0) finish_dead(thread, handle, after);
}

Status Pool::query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg) {
  if (rcache_.ops.find_all == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  std::vector<pinrail_registration_t*> regs(16);
  std::vector<Span> spans;
  size_t count;
  for (;;) {
    spans.reserve(regs.size());  // nothing may throw while references are held
    count = rcache_.ops.find_all(rcache_.module, thread, span.base, span.length(), regs.data(), regs.size());
    if (count <= regs.size()) break;
    for (pinrail_registration_t* reg : regs) drop_unused(thread, {reg, generation_of(reg)});
    regs.resize(count + 16);  // room for some that come meanwhile
  }
  for (size_t i = 0; i < count; ++i) {
    const pinrail_registration_t& reg = *regs[i];
    const bool answers =
        (access & PINRAIL_RIGHTS_MASK & ~reg.rights) == 0 && (access & PINRAIL_TRAITS_MASK) == reg.traits;
    if (answers) spans.push_back(span_of(&reg));
    drop_unused(thread, {regs[i], generation_of(regs[i])});
  }
  for (const Span& each : spans) visit(arg, each.base, each.length());
  return success();
}

}  // namespace pinrail::grdma
