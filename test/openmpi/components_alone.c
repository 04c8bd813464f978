// SPDX-License-Identifier: BSD-3-Clause
// components_alone.c - Pinrail's components mpool/pinrail and grdma in a process without MPI, which stands for Open MPI
// and for its transports.
#include "opal_config.h"
// opal_config.h comes first
#include <dlfcn.h>
#include <pinrail/stats.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/open_mpi.h"
#include "opal/mca/base/base.h"
#include "opal/mca/mpool/mpool.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params.h"

enum { BYTES = 64 << 10 };

static uint32_t last_flags;  // of the last registration
static int registered;

static int register_mem(void* data, void* base, size_t size, mca_rcache_base_registration_t* reg) {
  (void)data, (void)base, (void)size;
  last_flags = reg->flags;
  ++registered;
  return OPAL_SUCCESS;
}
static int deregister_mem(void* data, mca_rcache_base_registration_t* reg) {
  (void)data, (void)reg;
  return OPAL_SUCCESS;
}

static void stop_unless(int condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s\n", what);
  exit(1);
}

enum { SMALL = 256, MIB = 1 << 20, MORE = 64 << 20 };

// While it is set, the C library has no memory for small things.
static bool no_small_memory;

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
__attribute__((visibility("default"))) void* malloc(size_t size) {
  return no_small_memory && size < SMALL ? NULL : __libc_malloc(size);
}
__attribute__((visibility("default"))) void* calloc(size_t count, size_t size) {
  return no_small_memory && count * size < SMALL ? NULL : __libc_calloc(count, size);
}

// As in a library that is newer than the components.
__attribute__((visibility("default"))) const pinrail_stat_info_t* pinrail_stat_at(size_t index) {
  static const pinrail_stat_info_t figures[] = {
      {"hits", "calls", "known", offsetof(pinrail_mpool_stats_t, hits)},
      {"later", "calls", "not in the struct of the components", sizeof(pinrail_mpool_stats_t)}};
  return index < sizeof(figures) / sizeof(*figures) ? &figures[index] : NULL;
}

static mca_mpool_base_module_t* load_mpool(void) {
  void* const library = dlopen("contrib/openmpi/.libs/mca_mpool_pinrail.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    printf("SKIP: %s\n", dlerror());
    exit(77);
  }
  const mca_mpool_base_component_t* const component = dlsym(library, "mca_mpool_pinrail_component");
  mca_mpool_base_module_t* module = NULL;
  int priority = 0;
  stop_unless(component != NULL && component->mpool_query("mpool=pinrail", &priority, &module) == 0 && priority > 0,
              "the component answers the hint");
  return module;
}

// Without room for what the component keeps of an allocation, the caller has either the old memory or the new one.
static void reallocate_without_small_memory(mca_mpool_base_module_t* module) {
  char* const old = module->mpool_alloc(module, MIB, 0, 0);
  stop_unless(old != NULL, "there is memory");
  strcpy(old, "old");
  no_small_memory = true;
  char* const moved = module->mpool_realloc(module, old, MORE);
  no_small_memory = false;
  char* const now = moved != NULL ? moved : old;
  stop_unless(strcmp(now, "old") == 0, "the bytes are there");
  module->mpool_free(module, now);
}

static void reallocate_to_nothing(mca_mpool_base_module_t* module) {
  char* const old = module->mpool_alloc(module, MIB, 0, 0);
  void* const moved = module->mpool_realloc(module, old, 0);
  stop_unless(moved != NULL, "0 bytes are as good as one");
  module->mpool_free(module, moved);
}

static void allocate_many(mca_mpool_base_module_t* module) {
  enum { MANY = 20000 };
  static void* each[MANY];
  for (int i = 0; i < MANY; ++i) stop_unless((each[i] = module->mpool_alloc(module, 64, 0, 0)) != NULL, "memory");
  for (int i = 0; i < MANY; ++i) module->mpool_free(module, each[i]);
  module->mpool_free(module, each[0]);  // none of its own: nothing happens
}

// Before grdma is loaded: so the memory comes from malloc.
static void try_mpool(void) {
  mca_mpool_base_module_t* const module = load_mpool();
  reallocate_without_small_memory(module);
  reallocate_to_nothing(module);
  allocate_many(module);
}

static mca_rcache_base_component_t* load_grdma(const grdma_alloc_table_t** memory_out) {
  void* const library = dlopen("contrib/openmpi/.libs/mca_rcache_grdma.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    printf("SKIP: %s\n", dlerror());
    exit(77);
  }
  *memory_out = dlsym(library, GRDMA_ALLOC_SYMBOL);
  mca_rcache_base_component_t* const component = dlsym(library, "mca_rcache_grdma_component");
  stop_unless(*memory_out != NULL && component != NULL, "the component has its symbols");
  return component;
}

