// SPDX-License-Identifier: BSD-3-Clause
// front.h - what stands between init and finalize.
//
// Owns     the parameters, the components, the pools.
// Threads  enter() and leave() exclude everything else; pools are added and taken under the front lock. In a forked
//          child handle_fork() comes before everything else: see front_fork.h.
#ifndef PINRAIL_FRAMEWORK_FRONT_FRONT_H
#define PINRAIL_FRAMEWORK_FRONT_FRONT_H

#include <pinrail/pinrail.h>

#include <memory>
#include <new>
#include <vector>

#include "base/core/guarded.h"
#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"
#include "base/sync/lock.h"
#include "framework/mpool/mpool.h"

namespace pinrail::front {

constexpr uint64_t kAccessMask = uint32_t{PINRAIL_RIGHTS_MASK} | uint32_t{PINRAIL_TRAITS_MASK};
constexpr uint64_t kAccessAndFlagsMask = kAccessMask | uint64_t{PINRAIL_FLAGS_MASK} << PINRAIL_ACCESS_FLAGS_SHIFT;

struct Library {
  param::Registry params;
  std::unique_ptr<loader::Loader> loader;
  Mutex mutex{LockRank::front};  // who changes the list of pools
};

// The library, or NULL before init and after finalize.
Library* library();

param::Registry* front_registry();
loader::Loader* front_loader();

// All pools of the process, the last one first; in a forked child also the parent's. Each is whole, and stays until it
// is destroyed: a forked child may walk along them.
pinrail_mpool* first_pool();

// In a forked child, when nothing of the parent is used any more.
void fork_reinit_library();

// Destroys all pools; BUSY, with none destroyed, if one has references.
Status close_pools(Library* library);

}  // namespace pinrail::front

#endif
