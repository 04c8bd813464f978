// SPDX-License-Identifier: BSD-3-Clause
// mpool_calls.c - what Open MPI calls of its component mpool/pinrail, without a transport: memory comes from malloc.
#include "opal_config.h"
// opal_config.h comes first
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opal/mca/mpool/mpool.h"

enum { SMALL = 256, BYTES = 1 << 20, MORE = 64 << 20 };

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

static void stop_unless(bool condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s\n", what);
  exit(1);
}

static mca_mpool_base_module_t* load(void) {
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
  char* const old = module->mpool_alloc(module, BYTES, 0, 0);
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
  char* const old = module->mpool_alloc(module, BYTES, 0, 0);
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

int main(void) {
  mca_mpool_base_module_t* const module = load();
  reallocate_without_small_memory(module);
  reallocate_to_nothing(module);
  allocate_many(module);
  return 0;
}
