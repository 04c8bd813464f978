// SPDX-License-Identifier: BSD-3-Clause
// own_component.h - what the components of Pinrail do alike: the descriptor that they export, their
// parameters and messages, libraries that they load, and an extension of the host table for monitors.
//
// Threads  All functions may run together.
// Context  start-up or API.
// Hook     Probe::report_hook().
#ifndef PINRAIL_BASE_CORE_OWN_COMPONENT_H
#define PINRAIL_BASE_CORE_OWN_COMPONENT_H

#include <dlfcn.h>
#include <pinrail/component.h>
#include <sys/mman.h>

#include <atomic>
#include <initializer_list>

#include "base/core/files.h"
#include "base/core/status.h"

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;

namespace pinrail {

// The descriptor of a component without parameters and messages.
template <size_t F, size_t N>
constexpr pinrail_component_t describe(uint32_t abi, int32_t priority, const char (&framework)[F],
                                       const char (&name)[N], const char* help,
                                       decltype(pinrail_component_t::open) open,
                                       decltype(pinrail_component_t::close) close, const void* ops) {
  auto component = sized<pinrail_component_t>();
  component.abi = abi;
  component.priority = priority;
  for (size_t i = 0; i < F; ++i) component.framework[i] = framework[i];
  for (size_t i = 0; i < N; ++i) component.name[i] = name[i];
  component.version = "1.0.0";
  component.help = help;
  component.open = open;
  component.close = close;
  component.ops = ops;
  return component;
}

// The same component with parameters and messages.
template <size_t P>
constexpr pinrail_component_t with_params(pinrail_component_t component, const char* help_catalogue,
                                          const pinrail_param_t (&params)[P],
                                          const char* const* synonym_prefixes = nullptr) {
  component.help_catalogue = help_catalogue;
  component.params = params;
  component.param_count = P;
  component.synonym_prefixes = synonym_prefixes;
  return component;
}

// open and close of a component whose only state is the host.
inline pinrail_status_t keep_host(const pinrail_host_t* host, void** context_out) {
  *context_out = const_cast<pinrail_host_t*>(host);  // NOLINT(cppcoreguidelines-pro-type-const-cast): never written
  return PINRAIL_SUCCESS;
}
inline void forget_host(void* /*context*/) {}

// Shows a topic of the component's help catalogue, with a number of bytes and an errno if it names them.
inline void show(const pinrail_host_t* host, const char* topic, std::initializer_list<pinrail_help_arg_t> args = {}) {
  host->help(host, topic, args.begin(), args.size());
}
inline void show_errno(const pinrail_host_t* host, const char* topic, size_t bytes, int error) {
  show(host, topic, {{"bytes", NumberText(bytes).c_str()}, {"errno", ErrnoText(error).c_str()}});
}

// Whether the errno says that the device, or the kernel for it, lacks the function.
inline bool is_lacking(int error) {
  return error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS || error == ENOTTY;
}

// What a registrar answers when the system has refused to pin so many bytes; shows a message for an unexpected errno.
inline Status status_of_refusal(const pinrail_host_t* host, size_t bytes, int error) {
  if (is_lacking(error)) return PINRAIL_ERR_NOT_SUPPORTED;
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EAGAIN: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case EFAULT:
    case EOVERFLOW: return PINRAIL_ERR_BAD_PARAM;
    case EPERM:
    case EACCES: return PINRAIL_ERR_PERM;
    default: show_errno(host, "register failed", bytes, error); return PINRAIL_ERR_ERROR;
  }
}

