// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "components/registrar/mlock/mlock.h"

namespace pinrail::mlock_registrar {
namespace {

const char kHelp[] =
#include "components/registrar/mlock/mlock_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {{sizeof(pinrail_param_t), "beside_locks", "no",
                                        "Whether it works in a process that has locked memory itself (mlock, "
                                        "mlockall). The kernel does not count locks: the "
                                        "last deregistration of a page would take the program's lock away.",
                                        PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* component = new (std::nothrow) Component(host);
  if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = component;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Component*>(context); }

// Tries to lock one page. Returns 0 or an errno. ENOMEM is no refusal: the limit may be in use at the moment.
int probe_page() {
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno;
  const int error = lock_pages(page, bytes) == 0 || errno == ENOMEM || errno == EAGAIN ? 0 : errno;
  munmap(page, bytes);
  return error;
}

// Whether the program has locked memory itself. Its locks would be taken away. What registrars of this component have
// locked is not the program's, so only the first one asks.
bool has_locks_of_its_own(Component* component) {
  pinrail_param_value_t permitted{};
  const bool is_asked =
      component->registrars.load() == 0 &&
      (component->host->param(component->host, "beside_locks", &permitted) != PINRAIL_SUCCESS || permitted.i == 0);
  const uint64_t kib = is_asked ? number_in_file("/proc/self/status", "VmLck:", 0) : 0;
  if (kib == 0) return false;
  show(component->host, "memory is locked", {{"kib", NumberText(kib).c_str()}});
  return true;
}

void fill_table(Registrar* registrar) {
  pinrail_registrar_t& table = registrar->limits;
  table.size = sizeof(table);
  table.name = "mlock";
  table.context = registrar;
  // Not SERIALIZED, which would not serialise the calls of two registrars. The component's mutex serialises all of
  // them.
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = PINRAIL_KIND_HOST;
  table.pins_nothing = 1;  // mlock is a lock of this process, not a pin that a device knows
  table.granularity = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
}

pinrail_status_t create(void* context, void*, pinrail_registrar_t* registrar_out) {
  auto* component = static_cast<Component*>(context);
  const int error = probe_page();
  if (error != 0) {
    char line[96];
    std::snprintf(line, sizeof(line), "this user may not lock a page (errno %s; ulimit -l)", ErrnoText(error).c_str());
    component->host->log(component->host, PINRAIL_LOG_INFO, line);
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  if (has_locks_of_its_own(component)) return PINRAIL_ERR_NOT_AVAILABLE;
  auto* registrar = new (std::nothrow) Registrar{component, {}};
  if (registrar == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  fill_table(registrar);
  ++component->registrars;
  *registrar_out = registrar->limits;
  return PINRAIL_SUCCESS;
}

void destroy(void* context, pinrail_registrar_t* registrar) {
  delete static_cast<Registrar*>(registrar->context);
  --static_cast<Component*>(context)->registrars;
}

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_REGISTRAR_ABI, 20, "registrar", "mlock",
             "Locks pages with mlock: the last resort; madvise fails on memory that stays cached.", open, close, &kOps),
    kHelp, kParams);

}  // namespace
}  // namespace pinrail::mlock_registrar

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::mlock_registrar::kComponent;
