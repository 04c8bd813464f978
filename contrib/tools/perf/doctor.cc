// SPDX-License-Identifier: BSD-3-Clause
// doctor.cc - the findings of pinrail_perf --doctor.
#include "contrib/tools/perf/report.h"

#include <pinrail/listing.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "contrib/tools/common/text.h"
#include "contrib/tools/info/monitors.h"
#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/replay_memory.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

namespace {

constexpr uint64_t kFewBytes = uint64_t{64} << 20;  // less than that is too little for most programs
constexpr size_t kLength = size_t{1} << 20;

// What the C library does must be seen. What code does by system calls or a ring of its own is told apart.
void judge_default(const info::MonitorTable& table, std::vector<Finding>* findings) {
  const info::MonitorColumn& column = table.columns.back();
  if (!column.why_not.empty()) {
    // The trial asked for leave_pinned=yes, which no user did: the reason by itself, where it is known.
    const std::string why = table.kept.empty() ? "" : table.kept.front().why_not;
    findings->push_back({Verdict::wrong, "monitors", why.empty() ? column.why_not : why,
                         "nothing stays registered: each transfer costs a registration.",
                         "remove none from the parameter monitor, or look at \"pinrail_info --monitors\"."});
    return;
  }
  size_t tried = 0, raw = 0;
  std::string stale;
  for (size_t i = 0; i < column.outcomes.size(); ++i) {
    const tools::MemoryEvent& event = tools::memory_events().first[i];
    tried += column.outcomes[i] != info::Outcome::impossible ? 1 : 0;
    if (column.outcomes[i] != info::Outcome::not_seen) continue;
    if (event.way() != tools::Way::libc)
      ++raw;
    else
      stale += std::string(stale.empty() ? "" : ", ") + event.name;
  }
  if (!stale.empty()) {
    findings->push_back({Verdict::wrong, "events", "not seen: " + stale,
                         "a registration outlives its memory, and transfers corrupt data without an error.",
                         "correct monitor_never and monitor_trust_allocators, or set leave_pinned=no."});
  } else {
    findings->push_back({Verdict::well, "events",
                         text("%zu kinds of memory event tried; none by the C library is missed", tried), "", ""});
  }
  if (raw != 0) {
    findings->push_back(
        {Verdict::costs, "raw calls",
         text("%zu events are not seen if code makes the system call itself, or by io_uring", raw),
         "a library with an allocator of its own calls would leave stale registrations; known ones are found.",
         "if you use such a library, set monitor=patcher,uffd; \"pinrail_info --monitors\" lists the events."});
  }
}

// False: Pinrail does not start, and there is nothing else to look at.
bool examine_monitors(const Options& options, std::vector<Finding>* findings) {
  info::MonitorTable table;
  std::string why;
  if (!info::measure_default(tools::settings_of(options.mca), &table, &why)) {
    const std::string sentence = tools::what_happened(why);
    findings->push_back({Verdict::wrong, "start", "Pinrail does not start: " + (sentence.empty() ? why : sentence),
                         "no pool can be made.", "correct the setting that is named."});
    return false;
  }
  judge_default(table, findings);
  if (!table.columns.back().why_not.empty()) return true;  // then nothing is kept, for that reason
  for (const info::KeptKind& kind : table.kept) {
    const bool is_first = &kind == &table.kept.front();  // private anonymous memory, which every program has
    if (kind.why_not.empty()) continue;
    findings->push_back({is_first ? Verdict::wrong : Verdict::costs, kind.name, "not kept registered: " + kind.why_not,
                         "each transfer of such memory costs a registration.",
                         "name in monitor_never events that no program here causes."});
  }
  return true;
}

// Whether the device sees the first byte of each page of the range as the process does. Another status than SUCCESS: it
// could not be asked.
pinrail_status_t look(pinrail_handle_t handle, const Buffers& buffer, bool* is_right_out) {
  const auto* const bytes = static_cast<const char*>(buffer.at(0));
  for (size_t offset = 0; offset < kLength; offset += page_size()) {
    char seen = 0;
    const size_t in_registration = static_cast<size_t>(bytes - static_cast<const char*>(handle.reg->base)) + offset;
    const pinrail_status_t status = pinrail_mpool_device_read(handle, in_registration, &seen, 1);
    if (status != PINRAIL_SUCCESS) return status;
    *is_right_out = seen == bytes[offset];
    if (!*is_right_out) break;
  }
  return PINRAIL_SUCCESS;
}

class Trial {
 public:
  explicit Trial(std::vector<Finding>* findings) : findings_(findings) {}

