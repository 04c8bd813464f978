// SPDX-License-Identifier: BSD-3-Clause
// registrar.h - a registrar as pools call it: a component's, or one that an embedder lends.
//
// Owns     a copy of the registrar's table; the component's registrar behind it.
// Threads  bind() and the destructor run at creation and destruction of a pool; the calls may run together. API
//          context, never a hook; the caller holds no lock.
//
// registrar/D2  The registrar's results are checked: an unknown status, a changed range or missing rights become
//     ERROR, and nothing is kept.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_H
#define PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/core/compiler.h"
#include "base/core/kernel.h"
#include "base/core/span.h"
#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"

namespace pinrail::registrar {

// Serialises the calls of one registrar; rank "device" in base/sync/lock_rank.h. Pools that are bound to the same
// registrar share it: to tables whose register_mem and context are the same.
struct Serial {
  std::mutex mutex;
  std::atomic<const pinrail_thread_t*> serving{nullptr};  // the thread inside the registrar, so that it may re-enter
  decltype(pinrail_registrar_t::register_mem) register_mem = nullptr;
  const void* context = nullptr;
};

}  // namespace pinrail::registrar

struct pinrail_bound_registrar : pinrail::NonCopyable {
  ~pinrail_bound_registrar();

  pinrail_registrar_t table{};
  std::string name;
  bool marks_for_fork = false;
  pinrail_mpool* pool = nullptr;        // whose calls these are; NULL: a component opened the registrar for itself
  pinrail::loader::Opened component{};  // descriptor NULL: an embedder lent the table

  std::shared_ptr<pinrail::registrar::Serial> serial;  // NULL: the registrar may be called by any number of threads
};

namespace pinrail::registrar {

// Whether a component's table (pinrail_registrar_ops_t) has its functions: none is optional.
bool is_complete(const void* ops);

// Binds the lent table, the named component, or the usable component of highest priority that accepts one of these
// kinds of memory (PINRAIL_KIND_* bits; 0: any). BAD_PARAM: the table is incomplete. NOT_FOUND: no such component.
// Otherwise the component's own error.
Status bind(const loader::Loader& loader, const pinrail_registrar_choice_t& choice, uint32_t kinds,
            std::unique_ptr<pinrail_bound_registrar>* bound_out);

// In a forked child: forgets the parent's serialised registrars, whose locks may be held.
void fork_reinit();

// Host services, see component.h. register_mem() registers reg with the device; deregister_mem() deregisters it, and
// on an error the registration is forgotten all the same. abandon_mem() does what deregister_mem() does without
// calling the device. restart() tells the registrar of a restart. reg is the caller's alone during a call.
pinrail_status_t register_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                              const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                                pinrail_reason_t reason);
void abandon_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                 pinrail_reason_t reason);
pinrail_status_t restart(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread);

// Optional functions of the table, for a registration of which the caller holds a reference. NOT_SUPPORTED: it is
// missing.
pinrail_status_t device_read(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                             const pinrail_registration_t* reg, size_t offset, void* into, size_t length);
pinrail_status_t device_write(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                              const pinrail_registration_t* reg, size_t offset, const void* from, size_t length);
pinrail_status_t advise(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, const pinrail_registration_t* reg,
                        size_t offset, size_t length, pinrail_advice_t advice);
using Order = decltype(&pinrail_registrar_t::record);  // it, or &pinrail_registrar_t::wait
pinrail_status_t order(const pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                       Order order, void* stream);

// The framework's help catalogue.
constexpr char kHelp[] =
#include "framework/registrar/registrar_help.txt"
    ;

}  // namespace pinrail::registrar

// Keeps ranges that a device has pinned out of forked children, where the kernel would share them (F1).
//
// Before Linux 5.12 a pinned page was shared with a forked child like any other page: the process that wrote first got
// a copy. If that was the parent, the device continued with a page that no longer was the parent's. A marked range
// (madvise DONTFORK) does not exist in children. Later kernels copy pinned pages at fork; nothing is marked there.
//
// Owns     the marked ranges, counted per page for the whole process, because the kernel does not count marks.
// Threads  mark() and unmark() may run together; the others at start-up. API context; the callers hold no lock.
//
// A range is marked from before the device pins it until after the device has released it. A page is unmarked only when
// its count falls to 0 by a registration whose memory still exists (R12). A page with a count need not be marked: after
// an invalidation it may be a new, unmarked page. So each registration marks its whole range. A page's mark and its
// count change under one mutex, which is held across the system call.
namespace pinrail::fork_marks {

// Declares the parameter registrar_fork_marks.
Status declare(param::Registry* params);
// Reads the parameter and the kernel's release.
void start(const param::Registry& params);
// Whether ranges must be marked; after start().
bool needed();

// Whether Linux of that release ("5.10.0-28-amd64") shares pinned pages with forked children. A distribution may have
// backported the copying to an older release; marks are harmless there.
inline bool kernel_shares_pins(const char* release) { return is_release_before(release, 5, 12); }

// Marks the pages of the span and counts them. BAD_PARAM: a part is not mapped. OUT_OF_RESOURCE: no memory, or the
// process has as many mappings as the kernel allows (a mark may split some). On an error no page is marked that was not
// before.
Status mark(Span span);
// Uncounts a span that was marked. is_gone: its memory was unmapped and may be another mapping now, so its marks stay.
void unmark(Span span, bool is_gone);

// Re-initialises in a forked child: the marked ranges do not exist there.
void fork_reinit();

}  // namespace pinrail::fork_marks

#endif
