// SPDX-License-Identifier: BSD-3-Clause
// rcache.h - selection of a pool's index.
//
// Threads  API context, while a pool is created; the caller holds no lock.
#ifndef PINRAIL_FRAMEWORK_RCACHE_RCACHE_H
#define PINRAIL_FRAMEWORK_RCACHE_RCACHE_H

#include <pinrail/component.h>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::rcache {

// Creates a module of the named component, or of the one of highest priority if name is NULL or empty. NOT_FOUND: no
// such component.
Status create(const loader::Loader& loader, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out);

}  // namespace pinrail::rcache

#endif