  void run(const Options& options) {
    const Result opened = session_.open(options);
    if (!opened.ok())
      return wrong("device", opened.why(), "no pool can be made.", "pinrail_info names what each component lacks.");
    if (!buffer_.map(1, kLength, Pages::small).ok()) return wrong("device", "1 MiB cannot be allocated.", "", "");
    pinrail_handle_t handle;
    if (!try_device(&handle)) return;
    try_fork(handle);
    (void)pinrail_mpool_deregister(handle);
    try_remap();
    buffer_.unmap();
  }

 private:
  void wrong(const char* subject, const std::string& found, const std::string& follows, const std::string& advice) {
    findings_->push_back({Verdict::wrong, subject, found, follows, advice});
  }
  void well(const char* subject, const std::string& found) {
    findings_->push_back({Verdict::well, subject, found, "", ""});
  }
  // False, after a finding: the device could not be asked.
  bool could_look(const char* subject, pinrail_status_t status) {
    if (status == PINRAIL_SUCCESS) return true;
    wrong(subject, std::string("reading through the device fails: ") + pinrail_status_name(status),
          "transfers may fail, too.", "look at the device and its driver.");
    return false;
  }
  pinrail_status_t take(pinrail_handle_t* handle_out) const {
    return pinrail_mpool_register(session_.pool(), buffer_.at(0), kLength, PINRAIL_ACCESS_REMOTE_READ, 0, handle_out);
  }

  bool try_device(pinrail_handle_t* handle_out) {
    const std::string name = session_.registrar_name();
    const pinrail_status_t status = take(handle_out);
    if (status != PINRAIL_SUCCESS) {
      wrong("device", "registrar " + name + " refuses 1 MiB: " + pinrail_status_name(status),
            "no memory can be registered.", "raise \"ulimit -l\", or what the device permits.");
      return false;
    }
    bool is_right = false;
    const pinrail_status_t looked = look(*handle_out, buffer_, &is_right);
    can_read_ = looked == PINRAIL_SUCCESS;
    if (looked == PINRAIL_ERR_NOT_SUPPORTED)
      findings_->push_back({Verdict::costs, "device", "registrar " + name + " registers, and cannot read by itself",
                            "neither bytes nor forks are checked here.",
                            "install what verbs or iouring need: pinrail_info names it."});
    else if (!could_look("device", looked))
      return true;
    else if (is_right)
      well("device", "registrar " + name + " reads what was written");
    else
      wrong("device", "registrar " + name + " reads other bytes than were written",
            "transfers are wrong even without a cache.", "look at the driver of the device.");
    return true;
  }

  // After a fork, a process that writes must not get a copy beside the page that the device has.
  void try_fork(pinrail_handle_t handle) {
    if (!can_read_) return;
    const pid_t child = fork();
    if (child < 0) return wrong("fork", "fork() fails", "", "");
    if (child == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);  // it has the registered memory
      pause();
      _exit(0);
    }
    fill_pages(reinterpret_cast<uintptr_t>(buffer_.at(0)), kLength, 77);
    bool is_right = false;
    const pinrail_status_t looked = look(handle, buffer_, &is_right);
    kill(child, SIGKILL);
    (void)waitpid(child, nullptr, 0);
    if (!could_look("fork", looked)) return;
    if (is_right) return well("fork", "the device sees what the parent writes while a child exists");
    wrong("fork", "the device sees other bytes than the parent writes while a child exists",
          "a program that forks, or calls system(), transfers wrong bytes.", "set registrar_fork_marks=always.");
  }

