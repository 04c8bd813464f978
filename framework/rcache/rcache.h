// SPDX-License-Identifier: BSD-3-Clause
// rcache.h - selection of a pool's index.
//
// Threads  API context, while a pool is created; the caller holds no lock.
#ifndef PINRAIL_FRAMEWORK_RCACHE_RCACHE_H
#define PINRAIL_FRAMEWORK_RCACHE_RCACHE_H

#include <pinrail/component_rcache.h>

#include "base/core/status.h"
#include "base/loader/loader.h"

namespace pinrail::rcache {

// Creates a module of the named component, or of the one of highest priority if name is NULL or empty. NOT_FOUND: no
// such component.; ERROR: its table lacks a function that is not optional.
Status create(const loader::Loader& loader, const char* name, uint32_t flags, pinrail_rcache_t* rcache_out);

// The table with functions that do nothing in place of the optional ones that it leaves out.
pinrail_rcache_ops_t completed(pinrail_rcache_ops_t ops);

}  // namespace pinrail::rcache

#endif
