// SPDX-License-Identifier: BSD-3-Clause
// table_verify.cc - the untimed checks of a row: coverage, bytes, budget, and memory that is remapped.
#include <algorithm>

#include "contrib/tools/perf/table.h"
#include "contrib/tools/perf/text.h"

namespace pinrail::perf {

namespace {

constexpr uint64_t kMaxLimitedSteps = 2000;
constexpr size_t kRemapped = 4;
// The pool adds up all registrations for its statistics, so with many of them not each step reads these.
constexpr uint64_t kMostBudgetChecks = 500;

std::string name_of_step(const Buffers& buffers, size_t index) {
  return text("%s, buffer %zu", size_text(buffers.size()).c_str(), index);
}

// More steps where a limit keeps some of the buffers out.
uint64_t steps_of(const Options& options, const Session& session, uint64_t buffers, size_t size) {
  const pinrail_mpool_stats_t stats = session.stats();
  if (stats.size_limit / size >= buffers && stats.count_limit >= buffers) return 2 * buffers;
  const uint64_t asked = options.iterations == 0 ? kMaxLimitedSteps : options.iterations;
  return std::max(2 * buffers, std::min(asked, kMaxLimitedSteps));
}

}  // namespace

void Table::verify(Buffers* buffers) {
  const std::vector<uint32_t> order = shuffled_order(buffers->count());
  const uint64_t steps = steps_of(options_, session_, buffers->count(), buffers->size());
  const uint64_t stride = 1 + steps / kMostBudgetChecks;
  for (uint64_t i = 0; i < steps; i++) {
    const Depth depth = i < 2 * buffers->count() ? Depth::bytes_too : Depth::coverage_only;
    const uint32_t index = order[i % order.size()];
    if (!verify_step(*buffers, index, depth)) return;
    if (i % stride == 0 || i + 1 == steps) budget_.check(name_of_step(*buffers, index));
    progress_.show(text("pinrail_perf: checking %s", size_text(buffers->size()).c_str()), i, steps);
  }
  if (buffers->pages() == Pages::small) verify_remapped(buffers);
}

void Table::verify_remapped(Buffers* buffers) {
  for (size_t i = 0; i < std::min(kRemapped, buffers->count()); i++) {
    const Result remapped = buffers->remap(i);
    if (!remapped.ok()) {
      errors_->add(remapped.why());
      return;
    }
    (void)pinrail_mpool_progress(session_.pool());
    if (!verify_step(*buffers, i, Depth::bytes_too)) return;
    budget_.check(name_of_step(*buffers, i));
  }
}

bool Table::verify_step(const Buffers& buffers, size_t index, Depth depth) {
  const std::string when = name_of_step(buffers, index);
  void* const addr = buffers.at(index);
  pinrail_handle_t handle;
  pinrail_status_t status = pinrail_mpool_register(session_.pool(), addr, buffers.size(), kAccess, 0, &handle);
  if (status != PINRAIL_SUCCESS) {
    errors_->add(when + ": register, with nothing in use: " + pinrail_status_name(status));
    return false;
  }
  const uint64_t now = changes_before_ + 1;
  const Asked asked = {addr, buffers.size(), kAccess, now + buffers.changed_at(index), now + buffers.changes()};
  if (depth == Depth::bytes_too)
    bytes_.check(asked, handle);
  else
    bytes_.check_coverage(asked, handle);
  status = pinrail_mpool_deregister(handle);
  if (status != PINRAIL_SUCCESS) errors_->add(when + ": deregister: " + pinrail_status_name(status));
  return status == PINRAIL_SUCCESS;
}

}  // namespace pinrail::perf
