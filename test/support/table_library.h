// SPDX-License-Identifier: BSD-3-Clause
// table_library.h - an initialised library and one pool over a registrar that is a table, for programs without
// GoogleTest.
#ifndef PINRAIL_TEST_SUPPORT_TABLE_LIBRARY_H
#define PINRAIL_TEST_SUPPORT_TABLE_LIBRARY_H

#include <pinrail/pinrail.h>

#include <vector>

#include "test/support/host_table.h"

namespace pinrail::test {

// NULL if something of it cannot be had. leave_pinned is 1 in the pool's options unless the caller says otherwise.
inline pinrail_mpool_t* open_library_with_table(std::vector<pinrail_setting_t> settings,
                                                pinrail_status_t (*register_mem)(void*,
                                                                                 const pinrail_register_request_t*,
                                                                                 pinrail_registration_t*),
                                                pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT) {
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings.data();
  options.setting_count = settings.size();
  if (pinrail_init(&options) != PINRAIL_SUCCESS) return nullptr;
  pinrail_registrar_t table = host_table(nullptr);
  table.register_mem = register_mem;
  pinrail_registrar_choice_t choice{};
  choice.table = &table;
  if (wanted.leave_pinned == PINRAIL_UNSET) wanted.leave_pinned = 1;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create("grdma", &choice, nullptr, &wanted, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

}  // namespace pinrail::test

#endif
