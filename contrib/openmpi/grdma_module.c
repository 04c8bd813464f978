// SPDX-License-Identifier: BSD-3-Clause
// Modules come and go.
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/grdma.h"

pthread_mutex_t modules_mutex = PTHREAD_MUTEX_INITIALIZER;
grdma_module_t* modules;

// What memory events killed goes back to the device here, should the program register nothing more. Open MPI calls it
// at every eighth turn of its progress engine; if another thread is doing it now, that thread does the work for all.
static int progress(void) {
  if (pthread_mutex_trylock(&modules_mutex) != 0) return 0;
  for (grdma_module_t* each = modules; each != NULL; each = each->next) (void)pinrail_mpool_progress(each->pool);
  pthread_mutex_unlock(&modules_mutex);
  return 0;
}

static void add(grdma_module_t* module) {
  report_events(monitor_is_open_mpi());
  pthread_mutex_lock(&modules_mutex);
  const bool first = modules == NULL;
  module->next = modules;
  modules = module;
  pthread_mutex_unlock(&modules_mutex);
  if (first) opal_progress_register_lp(progress);
}

static void take_out(grdma_module_t* module) {
  pthread_mutex_lock(&modules_mutex);
  grdma_module_t** at = &modules;
  while (*at != module) at = &(*at)->next;
  *at = module->next;
  const bool last = modules == NULL;
  pthread_mutex_unlock(&modules_mutex);
  if (last) opal_progress_unregister(progress);
}

// Open MPI has settled opal_leave_pinned when it asks for a module: -1 means that its hooks cannot be used. Whether
// anything is kept where it does want that is Pinrail's to say (mpool_grdma_leave_pinned).
static int64_t leave_pinned(void) {
  if (opal_leave_pinned == 1 || opal_leave_pinned_pipeline) return PINRAIL_UNSET;
  return opal_leave_pinned == -1 && !monitor_is_open_mpi() ? PINRAIL_UNSET : 0;
}

bool keeps_pinned(void) { return leave_pinned() != 0; }

static pinrail_status_t make_pool(grdma_module_t* module) {
  const pinrail_registrar_t table = registrar_of(module);
  const pinrail_registrar_choice_t registrar = {.table = &table};
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = leave_pinned();
  return pinrail_mpool_create("grdma", &registrar, module->resources.cache_name, &options, &module->pool);
}

static void discard(grdma_module_t* module) {
  if (module != NULL) free(module->resources.cache_name);
  free(module);
}

// The BTL frees what it passed, name included.
static grdma_module_t* new_module(const mca_rcache_base_resources_t* resources) {
  grdma_module_t* const module = calloc(1, sizeof(*module));
  if (module == NULL) return NULL;
  module->super.rcache_component = served_component();
  module->super.rcache_register = register_range;
  module->super.rcache_deregister = deregister_range;
  module->super.rcache_find = find_range;
  module->super.rcache_invalidate_range = invalidate_range_hook;
  module->super.rcache_finalize = finalize_module;
  module->super.rcache_evict = evict_one;
  module->resources = *resources;
  module->resources.cache_name = strdup(resources->cache_name);
  return module;
}

mca_rcache_base_module_t* create_module(mca_rcache_base_resources_t* resources) {
  grdma_module_t* const module = new_module(resources);
  if (module == NULL || module->resources.cache_name == NULL || make_pool(module) != PINRAIL_SUCCESS) {
    discard(module);
    return NULL;
  }
  construct_module(&module->super);
  add(module);
  opal_output_verbose(1, opal_rcache_base_framework.framework_output, "grdma for %s: %s", module->resources.cache_name,
                      parameters.served_by);
  return &module->super;
}

// By force: what an MPI program never freed, a window for one, goes back with the rest while the BTL still stands.
void finalize_module(mca_rcache_base_module_t* rcache) {
  grdma_module_t* const module = (grdma_module_t*)rcache;
  take_out(module);
  (void)pinrail_mpool_progress(module->pool);
  if (parameters.print_stats) log_stats(module);
  keep_stats(module);
  (void)pinrail_mpool_destroy(module->pool, PINRAIL_DESTROY_FORCE);
  destruct_module(&module->super);
  discard(module);
}
