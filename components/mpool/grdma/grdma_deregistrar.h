// SPDX-License-Identifier: BSD-3-Clause
// grdma_deregistrar.h - the way of one pool's registrations back to the device, and of their memory to the library.
//
// Owns     nothing. A registration is the caller's alone: dead, and unreferenced or forced.
// Threads  all functions may run together, on different registrations. Never in a hook. The caller holds no lock,
//          because the registrar is called.
//
// grdma_deregistrar/E1  in_flight counts each release from before the caller promised it until after the last use of
//     the pool; so the pool may be destroyed as soon as free_dismissed() has ended it. A victim that stays in the index
//     (grdma/G7) is freed later, by a call of the pool.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_DEREGISTRAR_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_DEREGISTRAR_H

#include "components/mpool/grdma/grdma_cache.h"
#include "components/mpool/grdma/grdma_in_flight.h"
#include "components/mpool/grdma/grdma_unindexed.h"

namespace pinrail::grdma {

// Whether the device still has what it registered.
enum class Device : uint8_t { registered, restarted };

class Deregistrar {
 public:
  Deregistrar(Pool* pool, Cache* cache, const pinrail_host_t* host, pinrail_bound_registrar_t* registrar,
              Unindexed* unindexed, InFlight* in_flight)
      : pool_(pool),
        cache_(*cache),
        host_(host),
        registrar_(registrar),
        unindexed_(*unindexed),
        in_flight_(*in_flight) {}

  // Calls the registrar, or tells it only to forget the registration. It is out of the index.
  void deregister(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                  Device device = Device::registered);
  // Deregisters them on the device, gives up their places in the budget and frees them. in_flight does not count them
  // yet. given_back: raised by each that was given back, also if the thread ends inside the registrar; the others are
  // the caller's still. A caller with more than one is in a drain, which keeps the pool until it ends.
  void give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count, pinrail_reason_t reason,
                 size_t* given_back);
  void give_back_one(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
    size_t given_back = 0;
    give_back(thread, &reg, 1, reason, &given_back);
  }
  // The device has deregistered it.
  void dismiss_and_free(pinrail_thread_t* thread, pinrail_registration_t* reg);
  // Its place in the budget is given up already.
  void free_dismissed(pinrail_thread_t* thread, pinrail_registration_t* reg);

 private:
  Pool* const pool_;
  Cache& cache_;
  const pinrail_host_t* const host_;
  pinrail_bound_registrar_t* const registrar_;
  Unindexed& unindexed_;
  InFlight& in_flight_;
};

}  // namespace pinrail::grdma

#endif
