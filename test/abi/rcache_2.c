/* SPDX-License-Identifier: BSD-3-Clause
 * rcache_2.c - an index as a component's author compiled it when PINRAIL_RCACHE_ABI was 2. The types are a copy of that
 * time's, so that the file stays as old as it is; it includes no header of Pinrail. Since ABI 3, prepare() and
 * withdraw() have other arguments, and an announcement has other fields: a library that called this table would pass
 * wrong ones. test/abi_test.sh wants it refused. */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

typedef int status_t; /* pinrail_status_t */

typedef struct announcement_2 {
  uintptr_t base;
  size_t length;
  uint32_t access;
  uint32_t more_rights;
  uint64_t own[8];
} announcement_2_t;

typedef void (*visit_hook_t)(void* arg, void* const* regs, size_t count);

typedef struct rcache_ops_2 {
  size_t size;
  status_t (*create)(void* component, uint32_t flags, void** module_out);
  void (*destroy)(void* module);
  void* (*find)(void* module, void* thread, uintptr_t base, size_t length, uint32_t access);
  status_t (*find_under_lock)(void* module, void* thread, uintptr_t base, size_t length, uint32_t access,
                              void** reg_out);
  status_t (*find_or_announce)(void* module, void* thread, announcement_2_t* announcement, void** reg_out);
  status_t (*prepare)(void* module, announcement_2_t* announcement, int announced);
  void (*withdraw)(void* module, announcement_2_t* announcement);
  status_t (*publish)(void* module, void* thread, announcement_2_t* announcement, void* reg,
                      visit_hook_t displaced_hook, void* arg);
  status_t (*remove)(void* module, void* reg);
  void (*invalidate_hook)(void* module, uintptr_t base, size_t length, visit_hook_t visit_hook, void* arg);
  size_t (*count)(void* module);
  void (*hide)(void* module, void* const* regs, size_t count);
  void (*unhide)(void* module, void* reg);
  size_t (*find_all)(void* module, void* thread, uintptr_t base, size_t length, void** regs_out, size_t room);
  status_t (*check)(void* module);
  const void* (*extension)(const char* name, uint32_t version);
} rcache_ops_2_t;

typedef struct component_2 {
  size_t size;
  uint32_t abi;
  int32_t priority;
  char framework[16];
  char name[32];
  const char* version;
  const char* help;
  const char* help_catalogue;
  const void* params;
  size_t param_count;
  const char* const* synonym_prefixes;
  status_t (*open)(const void* host, void** context_out);
  void (*close)(void* context);
  const void* ops;
} component_2_t;

/* Called only by a library that does not compare the numbers. */
static status_t open_component(const void* host, void** context_out) {
  (void)host, (void)context_out;
  _exit(3);
}
static void close_component(void* context) { (void)context; }

static const rcache_ops_2_t table = {.size = sizeof(rcache_ops_2_t)};

__attribute__((visibility("default"))) extern const component_2_t pinrail_component;
const component_2_t pinrail_component = {.size = sizeof(component_2_t),
                                         .abi = 2,
                                         .priority = 90,
                                         .framework = "rcache",
                                         .name = "older",
                                         .version = "0.9",
                                         .help = "An index of an earlier interface.",
                                         .open = open_component,
                                         .close = close_component,
                                         .ops = &table};
