// SPDX-License-Identifier: BSD-3-Clause
// host_table.h - a registrar's table for host memory, whose functions do nothing and may run on any number of threads.
// A test replaces what it needs. And pools over such a table, for tests that destroy them themselves.
#ifndef PINRAIL_TEST_SUPPORT_HOST_TABLE_H
#define PINRAIL_TEST_SUPPORT_HOST_TABLE_H

#include <pinrail/pinrail.h>
#include <pinrail/registrar.h>

#include <vector>

namespace pinrail::test {

inline pinrail_registrar_t host_table(const char* name, void* context = nullptr) {
  constexpr size_t kGranularity = 4096;
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = name;
  table.context = context;
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = kGranularity;
  table.register_mem = [](void*, const pinrail_register_request_t*, pinrail_registration_t*) {
    return PINRAIL_SUCCESS;
  };
  table.deregister_mem = [](void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; };
  return table;
}

// A pool over a table, whose leave_pinned is 1 unless the caller says otherwise. NULL if there is none to be had.
inline pinrail_mpool_t* make_grdma(const pinrail_registrar_t& lent,
                                   pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT) {
  pinrail_registrar_choice_t choice{};
  choice.table = &lent;
  if (wanted.leave_pinned == PINRAIL_UNSET) wanted.leave_pinned = 1;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create("grdma", &choice, nullptr, &wanted, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

// Initialises the library, too, for programs without GoogleTest. NULL if something of it cannot be had.
inline pinrail_mpool_t* open_library_with_table(const std::vector<pinrail_setting_t>& settings,
                                                decltype(pinrail_registrar_t::register_mem) register_mem,
                                                const pinrail_mpool_options_t& wanted = PINRAIL_MPOOL_OPTIONS_INIT) {
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings.data();
  options.setting_count = settings.size();
  if (pinrail_init(&options) != PINRAIL_SUCCESS) return nullptr;
  pinrail_registrar_t table = host_table(nullptr);
  table.register_mem = register_mem;
  return make_grdma(table, wanted);
}

}  // namespace pinrail::test

#endif
