// SPDX-License-Identifier: BSD-3-Clause
// The start and the end of a recording, and what calls add to it. API context; the caller holds no lock.
#include "framework/api/api.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/registration/registration.h"
#include "base/report/report.h"
#include "base/sync/fork_reinit.h"
#include "config.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/hit_check.h"
#include "framework/mpool/params.h"

#ifdef HAVE_LZMA
#include <lzma.h>
#endif

namespace pinrail::record {

// One call or event. A pair of registration and generation names what was taken or dropped.
struct Record {
  uint64_t ns, addr, length, generation;
  const pinrail_registration_t* reg;  // NULL: the call failed
  uint32_t access, flags, thread;
  std::atomic<char> op;  // 'R', 'D', 'F', 'I', 'E' as in a trace; 0: not complete
};

constexpr uint64_t kMost = uint64_t{1} << 22;

struct Area {
  Record* records;
  std::atomic<uint64_t> reserved;
  uint64_t start_ns;
  int owner;            // the process id
  char settings[2048];  // header lines: what is set for pools grdma
};

namespace {

constexpr pinrail_param_t kParam = mpool::param(
    "record", "",
    "File to which each process writes its calls on pools and its memory events when it exits or finalizes, for "
    "pinrail_perf --trace and pinrail_advise; %p is the process id, which is appended where it is missing, and .2 "
    "where there is such a file. Hits take some 0.2 us more, and each call takes 56 bytes. Empty: nothing is recorded.",
    PINRAIL_TYPE_STRING, 3);

// Not freed: at exit other threads may still append.
Area area{};
char path[4096];
std::atomic<pthread_t> writer{};  // the thread that writes the file, or has written it
void* subscription = nullptr;

void tell(const char* topic, const char* why) {
  (void)guarded([=] { api::help(topic, {{"file", path}, {"why", why}}); });
}

// A program may change its folder before it exits.
std::string absolute(const std::string& name) {
  char folder[2048];
  if (name[0] == '/' || getcwd(folder, sizeof(folder)) == nullptr) return name;
  return std::string(folder) + "/" + name;
}

std::string named_by_process(std::string name) {
  const size_t base = name.rfind('/') + 1;
  if (name.find("%p", base) == std::string::npos) name += ".%p";
  const std::string id = std::to_string(getpid());
  for (size_t at = name.find("%p", base); at != std::string::npos; at = name.find("%p", at + id.size()))
    name.replace(at, 2, id);
  return name;
}

// Makes the file at the start, so that a name that cannot be used is reported then and not at the end. An existing file
// is never written over: it may be of an earlier start, of another copy of the library, or of another machine.
const char* why_not_made(const std::string& name) {
  for (int number = 1;; ++number) {
    const std::string full = number == 1 ? name : name + "." + std::to_string(number);
    std::snprintf(path, sizeof(path), "%s", full.c_str());
    if (full.size() >= sizeof(path)) return "its name is too long";
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) close(fd);
    if (fd >= 0 || errno != EEXIST) return fd >= 0 ? nullptr : std::strerror(errno);
  }
}

const char* why_no_area() {
  void* const mapped =
      mmap(nullptr, kMost * sizeof(Record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return std::strerror(errno);
  area.records = static_cast<Record*>(mapped);
  area.reserved.store(0, std::memory_order_relaxed);
  area.start_ns = now_ns_hook();
  area.owner = getpid();
  return nullptr;
}

// So that who replays the calls has the same pool: what of it is not as by default.
void note_settings(const param::Registry& params) {
  std::string lines;
  pinrail_param_info_t info{};
  for (size_t i = 0; params.at(i, &info).ok(); ++i) {
    const std::string line = std::string("# setting: ") + info.name + " " + info.value + "\n";
    const bool fits = lines.size() + line.size() < sizeof(area.settings);
    const bool is_of_pool = std::strcmp(info.framework, "mpool") == 0 && std::strcmp(info.component, "grdma") == 0;
    if (is_of_pool && info.source != PINRAIL_SOURCE_DEFAULT && fits) lines += line;
  }
  std::memcpy(area.settings, lines.c_str(), lines.size() + 1);
}

// The file: text, compressed by liblzma where that is. At exit or in pinrail_finalize(), while other threads may still
// append.

// The library is loaded only here, so that no other process has it.
#ifdef HAVE_LZMA
class Compressor : NonCopyable {
 public:
  Compressor() {
    void* const library = dlopen("liblzma.so.5", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto start = reinterpret_cast<decltype(&lzma_easy_encoder)>(dlsym(library, "lzma_easy_encoder"));
    code_ = reinterpret_cast<decltype(&lzma_code)>(dlsym(library, "lzma_code"));
    end_ = reinterpret_cast<decltype(&lzma_end)>(dlsym(library, "lzma_end"));
    works_ = start != nullptr && code_ != nullptr && end_ != nullptr && start(&stream_, 1, LZMA_CHECK_CRC64) == LZMA_OK;
  }
  ~Compressor() {
    if (works_) end_(&stream_);
  }

  bool works() const { return works_; }

  // Passes what has become of the text to put(); false if that or the encoder fails.
  template <typename Put>
  bool feed(const std::string& text, bool is_last, Put&& put) {
    stream_.next_in = reinterpret_cast<const uint8_t*>(text.data());
    stream_.avail_in = text.size();
    lzma_ret result = LZMA_OK;
    do {
      stream_.next_out = out_;
      stream_.avail_out = sizeof(out_);
      result = code_(&stream_, is_last ? LZMA_FINISH : LZMA_RUN);
      if (result != LZMA_OK && result != LZMA_STREAM_END) return false;
      if (!put(reinterpret_cast<const char*>(out_), sizeof(out_) - stream_.avail_out)) return false;
    } while (is_last ? result != LZMA_STREAM_END : stream_.avail_in > 0);
    return true;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  decltype(&lzma_code) code_ = nullptr;
  decltype(&lzma_end) end_ = nullptr;
  uint8_t out_[16 << 10];
  bool works_ = false;
};
#else
class Compressor {
 public:
  bool works() const { return false; }
  template <typename Put>
  bool feed(const std::string&, bool, Put&&) {
    return false;
  }
};
#endif

class Output {
 public:
  Output()
      : file_(above_standard(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600))),
        good_(file_.is_open()) {}

  void add(const char* line) {
    text_ += line;
    if (text_.size() >= kPiece) flush(false);
  }
  // Returns whether everything is in the file, which NFS says when it is closed.
  bool finish() {
    flush(true);
    return good_ && close(file_.release()) == 0;
  }

 private:
  static constexpr size_t kPiece = 64 << 10;

  void flush(bool is_last) {
    const auto put = [this](const char* bytes, size_t length) { return write_all(bytes, length); };
    good_ = good_ && (compressor_.works() ? compressor_.feed(text_, is_last, put) : put(text_.data(), text_.size()));
    text_.clear();
  }

  // Above "ulimit -f" a write would end the process.
  bool write_all(const char* bytes, size_t length) {
    written_ += length;
    if (!may_make_file(written_)) {
      errno = EFBIG;
      return false;
    }
    for (size_t done = 0; done < length;) {
      const ssize_t got = write(file_.get(), bytes + done, length - done);
      if (got < 0 && errno != EINTR) return false;
      done += got > 0 ? static_cast<size_t>(got) : 0;
    }
    return true;
  }

  Descriptor file_;
  bool good_;
  uint64_t written_ = 0;  // bytes
  std::string text_;
  Compressor compressor_;
};

// An event may name more than there is of memory; a trace may not.
uint64_t length_in_memory(const Record& record) {
  constexpr uint64_t kEndOfMemory = uint64_t{1} << 63;
  return record.addr < kEndOfMemory ? std::min(record.length, kEndOfMemory - record.addr) : 0;
}

// The ids of the references that a registration of a generation has: each is an id of the trace, and a drop ends one.
using Held = std::map<std::pair<const pinrail_registration_t*, uint64_t>, std::vector<int64_t>>;

// The id of a complete record. False: it is of no use in a trace, as a drop of a reference that was taken before the
// recording began, or a request that failed because its range is no memory.
bool find_id(const Record& record, char op, Held* held, int64_t* next, int64_t* id_out) {
  *id_out = op == 'E' ? static_cast<int64_t>(record.generation) : 0;
  if (op == 'I') return length_in_memory(record) != 0;
  if (op == 'E') return true;
  const bool is_taken = op != 'D';
  if (is_taken && length_in_memory(record) != record.length) return false;
  if (is_taken && record.reg == nullptr) {
    *id_out = -1;
    return true;
  }
  std::vector<int64_t>& ids = (*held)[{record.reg, record.generation}];
  if (is_taken) ids.push_back((*next)++);
  const bool is_known = !ids.empty();
  if (is_known) *id_out = ids.back();
  if (is_known && !is_taken) ids.pop_back();
  if (ids.empty()) held->erase({record.reg, record.generation});
  return is_known;
}

// Writes the complete records, and returns how many. Clocks of two threads may disagree with their order by less than a
// trace allows.
uint64_t add_records(uint64_t count, Output* out) {
  Held held;
  int64_t next_id = 0, id = 0;
  uint64_t last_ns = 0, written = 0;
  for (uint64_t i = 0; i < count; i++) {
    const Record& record = area.records[i];
    // acquire: pairs with the release in append_hook()
    const char op = record.op.load(std::memory_order_acquire);
    if (op == 0 || !find_id(record, op, &held, &next_id, &id)) continue;
    last_ns = std::max(last_ns, record.ns);
    char line[160];
    std::snprintf(line, sizeof(line), "%" PRIu64 " %u %c %" PRIx64 " %" PRIu64 " %x %x %" PRId64 "\n", last_ns,
                  record.thread, op, record.addr, length_in_memory(record), record.access, record.flags & 3, id);
    out->add(line);
    written++;
  }
  return written;
}

void add_file(Output* out) {
  const uint64_t all = area.reserved.load(std::memory_order_relaxed), kept = std::min(all, kMost);
  char line[512];
  std::snprintf(line, sizeof(line),
                "# program: %.200s\n# cache: pinrail %s\n# pid: %d\n# page_size: %ld\n# t0_ns: %" PRIu64 "\n",
                program_invocation_short_name, PACKAGE_VERSION, area.owner, sysconf(_SC_PAGESIZE), area.start_ns);
  out->add(line);
  out->add(area.settings);
  const uint64_t written = add_records(kept, out);
  std::snprintf(line, sizeof(line), "# records: %" PRIu64 " dropped %" PRIu64 "\n", written, all - kept);
  out->add(line);
}

// Returns NULL or the reason why that failed.
const char* write_file() {
  errno = 0;
  bool is_written = false;
  const Status status = guarded([&] {
    Output out;
    add_file(&out);
    is_written = out.finish();
  });
  if (!status.ok()) return "there is no memory";
  return is_written ? nullptr : std::strerror(errno);
}

// handle: {NULL, 0} if nothing was taken or dropped.
void append_hook(char op, uintptr_t addr, size_t length, pinrail_handle_t handle, uint32_t access, uint32_t flags) {
  // acquire: the area is filled in; pairs with the release in start()
  Area* const into = recording.load(std::memory_order_acquire);
  if (into == nullptr) return;
  const uint64_t index = into->reserved.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMost) return;
  Record& record = into->records[index];
  record.ns = now_ns_hook() - into->start_ns;
  record.addr = addr;
  record.length = length;
  record.generation = handle.generation;
  record.reg = handle.reg;
  record.access = access;
  record.flags = flags;
  record.thread = thread::current_thread->index;
  // release: the record is complete; pairs with the acquire in the writer
  record.op.store(op, std::memory_order_release);
}

void record_event_hook(void* /*arg*/, uintptr_t base, size_t length) {
  append_hook('I', base, length, {nullptr, 0}, 0, 0);
}

bool is_ours() { return is_on() && area.owner == getpid(); }

// One thread alone writes the file: the process may exit while another thread is in pinrail_finalize().
bool write_once() {
  pthread_t none{};
  if (!writer.compare_exchange_strong(none, pthread_self())) return false;
  const char* const why = write_file();
  if (why != nullptr) tell("record lost", why);
  return true;
}

// Not by atexit(), which no part of the library calls (R10). Other threads may append meanwhile. The program's message
// function may be gone already. What pinrail_finalize() writes on another thread is waited for, but not for ever;
// a message of that on this thread may have called exit().
__attribute__((destructor)) void at_exit() {
  constexpr int kMostLooks = 60000;  // one a millisecond
  if (!is_ours()) return;  // a child that only exits takes no lock, which a thread of its parent may have held
  report::divert(nullptr, nullptr);
  if (write_once() || writer.load() == pthread_self()) return;
  for (int looks = 0; looks < kMostLooks && is_on(); ++looks) usleep(1000);
}

}  // namespace

Status declare(param::Registry* params) { return params->declare("mpool", "base", &kParam, 1); }

void start(const param::Registry& params) {
  const std::string name = params.value("mpool_base_record").s;
  if (name.empty()) return;
  const char* why = why_not_made(absolute(named_by_process(name)));
  if (why == nullptr) why = why_no_area();
  if (why != nullptr) return tell("record refused", why);
  note_settings(params);
  writer.store({});
  // release: the area is filled in; pairs with the acquire in append_hook()
  recording.store(&area, std::memory_order_release);
  mpool::watchers.fetch_add(1, std::memory_order_relaxed);
  if (!monitor::works(nullptr) ||
      !monitor::subscribe(0, record_event_hook, nullptr, &subscription, &monitor::foreign_subscriptions).ok())
    tell("record without events", "no monitor works here");
}

void stop() {
  if (!is_on()) return;
  if (subscription != nullptr) monitor::unsubscribe(subscription, &monitor::foreign_subscriptions);
  subscription = nullptr;
  const bool is_ended = is_ours() && write_once();
  mpool::watchers.fetch_sub(1, std::memory_order_relaxed);
  recording.store(nullptr);
  if (is_ended) munmap(area.records, kMost * sizeof(Record));  // otherwise a thread that exits reads it
}

// The parent's records are not the child's; its copy of them goes back to the kernel.
void fork_reinit() {
  if (!is_on()) return;
  recording.store(nullptr);
  replace_in_child(&subscription, nullptr);
  munmap(area.records, kMost * sizeof(Record));
}

// What is registered on demand pins nothing, and may be all memory; what is no host memory cannot be replayed.
void took(const pinrail_mpool_t* pool, char op, const void* addr, size_t length, uint64_t access_and_flags,
          const pinrail_handle_t* handle) {
  if (!is_on() || api::is_on_demand(pool, access_and_flags) || (pool->ops->kinds & PINRAIL_KIND_HOST) == 0) return;
  const auto access = static_cast<uint32_t>(access_and_flags & PINRAIL_RIGHTS_MASK);
  const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  if (handle != nullptr) state::unquicken(handle->reg);
  const pinrail_handle_t taken = handle != nullptr ? *handle : pinrail_handle_t{nullptr, 0};
  append_hook(op, reinterpret_cast<uintptr_t>(addr), length, taken, access, flags);
}

void dropping(pinrail_handle_t handle) {
  append_hook('D', span_of(handle.reg).base, handle.reg->length, handle, handle.reg->rights, 0);
}

void evicted(pinrail_status_t status) { append_hook('E', 0, 0, {nullptr, status == PINRAIL_SUCCESS ? 1u : 0u}, 0, 0); }

// Adds records, in any context.

std::atomic<Area*> recording{nullptr};

}  // namespace pinrail::record
