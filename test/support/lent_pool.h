// SPDX-License-Identifier: BSD-3-Clause
// lent_pool.h - a pool over a table of functions, for tests that look after it themselves.
#ifndef PINRAIL_TEST_SUPPORT_LENT_POOL_H
#define PINRAIL_TEST_SUPPORT_LENT_POOL_H

#include <pinrail/pinrail.h>

namespace pinrail::test {

// NULL if there is none to be had.
inline pinrail_mpool_t* make_grdma(const pinrail_registrar_t& lent, int64_t leave_pinned, const char* cache_name) {
  pinrail_registrar_choice_t choice{};
  choice.table = &lent;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = leave_pinned;
  pinrail_mpool_t* pool = nullptr;
  const pinrail_status_t made = pinrail_mpool_create("grdma", &choice, cache_name, &options, &pool);
  return made == PINRAIL_SUCCESS ? pool : nullptr;
}

}  // namespace pinrail::test

#endif
