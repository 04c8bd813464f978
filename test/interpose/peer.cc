// SPDX-License-Identifier: BSD-3-Clause
#include "test/interpose/peer.h"

#include <dlfcn.h>

#include <atomic>

namespace pinrail::interpose {
namespace {

std::atomic<uint64_t> events{0};

// initial-exec: it is looked at inside munmap.
struct Expected {
  uintptr_t base, end;
  bool came;
};
__thread Expected expected __attribute__((tls_model("initial-exec"))) = {0, 0, false};

void note(uintptr_t base, size_t length) {
  events.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  if (base <= expected.base && expected.end <= base + length) expected.came = true;
}

// As ucm.h has it: what UCX hands to a callback for unmapped memory begins so.
struct UcxUnmapped {
  void* address;
  size_t size;
};
constexpr int kUcxUnmapped = 1 << 17;
using UcxCallback = void (*)(int type, UcxUnmapped* event, void* arg);
using UcxSetHandler = int (*)(int events, int priority, UcxCallback callback, void* arg);

void on_ucx_event(int, UcxUnmapped* event, void*) { note(reinterpret_cast<uintptr_t>(event->address), event->size); }

// As opal/memoryhooks/memory.h has it.
using OpalCallback = void (*)(void* base, size_t length, void* data, bool from_alloc);
using OpalRegister = int (*)(OpalCallback callback, void* data);

void on_opal_event(void* base, size_t length, void*, bool) { note(reinterpret_cast<uintptr_t>(base), length); }

template <typename Function>
bool find(void* library, const char* name, Function* function_out, std::string* why_out) {
  *function_out = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  if (*function_out == nullptr) *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is each thread's own
  return *function_out != nullptr;
}

bool load_ucx(std::string* why_out) {
  UcxSetHandler set_handler;
  dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL);  // libucm asks for its symbols, but not for it
  if (!find(dlopen("libucm.so.0", RTLD_NOW | RTLD_GLOBAL), "ucm_set_event_handler", &set_handler, why_out))
    return false;
  if (set_handler(kUcxUnmapped, 1000, on_ucx_event, nullptr) == 0) return true;
  *why_out = "ucm_set_event_handler failed";
  return false;
}

// Of Open MPI 4 or 5.
void* open_opal() {
  void* const library = dlopen("libopen-pal.so.40", RTLD_NOW | RTLD_GLOBAL);
  return library != nullptr ? library : dlopen("libopen-pal.so.80", RTLD_NOW | RTLD_GLOBAL);
}

// Its hooks are a framework that a subscriber of events opens, as rcache does.
bool load_openmpi(std::string* why_out) {
  void* const library = open_opal();
  int (*init)(int*, char***);
  int (*open_framework)(void* framework, int flags);
  OpalRegister subscribe;
  const bool whole = find(library, "opal_init", &init, why_out) &&
                     find(library, "mca_base_framework_open", &open_framework, why_out) &&
                     find(library, "opal_mem_hooks_register_release", &subscribe, why_out);
  void* const memory = whole ? dlsym(library, "opal_memory_base_framework") : nullptr;
  if (!whole) return false;
  const bool works = memory != nullptr && init(nullptr, nullptr) == 0 && open_framework(memory, 0) == 0 &&
                     subscribe(on_opal_event, nullptr) == 0;
  if (!works) *why_out = "its memory hooks are refused";
  return works;
}

}  // namespace

bool load_peer(Peer peer, std::string* why_out) {
  switch (peer) {
    case Peer::none: return true;
    case Peer::ucx: return load_ucx(why_out);
    case Peer::openmpi: return load_openmpi(why_out);
  }
  return false;
}

uint64_t peer_events() { return events.load(); }

void expect_event(const void* base, size_t length) {
  expected = {reinterpret_cast<uintptr_t>(base), reinterpret_cast<uintptr_t>(base) + length, false};
}

bool event_came() {
  const bool came = expected.came;
  expected = {0, 0, false};
  return came;
}

}  // namespace pinrail::interpose
