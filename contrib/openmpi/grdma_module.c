// SPDX-License-Identifier: BSD-3-Clause
// Parameters, modules, the start and end of Pinrail, and its figures.
#include <pinrail/alloc.h>
#include <pinrail/listing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/openmpi/grdma.h"
#include "contrib/openmpi/settings.h"

// Parameters: those that Open MPI shows (ompi_info --param rcache grdma --level 9), and the settings of Pinrail that
// follow from them.

static const char kOpenMpi[] = "openmpi";

grdma_parameters_t parameters;

void register_parameters(const mca_base_component_t* component) {
  parameters.served_by = served_by_parameter(component);
  parameters.print_stats = false;
  bool_parameter(component, "print_stats", "Print the figures of the registration cache at the end",
                 &parameters.print_stats);
  string_parameter(component, "monitor",
                   "What reports memory that goes away: \"openmpi\" (Open MPI's memory hooks), or monitors of Pinrail's"
                   " as in its parameter monitor, for instance \"patcher\"",
                   OPAL_INFO_LVL_5, kOpenMpi, &parameters.monitor);
  string_parameter(component, "size_limit",
                   "Most bytes kept registered, with suffix K, M or G, or \"unlimited\"; empty: as Pinrail's parameter"
                   " mpool_grdma_size_limit says. Too low: every transfer pays a registration",
                   OPAL_INFO_LVL_5, "", &parameters.size_limit);
  string_parameter(
      component, "count_limit",
      "Most registrations kept, or \"unlimited\"; empty: as Pinrail's parameter mpool_grdma_count_limit says",
      OPAL_INFO_LVL_5, "", &parameters.count_limit);
  string_parameter(component, "settings",
                   "Any parameters of Pinrail's: name=value, separated by commas; pinrail_info lists them",
                   OPAL_INFO_LVL_6, "", &parameters.settings);
}

// Open MPI has NULL for an empty value: Pinrail chooses as by default.
static bool monitor_is_open_mpi(void) {
  return is_set(parameters.monitor) && strcmp(parameters.monitor, kOpenMpi) == 0;
}

// Other sources of Pinrail's parameters hold as ever.
static pinrail_status_t start_pinrail(void) {
  settings_t settings = {.count = 0};
  if (!monitor_is_open_mpi()) add_if_set(&settings, "monitor", parameters.monitor);
  add_if_set(&settings, "mpool_grdma_size_limit", parameters.size_limit);
  add_if_set(&settings, "mpool_grdma_count_limit", parameters.count_limit);
  pinrail_status_t status = add_list(&settings, parameters.settings, "rcache_grdma_settings");
  if (status == PINRAIL_SUCCESS) status = start_with(&settings, "external");
  drop_settings(&settings);
  return status;
}

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

static bool keeps_pinned(void) { return leave_pinned() != 0; }

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

static void finalize_module(mca_rcache_base_module_t* rcache);

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

