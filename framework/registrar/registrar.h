// SPDX-License-Identifier: BSD-3-Clause
// registrar.h - a registrar as pools call it, be it a component's or one that an embedder lends.
//
// Owns     a copy of the table; the component's registrar behind it.
// Threads  bind() and the destructor at start-up and end of a pool; the calls may run together.
//
// registrar/D1  No lock of Pinrail is held when the registrar runs, but the one that serialises it.
// registrar/D2  What a registrar returns is checked: an unknown status, or rights taken away, is an ERROR and nothing
//     is kept.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_H
#define PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/core/status.h"
#include "base/loader/loader.h"

struct pinrail_bound_registrar {
  pinrail_bound_registrar() = default;
  ~pinrail_bound_registrar();
  pinrail_bound_registrar(const pinrail_bound_registrar&) = delete;
  pinrail_bound_registrar& operator=(const pinrail_bound_registrar&) = delete;

  pinrail_registrar_t table{};
  std::string name;
  bool marks_for_fork = false;
  pinrail::loader::Opened component{};  // descriptor NULL: lent by the embedder

  // "device" in lock_rank.h.
  std::mutex serial;
  std::atomic<const pinrail_thread_t*> serving{nullptr};  // who is in, for its own re-entry
};

namespace pinrail::registrar {

// The one that is chosen: the lent table, the named component, or the first that works here, by priority, and takes one
// of these kinds of memory (PINRAIL_KIND_* bits; 0: any).
// BAD_PARAM: the table is incomplete; NOT_FOUND: no such component; else what the component said.
Status bind(const loader::Loader& loader, const pinrail_registrar_choice_t& choice, uint32_t kinds,
            std::unique_ptr<pinrail_bound_registrar>* bound_out);

// Host services; see component.h.
pinrail_status_t register_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread,
                              const pinrail_register_request_t* request, pinrail_registration_t* reg);
pinrail_status_t deregister_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                                pinrail_reason_t reason);
void abandon_mem(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread, pinrail_registration_t* reg,
                 pinrail_reason_t reason);
pinrail_status_t restart(pinrail_bound_registrar_t* bound, pinrail_thread_t* thread);

}  // namespace pinrail::registrar

#endif
