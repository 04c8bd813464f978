/* SPDX-License-Identifier: BSD-3-Clause
 * two.c - two runtimes in one process, each with a Pinrail of its own: two libfoo.so libbar.so. FOO_MCA_* and BAR_MCA_*
 * have set mpool_grdma_size_limit to 5M and 7M. Or one runtime: two libfoo.so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 1 << 16 };

#define REQUIRE(condition)                                                       \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "two.c:%d: it is not so that %s\n", __LINE__, #condition); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

typedef struct runtime {
  int (*start)(void);
  int (*use)(void* addr, size_t length);
  const char* (*parameter)(const char* name);
  const char* (*component_path)(const char* framework, const char* name);
  int (*stop)(void);
} runtime_t;

static void* symbol(void* library, const char* host, const char* name) {
  char text[64];
  snprintf(text, sizeof(text), "%s%s", host, name);
  void* found = dlsym(library, text);
  REQUIRE(found != NULL);
  return found;
}

static runtime_t load(const char* path, const char* host) {
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  REQUIRE(library != NULL);
  runtime_t runtime;
  *(void**)&runtime.start = symbol(library, host, "_start");
  *(void**)&runtime.use = symbol(library, host, "_use");
  *(void**)&runtime.parameter = symbol(library, host, "_parameter");
  *(void**)&runtime.component_path = symbol(library, host, "_component_path");
  *(void**)&runtime.stop = symbol(library, host, "_stop");
  return runtime;
}

static void* map(void) {
  void* at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  memset(at, 1, LENGTH);
  return at;
}

/* Unmaps the buffer, and maps other memory there. */
static void replace(void* buffer) {
  REQUIRE(munmap(buffer, LENGTH) == 0);
  REQUIRE(mmap(buffer, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == buffer);
}

static int use_one(runtime_t foo) {
  REQUIRE(foo.start() == 0);
  REQUIRE(strcmp(foo.parameter("mpool_grdma_size_limit"), "5M") == 0);
  void* buffer = map();
  REQUIRE(foo.use(buffer, LENGTH) == 1 && foo.use(buffer, LENGTH) == 1);
  replace(buffer);
  REQUIRE(foo.use(buffer, LENGTH) == 2);
  REQUIRE(foo.stop() == 0);
  REQUIRE(foo.start() == 0 && foo.use(buffer, LENGTH) == 3 && foo.stop() == 0);
  puts("one runtime, one Pinrail");
  return 0;
}

int main(int argc, char** argv) {
  REQUIRE(argc == 2 || argc == 3);
  if (argc == 2) return use_one(load(argv[1], "foo"));
  const runtime_t foo = load(argv[1], "foo"), bar = load(argv[2], "bar");
  REQUIRE(foo.start() == 0 && bar.start() == 0);

  REQUIRE(strcmp(foo.parameter("mpool_grdma_size_limit"), "5M") == 0);
  REQUIRE(strcmp(bar.parameter("mpool_grdma_size_limit"), "7M") == 0);
  REQUIRE(strcmp(foo.component_path("rcache", "vma"), bar.component_path("rcache", "vma")) == 0);

  /* Each keeps what it registered, and knows nothing of the other's. */
  void* buffer = map();
  REQUIRE(foo.use(buffer, LENGTH) == 1 && foo.use(buffer, LENGTH) == 1);
  REQUIRE(bar.use(buffer, LENGTH) == 1 && bar.use(buffer, LENGTH) == 1);
  /* Both hear of an unmapping. */
  replace(buffer);
  REQUIRE(foo.use(buffer, LENGTH) == 2 && bar.use(buffer, LENGTH) == 2);
  /* One that stops leaves the other's monitor as it is. */
  REQUIRE(foo.stop() == 0);
  REQUIRE(bar.use(buffer, LENGTH) == 2);
  replace(buffer);
  REQUIRE(bar.use(buffer, LENGTH) == 3);
  REQUIRE(foo.start() == 0 && foo.use(buffer, LENGTH) == 3 && foo.use(buffer, LENGTH) == 3);
  REQUIRE(bar.stop() == 0 && foo.stop() == 0);
  puts("two runtimes, two Pinrails");
  return 0;
}
