// SPDX-License-Identifier: BSD-3-Clause
// Runs the trials in child processes and reads their results.
#include "contrib/tools/info/monitors.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pinrail/listing.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <sstream>
#include <system_error>
#include <vector>

#include "contrib/tools/common/memory_events.h"
#include "contrib/tools/common/text.h"

namespace pinrail::info {
namespace {

constexpr unsigned kPatienceSeconds = 30;
constexpr size_t kPages = 16;
constexpr int kUnusable = 100;

enum class Kernel : uint8_t { acts, refuses };

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t deregister_nothing(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_registrar_t zero_cost_registrar() {
  pinrail_registrar_t registrar{};
  registrar.size = sizeof(registrar);
  registrar.name = "pinrail_info";
  registrar.thread_mode = PINRAIL_THREAD_CONCURRENT;
  registrar.kinds = PINRAIL_KIND_HOST;
  registrar.granularity = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  registrar.register_mem = register_nothing;
  registrar.deregister_mem = deregister_nothing;
  return registrar;
}

// Runs the function in a child. Returns its exit status, or -1; said_out receives its standard output and error. What
// the system does not give ends the program: it says nothing of Pinrail.
int in_child(const std::function<int()>& function, std::string* said_out) {
  int ends[2];
  const pid_t child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
  if (child < 0) throw std::system_error(errno, std::generic_category(), "no pipe or process could be made");
  if (child == 0) {
    alarm(kPatienceSeconds);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    _exit(function());
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    said_out->append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  const bool left = waitpid(child, &status, 0) == child && WIFEXITED(status);
  return left ? WEXITSTATUS(status) : -1;
}

// Starts Pinrail with these settings and creates a pool that keeps registrations. Only for children, which exit
// without finalize.
pinrail_status_t start(const std::vector<pinrail_setting_t>& settings, pinrail_mpool_t** pool_out) {
  static pinrail_registrar_t registrar = zero_cost_registrar();
  const pinrail_status_t status = tools::init(settings);
  if (status != PINRAIL_SUCCESS) return status;
  pinrail_registrar_choice_t choice{};
  choice.table = &registrar;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = 1;
  return pinrail_mpool_create("grdma", &choice, nullptr, &options, pool_out);
}

bool answers(pinrail_mpool_t* pool, const tools::Extent& range) {
  pinrail_handle_t handle{};
  if (pinrail_mpool_find(pool, range.base, range.length, 0, &handle) != PINRAIL_SUCCESS) return false;
  pinrail_mpool_deregister(handle);
  return true;
}

Outcome try_event(const std::vector<pinrail_setting_t>& settings, const tools::MemoryEvent& event, Kernel kernel) {
  pinrail_mpool_t* pool = nullptr;
  if (event.kind == tools::MemoryKind::heap) tools::keep_malloc_off_the_break();
  if (start(settings, &pool) != PINRAIL_SUCCESS) return Outcome::broken;
  const auto memory = tools::prepare_memory(event.kind, kPages * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  if (memory == nullptr) return Outcome::impossible;
  std::memset(memory->base, 1, memory->length);
  const tools::Extent range = lost(event, *memory);
  pinrail_handle_t handle{};
  const pinrail_status_t status = pinrail_mpool_register(pool, range.base, range.length, 0, 0, &handle);
  if (status != PINRAIL_SUCCESS || pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) return Outcome::broken;
  if (!answers(pool, range)) return Outcome::not_cached;
  if (kernel == Kernel::refuses) {
    if (!refuse_memory_calls()) return Outcome::after;  // `before` cannot be told from `after` here
    (void)fire_memory_event(event, memory.get());       // the filter makes it fail
    return answers(pool, range) ? Outcome::after : Outcome::before;
  }
  if (!fire_memory_event(event, memory.get())) return Outcome::impossible;
  const bool same_pages = event.pages == tools::Pages::kept;
  if (answers(pool, range)) return same_pages ? Outcome::kept : Outcome::not_seen;
  return same_pages ? Outcome::dropped : Outcome::after;
}

Outcome child_tries(const std::vector<pinrail_setting_t>& settings, const tools::MemoryEvent& event, Kernel kernel) {
  std::string said;
  const int status = in_child([&] { return static_cast<int>(try_event(settings, event, kernel)); }, &said);
  return status < 0 || status > static_cast<int>(Outcome::broken) ? Outcome::broken : static_cast<Outcome>(status);
}

Outcome measure(const std::vector<pinrail_setting_t>& settings, const tools::MemoryEvent& event) {
  const Outcome outcome = child_tries(settings, event, Kernel::acts);
  if (outcome != Outcome::after) return outcome;
  return child_tries(settings, event, Kernel::refuses) == Outcome::before ? Outcome::before : Outcome::after;
}

std::string why_unusable(const std::vector<pinrail_setting_t>& settings) {
  std::string said;
  pinrail_status_t status = PINRAIL_SUCCESS;
  const int left = in_child(
      [&] {
        pinrail_mpool_t* pool = nullptr;
        status = start(settings, &pool);
        return status == PINRAIL_SUCCESS ? 0 : kUnusable + static_cast<int>(status);  // statuses are 0 to -11
      },
      &said);
  if (left == 0) return "";
  if (left < 0) return "it crashes";
  const std::string reason = tools::what_happened(said);
  const std::string name = pinrail_status_name(static_cast<pinrail_status_t>(left - kUnusable));
  return reason.empty() ? name : name + ": " + reason;
}

MonitorColumn measure_column(const std::string& name, const std::vector<pinrail_setting_t>& settings) {
  MonitorColumn column{name, why_unusable(settings), {}};
  if (!column.why_not.empty()) return column;
  for (const tools::MemoryEvent& event : tools::memory_events()) column.outcomes.push_back(measure(settings, event));
  return column;
}

// All events: with monitor_never set to this, a single monitor's registrations are kept, and show what it sees.
constexpr char kEverything[] =
    "unmap,map_over,remap,remap_onto,dontneed,remove,guard_install,process_madvise,brk,shmdt,shmat_over,punch_hole,"
    "truncate,remap_file_pages,direct_write,driver_move";

std::vector<pinrail_setting_t> with_monitor(const std::vector<pinrail_setting_t>& settings, const char* monitor) {
  std::vector<pinrail_setting_t> more = settings;
  more.push_back({"monitor", monitor});
  more.push_back({"monitor_never", kEverything});
  return more;
}

// What a child reports about these settings.
struct Found {
  std::vector<std::string> names;  // the monitor components
  std::string at_work;
  std::vector<KeptKind> kept;
};

int send_findings(const std::vector<pinrail_setting_t>& settings) {
  if (tools::init(settings) != PINRAIL_SUCCESS) return 1;
  pinrail_component_info_t info{};
  info.size = sizeof(info);
  for (size_t i = 0; pinrail_component_at(i, &info) == PINRAIL_SUCCESS; ++i) {
    if (std::strcmp(info.framework, "monitor") != 0 || std::strcmp(info.name, "external") == 0) continue;
    dprintf(STDOUT_FILENO, "monitor %s\n", info.name);
  }
  dprintf(STDOUT_FILENO, "at_work %s\n", pinrail_monitors_at_work());
  pinrail_memory_kind_t kind{};
  kind.size = sizeof(kind);
  for (size_t i = 0; pinrail_memory_kind_at(i, &kind) == PINRAIL_SUCCESS; ++i) {
    dprintf(STDOUT_FILENO, "kind %s|%s\n", kind.name, kind.why_not);
  }
  return 0;
}

void read_line(const std::string& line, Found* found) {
  const size_t blank = line.find(' ');
  const std::string word = line.substr(0, blank), rest = blank == std::string::npos ? "" : line.substr(blank + 1);
  if (word == "monitor") found->names.push_back(rest);
  if (word == "at_work") found->at_work = rest;
  const size_t bar = rest.find('|');
  if (word == "kind" && bar != std::string::npos) found->kept.push_back({rest.substr(0, bar), rest.substr(bar + 1)});
}

// False: Pinrail does not start with these settings; why_out receives its message.
bool find_monitors(const std::vector<pinrail_setting_t>& settings, Found* found_out, std::string* why_out) {
  std::string said;
  if (in_child([&settings] { return send_findings(settings); }, &said) != 0) {
    *why_out = said;
    return false;
  }
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) read_line(line, found_out);
  return true;
}

}  // namespace

bool measure_monitors(const std::vector<pinrail_setting_t>& settings, MonitorTable* table_out, std::string* why_out) {
  Found found;
  if (!find_monitors(settings, &found, why_out)) return false;
  for (const std::string& name : found.names) {
    table_out->columns.push_back(measure_column(name, with_monitor(settings, name.c_str())));
  }
  return measure_default(settings, table_out, why_out);
}

bool measure_default(const std::vector<pinrail_setting_t>& settings, MonitorTable* table_out, std::string* why_out) {
  Found found;
  if (!find_monitors(settings, &found, why_out)) return false;
  table_out->columns.push_back(measure_column("default", settings));
  table_out->at_work = found.at_work;
  table_out->kept = found.kept;
  return true;
}

namespace {

// Offset of the lower half of the n-th argument, on little-endian machines.
constexpr uint32_t argument(size_t n) { return static_cast<uint32_t>(offsetof(seccomp_data, args) + n * 8); }

class Filter {
 public:
  Filter() { load(offsetof(seccomp_data, nr)); }

  void refuse(long number) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  // Refuses the call if its n-th argument has one of these bits.
  void refuse_if(long number, unsigned n, uint32_t bits) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4));
    load(argument(n));
    add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  bool install() {
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
  }

 private:
  void add(sock_filter instruction) { code_.push_back(instruction); }
  void load(uint32_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }

  std::vector<sock_filter> code_;
};

}  // namespace

bool refuse_memory_calls() {
  Filter filter;
  for (const long number : {SYS_munmap, SYS_mremap, SYS_madvise, SYS_process_madvise, SYS_remap_file_pages, SYS_brk,
                            SYS_shmdt, SYS_shmat, SYS_fallocate, SYS_ftruncate, SYS_truncate, SYS_io_uring_enter}) {
    filter.refuse(number);
  }
  filter.refuse_if(SYS_mmap, 3, MAP_FIXED);
  filter.refuse_if(SYS_openat, 2, O_TRUNC);
#ifdef SYS_open
  filter.refuse_if(SYS_open, 1, O_TRUNC);
#endif
  return filter.install();
}

}  // namespace pinrail::info
