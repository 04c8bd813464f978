// SPDX-License-Identifier: BSD-3-Clause
// Descriptor and operation table of rcache/vma. Each operation calls the function of Index of the same name. Callers
// hold no index lock. invalidate() runs in hook or API context, the others in API context; open() and close() run at
// start-up. Only find and find_or_announce hand out references.
#include <new>

#include "base/core/own_component.h"
#include "base/registration/shortcut.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {
namespace {

Index& index_of(void* module) { return static_cast<Module*>(module)->index; }

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  return shortcut::of(host) == nullptr ? PINRAIL_ERR_VERSION : keep_host(host, context_out);
}

pinrail_status_t create(void* component, uint32_t flags, void** module_out) {
  if ((flags & ~uint32_t{PINRAIL_RCACHE_EXACT}) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const auto* host = static_cast<const pinrail_host_t*>(component);
  auto* module = new (std::nothrow) Module(host, (flags & PINRAIL_RCACHE_EXACT) != 0);
  if (module == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *module_out = module;
  return PINRAIL_SUCCESS;
}

void destroy(void* module) { delete static_cast<Module*>(module); }

pinrail_status_t find(void* module, pinrail_thread_t*, uintptr_t base, size_t length, uint32_t access,
                      pinrail_registration_t** reg_out) {
  return index_of(module).find(Query::of(base, length, access), reg_out).code();
}

pinrail_status_t find_or_announce(void* module, pinrail_thread_t*, pinrail_announcement_t* announcement,
                                  pinrail_registration_t** reg_out) {
  return index_of(module).find_or_announce(announcement, reg_out).code();
}

void reannounce(void* module, pinrail_announcement_t* announcement, uintptr_t base, size_t length) {
  index_of(module).reannounce(announcement, Span::of(base, length));
}

pinrail_status_t withdraw(void* module, pinrail_announcement_t* announcement) {
  return index_of(module).withdraw(announcement).code();
}

pinrail_status_t publish(void* module, pinrail_thread_t*, pinrail_announcement_t* announcement,
                         pinrail_registration_t* reg, pinrail_visit_hook_t displaced_hook, void* arg) {
  return index_of(module).publish(announcement, reg, displaced_hook, arg).code();
}

pinrail_status_t remove(void* module, pinrail_registration_t* reg) { return index_of(module).remove(reg).code(); }

void invalidate(void* module, uintptr_t base, size_t length, pinrail_visit_hook_t visit_hook, void* arg) {
  index_of(module).invalidate_hook(Span::of(base, length), visit_hook, arg);
}

size_t count(void* module) { return index_of(module).count(); }

size_t visit_all(void* module, uintptr_t base, size_t length, void (*visit)(void*, pinrail_registration_t*),
                 void* arg) {
  return index_of(module).visit_all(Span::of(base, length), visit, arg);
}

pinrail_status_t check(void* module) {
  const char* why = index_of(module).check();
  if (why == nullptr) return PINRAIL_SUCCESS;
  const pinrail_host_t* host = static_cast<Module*>(module)->host;
  host->log(host, PINRAIL_LOG_ERROR, why);
  return PINRAIL_ERR_ERROR;
}

constexpr pinrail_rcache_ops_t kOps = {sizeof(pinrail_rcache_ops_t),
                                       create,
                                       destroy,
                                       find,
                                       find_or_announce,
                                       reannounce,
                                       withdraw,
                                       publish,
                                       remove,
                                       invalidate,
                                       count,
                                       visit_all,
                                       check};

constexpr pinrail_component_t kComponent =
    describe(PINRAIL_RCACHE_ABI, 50, "rcache", "vma", "Index of registrations by address; overlaps allowed.", open,
             forget_host, &kOps);

}  // namespace
}  // namespace pinrail::vma

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::vma::kComponent;