// A request of before must not show in what the transport is told of other memory.
static void allocate_after(mca_rcache_base_module_t* rcache, const grdma_alloc_table_t* memory, uint32_t flags) {
  static char buffer[4 * BYTES];
  mca_rcache_base_registration_t* reg = NULL;
  void *owner = NULL, *at = NULL;
  stop_unless(rcache->rcache_register(rcache, buffer, BYTES, flags, MCA_RCACHE_ACCESS_ANY, &reg) == 0, "register");
  stop_unless(last_flags == flags, "a request's flags reach the transport");
  stop_unless(rcache->rcache_deregister(rcache, reg) == 0, "deregister");
  const int before = registered;
  at = memory->alloc(32 << 20, 64, &owner);
  stop_unless(at != NULL && registered > before, "memory is allocated, and registered by the transport");
  stop_unless(last_flags == MCA_RCACHE_FLAGS_SO_MEM, "memory that programs share is registered with strong ordering");
  memory->free(owner, at);
}

// Open MPI passes events on to the modules of its list. It adds a module after the component made it, and takes it out
// before the module ends; other threads unmap meanwhile.
static void report_to_some(mca_rcache_base_component_t* component, mca_rcache_base_resources_t* resources) {
  static char buffer[4 * BYTES];
  mca_rcache_base_module_t* modules[2];
  for (int i = 0; i < 2; ++i) stop_unless((modules[i] = component->rcache_init(resources)) != NULL, "a module");
  for (int i = 0; i < 2; ++i) {
    mca_rcache_base_registration_t* reg = NULL;
    mca_rcache_base_module_t *other = modules[i], *listed = modules[1 - i];
    stop_unless(other->rcache_register(other, buffer, BYTES, 0, MCA_RCACHE_ACCESS_ANY, &reg) == 0, "register");
    stop_unless(other->rcache_deregister(other, reg) == 0, "deregister");
    stop_unless(other->rcache_find(other, buffer, BYTES, &reg) == 0 && reg != NULL, "it is kept");
    stop_unless(other->rcache_deregister(other, reg) == 0, "deregister");
    listed->rcache_invalidate_range(listed, buffer, sizeof(buffer));
    stop_unless(other->rcache_find(other, buffer, BYTES, &reg) == 0 && reg == NULL, "an event that one module saw");
  }
  for (int i = 0; i < 2; ++i) modules[i]->rcache_finalize(modules[i]);
}

static void try_grdma(int argc, char** argv) {
  const grdma_alloc_table_t* memory;
  stop_unless(opal_init_util(&argc, &argv) == OPAL_SUCCESS, "opal_init_util");
  stop_unless(mca_base_framework_open(&opal_rcache_base_framework, MCA_BASE_OPEN_DEFAULT) == OPAL_SUCCESS, "rcache");
  opal_leave_pinned = 1;
  mca_rcache_base_component_t* const component = load_grdma(&memory);
  mca_rcache_base_resources_t resources = {.cache_name = (char*)"test",
                                           .sizeof_reg = sizeof(mca_rcache_base_registration_t),
                                           .register_mem = register_mem,
                                           .deregister_mem = deregister_mem};
  stop_unless(component->rcache_version.mca_register_component_params() == OPAL_SUCCESS, "parameters");
  stop_unless(component->rcache_version.mca_open_component() == OPAL_SUCCESS, "open");
  stop_unless(mca_base_pvar_find("opal", "rcache", "grdma", "hits") >= 0, "a figure is a performance variable");
  stop_unless(mca_base_pvar_find("opal", "rcache", "grdma", "later") < 0, "a figure beyond the struct is none");
  mca_rcache_base_module_t* const rcache = component->rcache_init(&resources);
  stop_unless(rcache != NULL, "a module");
  allocate_after(rcache, memory, 0);
  allocate_after(rcache, memory, MCA_RCACHE_FLAGS_CUDA_GPU_MEM);
  allocate_after(rcache, memory, MCA_RCACHE_FLAGS_CACHE_BYPASS);
  rcache->rcache_finalize(rcache);
  report_to_some(component, &resources);
  stop_unless(component->rcache_version.mca_close_component() == OPAL_SUCCESS, "close");
}

int main(int argc, char** argv) {
  try_mpool();
  try_grdma(argc, argv);
  return 0;
}
