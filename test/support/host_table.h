// SPDX-License-Identifier: BSD-3-Clause
// host_table.h - a registrar's table for host memory, whose functions do nothing and may run on any number of threads.
// A test replaces what it needs.
#ifndef PINRAIL_TEST_SUPPORT_HOST_TABLE_H
#define PINRAIL_TEST_SUPPORT_HOST_TABLE_H

#include <pinrail/registrar.h>

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

}  // namespace pinrail::test

#endif
