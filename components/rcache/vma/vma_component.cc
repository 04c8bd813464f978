// SPDX-License-Identifier: BSD-3-Clause
// Callers hold no index lock; operations that need it take it themselves. invalidate() runs in hook or API context, the
// others in API context; open() and close() run at start-up. Only find, find_elsewhere, begin, find_locked and find_all
// hand out references; remove, hide and unhide need none.
// Descriptor and operation table of rcache/vma. Each operation calls the Index function of the same name.
#include <new>
#include <string>

#include "components/rcache/vma/vma.h"

namespace pinrail::vma {
namespace {

// The context of the opened component.
struct Context {
  const pinrail_host_t* host;
};

Index& index_of(void* module) { return static_cast<Module*>(module)->index; }

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* context = new (std::nothrow) Context{host};
  if (context == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = context;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Context*>(context); }

pinrail_status_t create(void* component, uint32_t flags, void** module_out) {
  const auto* context = static_cast<Context*>(component);
  auto* module = new (std::nothrow) Module(context->host, (flags & PINRAIL_RCACHE_EXACT) != 0);
  if (module == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *module_out = module;
  return PINRAIL_SUCCESS;
}

void destroy(void* module) { delete static_cast<Module*>(module); }

pinrail_status_t begin(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access,
                       pinrail_registration_t** reg_out, uint32_t* rights_out) {
  return index_of(module).begin(thread, Query::of(base, length, access), reg_out, rights_out).code();
}

pinrail_status_t prepare(void* module, int announced) { return index_of(module).prepare(announced != 0).code(); }

void cancel(void* module) { index_of(module).cancel(); }

pinrail_status_t insert(void* module, const pinrail_thread_t* thread, pinrail_registration_t* reg,
                        pinrail_visit_hook_t displaced, void* arg) {
  return index_of(module).insert(thread, reg, displaced, arg).code();
}

pinrail_status_t remove(void* module, pinrail_registration_t* reg) { return index_of(module).remove(reg).code(); }

void hide(void* module, pinrail_registration_t* const* regs, size_t count) { index_of(module).hide(regs, count); }

void unhide(void* module, pinrail_registration_t* reg) { index_of(module).unhide(reg); }

pinrail_status_t find_locked(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access,
                             pinrail_registration_t** reg_out) {
  return index_of(module).find_locked(thread, Query::of(base, length, access), reg_out).code();
}

size_t find_all(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                pinrail_registration_t** regs_out, size_t room) {
  return index_of(module).find_all(thread, Span::of(base, length), regs_out, room);
}

void invalidate(void* module, uintptr_t base, size_t length, pinrail_visit_hook_t visit_hook, void* arg) {
  index_of(module).invalidate_hook(Span::of(base, length), visit_hook, arg);
}

const pinrail_start_table_t* start_table_of(void* module) { return index_of(module).start_table(); }

size_t count(void* module) { return index_of(module).count(); }

size_t covered_bytes(void* module) {
  try {
    return index_of(module).covered_bytes();
  } catch (const std::bad_alloc&) {
    return 0;
  }
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
                                       begin,
                                       prepare,
                                       cancel,
                                       insert,
                                       remove,
                                       hide,
                                       unhide,
                                       find_entry,
                                       find_elsewhere_entry,
                                       find_locked,
                                       find_all,
                                       invalidate,
                                       start_table_of,
                                       count,
                                       covered_bytes,
                                       check};

}  // namespace
}  // namespace pinrail::vma

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {
    sizeof(pinrail_component_t),
    PINRAIL_RCACHE_ABI,
    50,
    "rcache",
    "vma",
    "1.0.0",
    "Index of registrations by address: overlaps allowed, finds without a lock.",
    nullptr,
    nullptr,
    0,
    nullptr,
    pinrail::vma::open,
    pinrail::vma::close,
    &pinrail::vma::kOps};
