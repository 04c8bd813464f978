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

Status refuse(const char* topic, const char* name, pinrail_status_t status) {
  report::help("rcache", kHelp, topic, {{"name", name}});
  return status;
}

// Whether the functions that are not optional are there.
bool is_complete(const pinrail_rcache_ops_t& ops) {
  return ops.create != nullptr && ops.destroy != nullptr && ops.find != nullptr && ops.find_or_announce != nullptr &&
         ops.reannounce != nullptr && ops.withdraw != nullptr && ops.publish != nullptr && ops.remove != nullptr &&
         ops.invalidate_hook != nullptr && ops.count != nullptr;
}

}  // namespace

pinrail_rcache_ops_t completed(pinrail_rcache_ops_t ops) {
  if (ops.check == nullptr) ops.check = [](auto...) { return PINRAIL_SUCCESS; };
  return ops;
}

Status create(const loader::Loader& loader, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out) {
  const bool any = name == nullptr || *name == '\0';
  for (const loader::Opened& opened : loader.opened("rcache")) {
    if (!any && std::strcmp(opened.descriptor->name, name) != 0) continue;
    const auto* ops = static_cast<const pinrail_rcache_ops_t*>(opened.descriptor->ops);
    if (!is_complete(*ops)) return refuse("incomplete rcache", opened.descriptor->name, PINRAIL_ERR_ERROR);
    void* module = nullptr;
    const Status status = loader::answer_of_component([&] { return ops->create(opened.context, flags, &module); });
    if (status.ok()) *rcache_out = {module, completed(*ops)};
    return status;
  }
  return refuse("no such rcache", any ? "any" : name, PINRAIL_ERR_NOT_FOUND);
}

}  // namespace pinrail::rcache
