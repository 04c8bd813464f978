// SPDX-License-Identifier: BSD-3-Clause
// A component that does nothing, for tests of the loader: they copy its file, and change the copies' bytes.
#include <pinrail/component_mpool.h>

#include <cstddef>
#include <new>

namespace {

struct Context {
  const pinrail_host_t* host;
};

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t says{};
  const pinrail_status_t status = host->param(host, "open_says", &says);
  if (status != PINRAIL_SUCCESS) return status;
  if (says.i != 0) return static_cast<pinrail_status_t>(says.i);
  *context_out = new (std::nothrow) Context{host};
  host->log(host, PINRAIL_LOG_INFO, "opens");
  return *context_out != nullptr ? PINRAIL_SUCCESS : PINRAIL_ERR_OUT_OF_RESOURCE;
}

void close(void* context) {
  auto* it = static_cast<Context*>(context);
  it->host->log(it->host, PINRAIL_LOG_INFO, "closes");
  delete it;
}

const pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "open_says", "0", "What open() returns.", PINRAIL_TYPE_INT, PINRAIL_SCOPE_READONLY, 9,
     nullptr, 0, 0, nullptr},
};

// The text in front lets a test find the table in the file.
struct Table {
  char mark[16];
  pinrail_mpool_ops_t ops;
};
constexpr Table empty_table() {
  Table table{"the table of it", {}};
  table.ops.size = sizeof(table.ops);
  return table;
}
constexpr Table kTable = empty_table();

}  // namespace

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {sizeof(pinrail_component_t),
                                                      PINRAIL_MPOOL_ABI,
                                                      10,
                                                      "mpool",
                                                      "tiny",
                                                      "1.2.3",
                                                      "For tests.",
                                                      nullptr,
                                                      kParams,
                                                      1,
                                                      nullptr,
                                                      open,
                                                      close,
                                                      &kTable.ops};