// Logs why something is not there; the line is shown from verbosity 10 on.
inline void log_reason(const pinrail_host_t* host, const char* what, const char* why) {
  char line[256];
  std::snprintf(line, sizeof(line), "%s: %s", what, why);
  host->log(host, PINRAIL_LOG_INFO, line);
}
// The same of something without which the component does nothing.
inline Status not_available(const pinrail_host_t* host, const char* what, const char* why) {
  log_reason(host, what, why);
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Reads parameters that the component declares. The host's errors.
struct ParamToRead {
  const char* name;
  pinrail_param_value_t* value_out;
};
inline Status read_params(const pinrail_host_t* host, std::initializer_list<ParamToRead> params) {
  for (const ParamToRead& each : params) {
    const Status status = host->param(host, each.name, each.value_out);
    if (!status.ok()) return status;
  }
  return success();
}

// Loads a library that the component does not link, and that reads the environment. It is never unmapped, because it
// has threads or drivers of its own. NULL, and a reason that stays valid until the next call of the dynamic loader.
inline void* load_library(const char* file, const char** why_out) {
  if (!trust::in_environment()) {
    *why_out = "the program has more rights than its caller, and the library reads the environment";
    return nullptr;
  }
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
  return library;
}

// Finds a function of the library. False, and NULL: it has none of that name.
template <typename Function>
bool load_function(void* library, const char* name, Function* function_out) {
  *function_out = reinterpret_cast<Function>(dlsym(library, name));
  return *function_out != nullptr;
}

// Private memory of this process, for trials, as long as the object exists.
class OwnPages : NonCopyable {
 public:
  explicit OwnPages(size_t bytes) : bytes_(bytes), at_(map(nullptr, bytes, 0)) {}
  ~OwnPages() {
    if (is_mapped()) munmap(at_, bytes_);
  }

  bool is_mapped() const { return at_ != MAP_FAILED; }  // false: errno says why
  unsigned char* at() const { return static_cast<unsigned char*>(at_); }
  // Other memory takes its place, in one step: were it unmapped first, another thread could be given the addresses.
  bool replace() { return map(at_, bytes_, MAP_FIXED) == at_; }

 private:
  static void* map(void* at, size_t bytes, int flags) {
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  }
  const size_t bytes_;
  void* const at_;
};

// A subscriber by which a monitor tries itself, like a pool: notes that a range inside [base, end) was reported.
struct Probe {
  std::atomic<uintptr_t> base{0}, end{0};
  std::atomic<bool> is_seen{false};

  static void report_hook(void* probe, uintptr_t base, size_t length) {
    auto* self = static_cast<Probe*>(probe);
    if (length != 0 && base >= self->base.load() && base + length <= self->end.load()) self->is_seen.store(true);
  }
};

// F1: makes a word that is 1 in this process and 0 in a forked child, because the kernel wipes it. NULL: it does not.
inline std::atomic<uint32_t>* make_alive_word() {
  constexpr size_t kBytes = 4096;  // or what a page has
  void* const page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, kBytes, MADV_WIPEONFORK) == 0) return new (page) std::atomic<uint32_t>(1);
  munmap(page, kBytes);
  return nullptr;
}

}  // namespace pinrail

// Bytes of a file whose pages go away.
struct pinrail_file_part_t {
  uint64_t inode;        // 0: of any file
  uint64_t begin, end;   // offsets
  uintptr_t first_byte;  // only mappings that lie as if the file's first byte were at this address; 0: all
};

// An extension of the host table for monitors of ours. It is not installed, and a library of another version has none.
// All of its functions may run together.
struct pinrail_monitor_services_t {
  size_t size;
  // How monitor/patcher reports an event that names a file and not addresses. keeps_files_hook() returns 0 if no memory
  // that shows a file is kept registered; 1 if some may be. report_file_hook() delivers an event for each range of kept
  // memory that shows these bytes.
  int (*keeps_files_hook)(void);
  void (*report_file_hook)(const pinrail_file_part_t* part);
  // How monitor/uffd is asked whether events are under way in the kernel (base/sync/gate.h). From now on each register
  // and find calls is_quiet(arg), on any thread, until it returns 1: no event is under way. is_quiet NULL: ends that.
  // Start-up and shut-down of the monitor.
  void (*ask_first)(int (*is_quiet)(void* arg), void* arg);
  // The monitor's thread begins and ends work (base/sync/own_threads.h).
  void (*begin_work)(void);
  void (*end_work)(void);
};

namespace pinrail::monitor_services {

constexpr char kName[] = "monitor_services";
constexpr uint32_t kVersion = 1;

// NULL, and logged: the library is of another version.
inline const pinrail_monitor_services_t* of(const pinrail_host_t* host) {
  const void* const found = host->extension != nullptr ? host->extension(host, kName, kVersion) : nullptr;
  if (found == nullptr) log_reason(host, "it does not start", "the library is of another version");
  return static_cast<const pinrail_monitor_services_t*>(found);
}

// Work of a monitor's thread for a scope.
class Work : NonCopyable {
 public:
  explicit Work(const pinrail_monitor_services_t& services) : services_(services) { services_.begin_work(); }
  ~Work() { services_.end_work(); }

 private:
  const pinrail_monitor_services_t& services_;
};

}  // namespace pinrail::monitor_services

#endif