// NULL, after a message, if there can be none.
static mca_rcache_base_module_t* create_module(mca_rcache_base_resources_t* resources) {
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
static void finalize_module(mca_rcache_base_module_t* rcache) {
  grdma_module_t* const module = (grdma_module_t*)rcache;
  take_out(module);
  (void)pinrail_mpool_progress(module->pool);
  if (parameters.print_stats) log_stats(module);
  keep_stats(module);
  (void)pinrail_mpool_destroy(module->pool, PINRAIL_DESTROY_FORCE);
  destruct_module(&module->super);
  discard(module);
}

static bool started;  // Pinrail is
static bool asked;    // a transport has, for a module

// As the process has it: any source of Pinrail's parameters may name other monitors. Pinrail calls Open MPI's
// "external".
static const char* names_of_monitors(void) {
  const char* const names = pinrail_monitors_at_work();
  return strcmp(names, "external") == 0 ? kOpenMpi : *names != '\0' ? names : "no monitor";
}

// Transports ask while MPI_Init runs. Once: a second device is one more module, and no news.
static void tell_served(const char* cache_name) {
  static bool told;
  char line[256];
  if (told) return;
  told = true;
  // The name is that of the transport, a dot, and what Open MPI 4.1 prints as "(null)".
  snprintf(line, sizeof(line),
           "Pinrail %s serves this job: registrations of the transport %.*s%s; memory events from %s.",
           pinrail_version(), (int)strcspn(cache_name, "."), cache_name,
           keeps_pinned() ? "" : ", none of which is kept (mpi_leave_pinned 0)", names_of_monitors());
  print_job_line(line);
}

mca_rcache_base_module_t* init_module(mca_rcache_base_resources_t* resources) {
  asked = true;
  if (!started) {
    const pinrail_status_t status = start_pinrail();
    if (status != PINRAIL_SUCCESS) {
      print_fatal_help("Pinrail, whose rcache grdma this process was given, does not start.",
                       "no grdma serves this process. Transports that need it (" GRDMA_USERS ") stay away.",
                       "read what Pinrail said above; pinrail_info shows its parameters and where they come from.");
      return NULL;
    }
    started = true;
  }
  mca_rcache_base_module_t* const module = create_module(resources);
  if (module != NULL) tell_served(((const grdma_module_t*)module)->resources.cache_name);
  return module;
}

int stop_pinrail(void) {
  if (!asked) {
    print_line("Pinrail's grdma served nothing: this process opened no transport that asks for it (" GRDMA_USERS ").");
  }
  if (!started) return OPAL_SUCCESS;
  started = false;
  return pinrail_finalize() == PINRAIL_SUCCESS ? OPAL_SUCCESS : OPAL_ERROR;
}

// Memory from the modules' pools. modules_mutex is held during each call, so that no module ends meanwhile.

static grdma_module_t* module_if_there_locked(const void* owner) {
  grdma_module_t* each = modules;
  while (each != NULL && each != owner) each = each->next;
  return each;
}

// What is registered here serves all requests, also those that need strong ordering; and it is host memory, whatever
// the thread asked for before.
static void announce_own(void) { announce_flags(MCA_RCACHE_FLAGS_SO_MEM); }

static void* alloc_registered(size_t bytes, size_t alignment, void** owner_out) {
  void* addr = NULL;
  announce_own();
  pthread_mutex_lock(&modules_mutex);
  if (modules != NULL &&
      pinrail_mpool_alloc(modules->pool, bytes, alignment, PINRAIL_NODE_ANY, &addr) == PINRAIL_SUCCESS) {
    *owner_out = modules;
    atomic_store_explicit(&modules->has_allocated, true, memory_order_relaxed);  // before the program has the memory
  }
  pthread_mutex_unlock(&modules_mutex);
  return addr;
}

static void* realloc_registered(void* owner, void* addr, size_t bytes) {
  void* moved = NULL;
  announce_own();
  pthread_mutex_lock(&modules_mutex);
  grdma_module_t* const module = module_if_there_locked(owner);
  if (module != NULL && pinrail_mpool_realloc(module->pool, addr, bytes, &moved) != PINRAIL_SUCCESS) moved = NULL;
  pthread_mutex_unlock(&modules_mutex);
  return moved;
}

static void free_registered(void* owner, void* addr) {
  pthread_mutex_lock(&modules_mutex);
  grdma_module_t* const module = module_if_there_locked(owner);
  if (module != NULL) (void)pinrail_mpool_free(module->pool, addr);
  pthread_mutex_unlock(&modules_mutex);
}

const grdma_alloc_table_t pinrail_openmpi_alloc = {sizeof(pinrail_openmpi_alloc), alloc_registered, realloc_registered,
                                                   free_registered};

// Pinrail's figures as performance variables of MPI_T (rcache_grdma_hits, ...), and as a line at the end.

// What modules that are gone had counted. Written under modules_mutex.
static uint64_t kept[kMaxStats];

// Those that pools of one cache_name have in common; see pinrail/stats.h.
static bool is_of_cache(const char* name) {
  return is_limit(name) || strstr(name, "registered_") != NULL || strcmp(name, "pinned_bytes") == 0;
}

static bool is_first_of_cache(const grdma_module_t* module) {
  for (const grdma_module_t* each = modules; each != module; each = each->next) {
    if (strcmp(each->resources.cache_name, module->resources.cache_name) == 0) return false;
  }
  return true;
}

static uint64_t sum_locked(const pinrail_stat_info_t* info) {
  uint64_t sum = 0;
  for (grdma_module_t* each = modules; each != NULL; each = each->next) {
    pinrail_mpool_stats_t stats;
    if (is_of_cache(info->name) && !is_first_of_cache(each)) continue;
    if (!read_stats(each->pool, &stats)) continue;
    const uint64_t value = stat_value(&stats, info);
    sum = value > UINT64_MAX - sum ? UINT64_MAX : sum + value;  // no limit and no limit is no limit
  }
  return sum;
}

static int get_value(const struct mca_base_pvar_t* pvar, void* value, void* object) {
  (void)object;
  const size_t index = (size_t)(uintptr_t)pvar->ctx;
  pthread_mutex_lock(&modules_mutex);
  const uint64_t sum = sum_locked(pinrail_stat_at(index)) + kept[index];
  pthread_mutex_unlock(&modules_mutex);
  *(unsigned long long*)value = sum;
  return OPAL_SUCCESS;
}

void register_pvars(const mca_base_component_t* component) { register_stats(component, get_value); }

void keep_stats(grdma_module_t* module) {
  pinrail_mpool_stats_t stats;
  if (!read_stats(module->pool, &stats)) return;
  pthread_mutex_lock(&modules_mutex);
  keep_counters(kept, &stats);
  pthread_mutex_unlock(&modules_mutex);
}

// The first line has the form of Open MPI's own, which scripts read.
void log_stats(grdma_module_t* module) {
  pinrail_mpool_stats_t stats;
  if (!read_stats(module->pool, &stats)) return;
  const char* const who = OPAL_NAME_PRINT(OPAL_PROC_MY_NAME);
  const unsigned long found = atomic_load(&module->found);
  opal_output(0, "%s grdma: stats (hit/miss/found/not found/evicted/tree size): %llu/%llu/%lu/%lu/%llu/%llu", who,
              (unsigned long long)stats.hits - found, (unsigned long long)stats.misses, found,
              atomic_load(&module->not_found), (unsigned long long)stats.evictions, (unsigned long long)stats.indexed);
  opal_output(0, "%s grdma: Pinrail %s for %s: %llu invalidated, %llu raced, peak %llu bytes, leave_pinned %u", who,
              pinrail_version(), module->resources.cache_name, (unsigned long long)stats.invalidations,
              (unsigned long long)stats.races, (unsigned long long)stats.peak_registered_bytes, stats.leave_pinned);
}
