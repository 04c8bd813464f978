// SPDX-License-Identifier: BSD-3-Clause
// rcache.h - which index a pool gets.
//
// Threads  start-up of a pool.
#ifndef PINRAIL_FRAMEWORK_RCACHE_RCACHE_H
#define PINRAIL_FRAMEWORK_RCACHE_RCACHE_H

#include <pinrail/component.h>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::rcache {

// A new module of the component that is named, or of the best one if name is empty. NOT_FOUND: no such component.
Status create(const loader::Loader& loader, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out);

}  // namespace pinrail::rcache

#endif
