// SPDX-License-Identifier: BSD-3-Clause
// Writes a recording as text, compressed by liblzma where that is. API context, at exit or in pinrail_finalize(), while
// other threads may still append.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/core/files.h"
#include "base/core/guarded.h"
#include "base/core/non_copyable.h"
#include "config.h"
#include "framework/api/record.h"

#ifdef HAVE_LZMA
#include <lzma.h>
#endif

namespace pinrail::record {
namespace {

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
  explicit Output(const char* path)
      : file_(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)), good_(file_.is_open()) {}

  void add(const char* line) {
    text_ += line;
    if (text_.size() >= kPiece) flush(false);
  }
  // Returns whether everything is in the file.
  bool finish() {
    flush(true);
    return good_;
  }

 private:
  static constexpr size_t kPiece = 64 << 10;

  void flush(bool is_last) {
    const auto put = [this](const char* bytes, size_t length) { return write_all(bytes, length); };
    good_ = good_ && (compressor_.works() ? compressor_.feed(text_, is_last, put) : put(text_.data(), text_.size()));
    text_.clear();
  }

  bool write_all(const char* bytes, size_t length) const {
    for (size_t done = 0; done < length;) {
      const ssize_t got = write(file_.get(), bytes + done, length - done);
      if (got < 0 && errno != EINTR) return false;
      done += got > 0 ? static_cast<size_t>(got) : 0;
    }
    return true;
  }

  const Descriptor file_;
  bool good_;
  std::string text_;
  Compressor compressor_;
};

// The ids of a trace: each reference has one, and a drop ends one of its registration.
class Ids {
 public:
  int64_t take(const Record& record) {
    if (record.reg == nullptr) return -1;
    held_[key_of(record)].push_back(next_);
    return next_++;
  }
  // False: the reference was taken before the recording began, or was not recorded.
  bool drop(const Record& record, int64_t* id_out) {
    const auto found = held_.find(key_of(record));
    if (found == held_.end()) return false;
    *id_out = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) held_.erase(found);
    return true;
  }

 private:
  struct Key {
    const pinrail_registration_t* reg;
    uint64_t generation;
    bool operator==(const Key& other) const { return reg == other.reg && generation == other.generation; }
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return (reinterpret_cast<uintptr_t>(key.reg) >> 6) * 0x9e3779b97f4a7c15u ^ key.generation;
    }
  };
  static Key key_of(const Record& record) { return {record.reg, record.generation}; }

  std::unordered_map<Key, std::vector<int64_t>, Hash> held_;
  int64_t next_ = 0;
};

// An event may name more than there is of memory; a trace may not.
uint64_t length_in_memory(const Record& record) {
  constexpr uint64_t kEndOfMemory = uint64_t{1} << 63;
  return record.addr < kEndOfMemory ? std::min(record.length, kEndOfMemory - record.addr) : 0;
}

// Writes the complete records. Clocks of two threads may disagree with their order by less than a trace allows.
class Lines {
 public:
  explicit Lines(Output* out) : out_(out) {}

  void add(const Record& record) {
    // acquire: pairs with the release in append_hook()
    const char op = record.op.load(std::memory_order_acquire);
    const uint64_t length = op == 0 ? 0 : length_in_memory(record);
    int64_t id = 0;
    if (op == 0 || (op == 'I' && length == 0)) return;
    if (op == 'D' && !ids_.drop(record, &id)) return;
    if (op == 'R' || op == 'F') id = ids_.take(record);
    if (op == 'E') id = static_cast<int64_t>(record.generation);
    last_ns_ = std::max(last_ns_, record.ns);
    char line[160];
    std::snprintf(line, sizeof(line), "%" PRIu64 " %u %c %" PRIx64 " %" PRIu64 " %x %x %" PRId64 "\n", last_ns_,
                  record.thread, op, record.addr, length, record.access, record.flags & 3, id);
    out_->add(line);
    written_++;
  }
  uint64_t written() const { return written_; }

 private:
  Output* const out_;
  Ids ids_;
  uint64_t last_ns_ = 0, written_ = 0;
};

void add_file(const Area& area, Output* out) {
  const uint64_t all = area.reserved.load(std::memory_order_relaxed), kept = std::min(all, kMost);
  char line[512];
  std::snprintf(line, sizeof(line),
                "# program: %.200s\n# cache: pinrail %s\n# pid: %d\n# page_size: %ld\n# t0_ns: %" PRIu64 "\n",
                program_invocation_short_name, PACKAGE_VERSION, area.owner, sysconf(_SC_PAGESIZE), area.start_ns);
  out->add(line);
  out->add(area.settings);
  Lines lines(out);
  for (uint64_t i = 0; i < kept; i++) lines.add(area.records[i]);
  std::snprintf(line, sizeof(line), "# records: %" PRIu64 " dropped %" PRIu64 "\n", lines.written(), all - kept);
  out->add(line);
}

}  // namespace

const char* write_file(const Area& area, const char* path) {
  errno = 0;
  bool is_written = false;
  const Status status = guarded([&] {
    Output out(path);
    add_file(area, &out);
    is_written = out.finish();
  });
  if (!status.ok()) return "there is no memory";
  return is_written ? nullptr : std::strerror(errno);
}

}  // namespace pinrail::record