  void try_remap() {
    if (!can_read_ || !Session::why_not_kept().empty()) return;
    const Result remapped = buffer_.remap(0);
    pinrail_handle_t handle;
    if (!remapped.ok() || take(&handle) != PINRAIL_SUCCESS) return wrong("munmap", "the trial failed", "", "");
    bool is_right = false;
    const pinrail_status_t looked = look(handle, buffer_, &is_right);
    (void)pinrail_mpool_deregister(handle);
    if (!could_look("munmap", looked)) return;
    if (is_right) return well("munmap", "memory that was mapped again is registered anew");
    wrong("munmap", "a registration of memory that was mapped again is stale",
          "transfers corrupt data without an error.", "set leave_pinned=no, and report this.");
  }

  std::vector<Finding>* const findings_;
  Session session_;
  Buffers buffer_;
  bool can_read_ = false;
};

void examine_memory(std::vector<Finding>* findings) {
  pinrail_machine_t machine{};
  machine.size = sizeof(machine);
  if (pinrail_machine_read(&machine) == PINRAIL_SUCCESS) {
    findings->push_back(judge_memlock(machine.locked_limit));
    findings->push_back(judge_memory(machine.default_limit, machine.default_limit_from));
  }
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(file, setting);
  findings->push_back(judge_huge_pages(setting));
}

}  // namespace

Finding judge_memlock(uint64_t locked_limit) {
  if (locked_limit == UINT64_MAX)
    return {Verdict::well, "locked memory", "\"ulimit -l\" does not bound this user", "", ""};
  const std::string found = "ulimit -l is " + size_text(locked_limit);
  const bool is_little = locked_limit < kFewBytes;
  return {is_little ? Verdict::wrong : Verdict::well, "locked memory", found,
          is_little ? "a request beyond that evicts what is cached, or fails with OUT_OF_RESOURCE." : "",
          is_little
              ? "raise memlock in /etc/security/limits.conf, LimitMEMLOCK= of a service, or --ulimit memlock=-1 of a "
                "container."
              : ""};
}

Finding judge_memory(uint64_t default_limit, const std::string& from) {
  if (default_limit == UINT64_MAX) return {Verdict::well, "memory", "nothing bounds what may be registered", "", ""};
  const std::string found = "size_limit is " + size_text(default_limit) + " by default: " + from;
  if (default_limit >= kFewBytes) return {Verdict::well, "memory", found, "", ""};
  return {Verdict::wrong, "memory", found, "little stays registered, so most transfers cost a registration.",
          "raise the limit that is named, or set mpool_grdma_size_limit."};
}

Finding judge_huge_pages(const std::string& setting) {
  const bool is_off = setting.empty() || setting.find("[never]") != std::string::npos;
  if (!is_off) return {Verdict::well, "huge pages", "transparent huge pages: " + setting, "", ""};
  return {Verdict::costs, "huge pages",
          setting.empty() ? "this kernel has no transparent huge pages" : "transparent huge pages: " + setting,
          "a registration takes longer: the device gets each small page by itself.",
          "write madvise to /sys/kernel/mm/transparent_hugepage/enabled."};
}

std::vector<Finding> examine(const Options& options) {
  std::vector<Finding> findings;
  examine_memory(&findings);
  if (examine_monitors(options, &findings)) Trial(&findings).run(options);
  return findings;
}

void print_findings(const std::vector<Finding>& findings, std::ostream& out) {
  for (const Finding& each : findings) {
    const char* const mark = each.verdict == Verdict::well    ? "well "
                             : each.verdict == Verdict::costs ? "costs"
                                                              : "WRONG";
    out << mark << "  " << each.subject << ": " << each.found << '\n';
    if (!each.follows.empty()) out << tools::wrapped("What follows: " + each.follows, "       ");
    if (!each.advice.empty()) out << tools::wrapped("What to do: " + each.advice, "       ");
  }
}

}  // namespace pinrail::perf
