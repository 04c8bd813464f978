/* SPDX-License-Identifier: BSD-3-Clause
 * monitor_@NAME@.c - a monitor that sees each munmap of the main program, by its relocations. It keeps the rules for
 * what it sees; test/conform/broken/list breaks them one by one. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pinrail/component.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COPIES = 8 };

typedef struct component {
  const pinrail_host_t* host;
  int enabled; /* parameter */
} component_t;

/* The relocations belong to the process, and so does this list of those that are started. */
static _Atomic(component_t*) started[COPIES];
static int (*original)(void*, size_t) = munmap;

static int munmap_hook(void* addr, size_t length) {
  for (int i = 0; i < COPIES; ++i) {
    component_t* component = atomic_load(&started[i]);
    if (component != NULL) component->host->monitor_report_hook(component->host, (uintptr_t)addr, length);
  }
  return original(addr, length);
}

static void write_slot(void** slot) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)slot & ~(page - 1);
  if (mprotect((void*)first, page, PROT_READ | PROT_WRITE) == 0) *slot = (void*)munmap_hook;
}

static uintptr_t address(const struct dl_phdr_info* object, uintptr_t value) {
  return value < object->dlpi_addr ? value + object->dlpi_addr : value;
}

static int patch_main_program(struct dl_phdr_info* object, size_t size, void* unused) {
  const ElfW(Dyn)* dynamic = NULL;
  const ElfW(Sym)* symbols = NULL;
  const char* names = NULL;
  uintptr_t tables[2] = {0, 0};
  size_t sizes[2] = {0, 0};
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const ElfW(Dyn)*)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  }
  for (; dynamic != NULL && dynamic->d_tag != DT_NULL; ++dynamic) {
    const uintptr_t value = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym)*)address(object, value);
    if (dynamic->d_tag == DT_STRTAB) names = (const char*)address(object, value);
    if (dynamic->d_tag == DT_JMPREL) tables[0] = address(object, value);
    if (dynamic->d_tag == DT_RELA) tables[1] = address(object, value);
    if (dynamic->d_tag == DT_PLTRELSZ) sizes[0] = value;
    if (dynamic->d_tag == DT_RELASZ) sizes[1] = value;
  }
  for (int table = 0; table < 2; ++table) {
    const ElfW(Rela)* rela = (const ElfW(Rela)*)tables[table];
    for (size_t i = 0; rela != NULL && i < sizes[table] / sizeof(*rela); ++i) {
      const size_t symbol = ELF64_R_SYM(rela[i].r_info);
      if (symbol != 0 && strcmp(names + symbols[symbol].st_name, "munmap") == 0)
        write_slot((void**)(object->dlpi_addr + rela[i].r_offset));
    }
  }
  return 1; /* the first object is the main program */
}

static pinrail_status_t start(void* context) {
  component_t* component = context;
  if (!component->enabled) return PINRAIL_ERR_NOT_AVAILABLE;
  dl_iterate_phdr(patch_main_program, NULL);
  for (int i = 0; i < COPIES; ++i) {
    component_t* none = NULL;
    if (atomic_compare_exchange_strong(&started[i], &none, component)) return PINRAIL_SUCCESS;
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}
static void stop(void* context) {
  for (int i = 0; i < COPIES; ++i) {
    component_t* component = context;
    atomic_compare_exchange_strong(&started[i], &component, NULL);
  }
}

static pinrail_status_t check(void* context) {
  (void)context;
  return PINRAIL_SUCCESS;
}

static uint32_t sees(void* context) {
  (void)context;
  return PINRAIL_EVENT_UNMAP;
}

static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t enabled;
  const pinrail_status_t status = host->param(host, "enabled", &enabled);
  if (status != PINRAIL_SUCCESS) return status;
  component_t* component = calloc(1, sizeof(*component));
  if (component == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  component->host = host;
  component->enabled = enabled.i != 0;
  *context_out = component;
  return PINRAIL_SUCCESS;
}
static void close_it(void* context) { free(context); }

static const pinrail_param_t params[] = {{.size = sizeof(pinrail_param_t),
                                          .name = "enabled",
                                          .fallback = "yes",
                                          .help = "Whether it may start.",
                                          .type = PINRAIL_TYPE_BOOL,
                                          .scope = PINRAIL_SCOPE_READONLY,
                                          .level = 7}};

static const pinrail_monitor_ops_t ops = {
    .size = sizeof(ops), .start = start, .stop = stop, .check = check, .sees = sees, .kinds = PINRAIL_KIND_HOST};

PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_MONITOR_ABI,
                                               .priority = -1,
                                               .framework = "monitor",
                                               .name = "@NAME@",
                                               .version = "1.0.0",
                                               .help = "Sees munmap of the main program.",
                                               .params = params,
                                               .param_count = 1,
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
