// SPDX-License-Identifier: BSD-3-Clause
// front.h - what stands between init and finalize.
//
// Owns     the parameters, the components, the pools.
// Threads  enter() and leave() exclude everything else; pools are added and taken under the front lock.
#ifndef PINRAIL_FRAMEWORK_FRONT_FRONT_H
#define PINRAIL_FRAMEWORK_FRONT_FRONT_H

#include <pinrail/pinrail.h>

#include <memory>
#include <new>
#include <vector>

#include "base/core/guarded.h"
#include "base/core/lock.h"
#include "base/core/status.h"
#include "base/loader/loader.h"
#include "base/param/param.h"
#include "framework/mpool/mpool.h"

namespace pinrail::front {

struct House {
  param::Registry params;
  std::unique_ptr<loader::Loader> loader;
  Mutex mutex{LockRank::front};
  std::vector<std::unique_ptr<pinrail_mpool>> pools GUARDED_BY(mutex);
};

// The house, or NULL before init and after finalize.
House* house();

param::Registry* front_registry();
loader::Loader* front_loader();

// Destroys all pools; BUSY, with none destroyed, if one has references.
Status close_pools(House* house);

}  // namespace pinrail::front

#endif
