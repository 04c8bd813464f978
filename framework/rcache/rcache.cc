// SPDX-License-Identifier: BSD-3-Clause
// Selection of a pool's index. API context, while a pool is created; the caller holds no lock.
#include "framework/rcache/rcache.h"

#include <cstring>

#include "base/report/report.h"

namespace pinrail::rcache {
namespace {

constexpr char kHelp[] =
#include "framework/rcache/rcache_help.txt"
    ;

}  // namespace

Status create(const loader::Loader& loader, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out) {
  const bool any = name == nullptr || *name == '\0';
  for (const loader::Opened& opened : loader.opened("rcache")) {
    if (!any && std::strcmp(opened.descriptor->name, name) != 0) continue;
    const auto* ops = static_cast<const pinrail_rcache_ops_t*>(opened.descriptor->ops);
    void* module = nullptr;
    const Status status = ops->create(opened.context, flags, &module);
    if (status.ok()) *rcache_out = {ops, module};
    return status;
  }
  const pinrail_help_arg_t args[] = {{"name", any ? "any" : name}};
  report::help("rcache", kHelp, "no such rcache", args, 1);
  return PINRAIL_ERR_NOT_FOUND;
}

}  // namespace pinrail::rcache
