// SPDX-License-Identifier: BSD-3-Clause
// trace.cc - reads a trace: its file, plain or compressed, and its lines.
#include "contrib/tools/perf/trace.h"

#include <config.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <optional>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

constexpr size_t kLongestLine = 64 << 10;  // a header may contain a whole command line
constexpr uint64_t kMostOtherBytes = 64 << 20;
constexpr size_t kCheckMemoryEvery = 1 << 20;
constexpr uint64_t kEndOfMemory = uint64_t{1} << 63;       // above the user addresses of every processor
constexpr uint64_t kMaxRecords = uint64_t{1} << 31;        // line numbers have 32 bits
constexpr uint32_t kKnownAccess = 0xf, kKnownFlags = 0x3;  // other flags are reserved and ignored

std::string_view next_field(std::string_view* text) {
  const size_t start = text->find_first_not_of(" \t");
  if (start == std::string_view::npos) return *text = {};
  const size_t end = text->find_first_of(" \t", start);
  const std::string_view field = text->substr(start, end == std::string_view::npos ? end : end - start);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end);
  return field;
}

template <typename Number>
bool take(std::string_view* text, int base, Number* number_out) {
  const std::string_view field = next_field(text);
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), *number_out, base);
  return !field.empty() && error == std::errc() && end == field.data() + field.size();
}

bool is_op(std::string_view field) { return field.size() == 1 && std::string_view("RDFIEX").find(field) < 6; }

}  // namespace

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& letter : out)
    if (letter < ' ' || letter > '~') letter = '?';
  return out;
}

Result TraceParser::malformed(const std::string& why) const {
  return Result::bad(text("line %llu: %s", static_cast<unsigned long long>(line_), why.c_str()));
}

Result TraceParser::feed(std::string_view piece) {
  for (;;) {
    const size_t end = piece.find('\n');
    rest_.append(piece.substr(0, end));
    if (rest_.size() > kLongestLine) {
      line_++;
      return malformed("is too long for a trace");
    }
    if (end == std::string_view::npos) return Result::good();
    piece.remove_prefix(end + 1);
    line_++;
    Result parsed = line(rest_);
    if (!parsed.ok()) return parsed;
    rest_.clear();
  }
}

Result TraceParser::finish(Trace* trace_out) {
  if (!rest_.empty()) {
    line_++;
    return malformed("is cut off: it does not end with a line feed");
  }
  if (line_ == 0) return Result::bad("is empty");
  if (announced_ != UINT64_MAX && announced_ != trace_.records.size())
    return malformed(text("is the last one, but the header speaks of %llu records and %zu were read: cut off?",
                          static_cast<unsigned long long>(announced_), trace_.records.size()));
  if (trace_.registers == 0) return Result::bad("has no R line: nothing to replay");
  *trace_out = std::move(trace_);
  return Result::good();
}

Result TraceParser::line(std::string_view text) {
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (!text.empty() && text.front() != '#') return record(text);
  other_bytes_ += text.size() + 1;
  if (other_bytes_ > kMostOtherBytes) return malformed("is more of a header than a trace has");
  return text.empty() ? Result::good() : header(text);
}

Result TraceParser::header(std::string_view text) {
  text.remove_prefix(1);
  const std::string_view key = next_field(&text);
  if (key == "records:" && !take(&text, 10, &announced_)) return malformed("'# records:' names no number");
  if (key == "records:" && announced_ > kMaxRecords) return malformed("'# records:' names more than a trace may have");
  std::string_view rest = text;
  uint32_t version = 1;
  if (key == "rcache-trace" && (!take(&rest, 10, &version) || version > 1))
    return malformed("is the header of a newer kind of trace than this program reads");
  if (key == "records:" && next_field(&rest) == "dropped" && !take(&rest, 10, &trace_.missing))
    return malformed("'# records:' names no number of dropped ones");
  const size_t start = text.find_first_not_of(' ');
  if (key == "program:" && start != std::string_view::npos) trace_.program = printable(text.substr(start));
  const std::string_view name = key == "setting:" ? next_field(&text) : std::string_view();
  const size_t value = text.find_first_not_of(' ');
  if (!name.empty() && value != std::string_view::npos)
    trace_.settings.emplace_back(printable(name), printable(text.substr(value)));
  return Result::good();
}

Result TraceParser::record(std::string_view text) {
  uint64_t t_ns = 0;
  uint32_t tid = 0;
  TraceRecord record{};
  if (!take(&text, 10, &t_ns) || !take(&text, 10, &tid)) return malformed("does not begin with a time and a thread");
  const std::string_view op = next_field(&text);
  if (!is_op(op)) return malformed("its operation is none of R D F I E X");
  record.op = static_cast<TraceOp>(op.front());
  if (!take(&text, 16, &record.addr) || !take(&text, 10, &record.size) || !take(&text, 16, &record.access) ||
      !take(&text, 16, &record.flags) || !take(&text, 10, &record.id))
    return malformed("is not 't_ns tid op addr size access flags id'");
  if (!next_field(&text).empty()) return malformed("has more fields than eight");
  if (t_ns < last_ns_) return malformed("is earlier than the line before it");
  if (trace_.records.size() >= kMaxRecords) return malformed("is one record too many");
  if (trace_.records.size() % kCheckMemoryEvery == kCheckMemoryEvery - 1 && !has_memory())
    return malformed("is one record more than this machine has memory for");
  last_ns_ = record.ns = t_ns;
  record.line = static_cast<uint32_t>(line_);
  record.flags &= kKnownFlags;
  Result checked = check(record);
  if (!checked.ok()) return checked;
  trace_.registers += record.op == TraceOp::reg ? 1 : 0;
  trace_.records.push_back(record);
  return Result::good();
}

bool TraceParser::has_memory() const { return trace_.records.size() * sizeof(TraceRecord) < available_memory() / 4; }

Result TraceParser::check(const TraceRecord& record) {
  if (record.addr > kEndOfMemory || record.size > kEndOfMemory - record.addr)
    return malformed("its range ends beyond any address space");
  if (record.op == TraceOp::dereg) {
    if (held_.erase(record.id) == 0) return malformed("releases an id that no earlier R or F line holds");
    return Result::good();
  }
  if (record.op != TraceOp::reg && record.op != TraceOp::find) return Result::good();
  if (record.size == 0) return malformed("its range is empty");
  if ((record.access & ~kKnownAccess) != 0) return malformed("its access has unknown bits");
  if (record.id < -1) return malformed("its id is negative");
  if (record.id < 0) return Result::good();
  if (!seen_.insert(record.id).second) return malformed("its id is not new");
  held_.insert(record.id);
  return Result::good();
}

}  // namespace pinrail::perf

#if defined(HAVE_LZMA)
#include <lzma.h>
#endif

namespace pinrail::perf {

namespace {

constexpr size_t kPiece = 64 << 10;
constexpr std::string_view kXzMagic(
    "\xfd"
    "7zXZ\0",
    6);

#if defined(HAVE_LZMA)
class XzDecoder {
 public:
  explicit XzDecoder(TraceParser* parser) : parser_(parser), out_(kPiece) {
    started_ = lzma_stream_decoder(&stream_, kMaxMemory, LZMA_CONCATENATED) == LZMA_OK;
  }
  ~XzDecoder() { lzma_end(&stream_); }
  XzDecoder(const XzDecoder&) = delete;
  XzDecoder& operator=(const XzDecoder&) = delete;

  Result feed(std::string_view bytes) {
    stream_.next_in = reinterpret_cast<const uint8_t*>(bytes.data());
    stream_.avail_in = bytes.size();
    do {
      Result pushed = step(LZMA_RUN);
      if (!pushed.ok()) return pushed;
    } while (stream_.avail_in > 0 || stream_.avail_out == 0);
    return Result::good();
  }

  Result finish() {
    while (!ended_) {
      Result pushed = step(LZMA_FINISH);
      if (!pushed.ok()) return pushed;
    }
    return Result::good();
  }

 private:
  static constexpr uint64_t kMaxMemory = 256 << 20;
  // Recorded traces are compressed to a tenth or so.
  static constexpr uint64_t kMostExpansion = 500, kFreeExpansion = 16 << 20;

  Result step(lzma_action action) {
    if (!started_) return Result::bad("no memory for the .xz decoder");
    stream_.next_out = out_.data();
    stream_.avail_out = out_.size();
    const lzma_ret code = lzma_code(&stream_, action);
    ended_ = code == LZMA_STREAM_END;
    // The decoder needs more input: the next piece decides.
    const bool waiting = code == LZMA_BUF_ERROR && action == LZMA_RUN;
    if (code != LZMA_OK && !ended_ && !waiting)
      return Result::bad(text("%s, after line %" PRIu64, reason(code), parser_->lines()));
    const size_t length = out_.size() - stream_.avail_out;
    if (stream_.total_out > kFreeExpansion && stream_.total_out / kMostExpansion > stream_.total_in)
      return Result::bad(text("the .xz file expands more than %" PRIu64
                              " times, which no trace does, after line %" PRIu64,
                              kMostExpansion, parser_->lines()));
    return parser_->feed({reinterpret_cast<const char*>(out_.data()), length});
  }

  static const char* reason(lzma_ret code) {
    switch (code) {
      case LZMA_BUF_ERROR: return "the .xz file is cut off";
      case LZMA_DATA_ERROR: return "the .xz file is damaged";
      case LZMA_FORMAT_ERROR: return "what stands in it is not .xz";
      case LZMA_MEMLIMIT_ERROR:
      case LZMA_MEM_ERROR: return "the .xz file wants more memory than there is";
      default: return "the .xz file cannot be decoded";
    }
  }

  TraceParser* const parser_;
  std::vector<uint8_t> out_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool started_ = false, ended_ = false;
};
#else
class XzDecoder {
 public:
  explicit XzDecoder(TraceParser*) {}
  Result feed(std::string_view) { return Result::bad("is .xz, and this build has no liblzma: decompress it first"); }
  Result finish() { return Result::good(); }
};
#endif

ssize_t read_piece(int fd, char* into) {
  ssize_t got = 0;
  do got = read(fd, into, kPiece);
  while (got < 0 && errno == EINTR);
  return got;
}

Result read_all(int fd, TraceParser* parser) {
  std::vector<char> piece(kPiece);
  std::optional<XzDecoder> decoder;
  for (bool is_first = true;; is_first = false) {
    const ssize_t got = read_piece(fd, piece.data());
    if (got < 0) return Result::bad(errno_text());
    if (got == 0) return decoder ? decoder->finish() : Result::good();
    const std::string_view bytes(piece.data(), static_cast<size_t>(got));
    if (is_first && bytes.substr(0, kXzMagic.size()) == kXzMagic) decoder.emplace(parser);
    Result fed = decoder ? decoder->feed(bytes) : parser->feed(bytes);
    if (!fed.ok()) return fed;
  }
}

}  // namespace

std::string missing_text(uint64_t missing) {
  return text("The recording ended early: %" PRIu64 " calls are missing", missing);
}

Result read_trace(const std::string& path, Trace* trace_out) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Result::bad(text("trace %s: %s", path.c_str(), errno_text().c_str()));
  TraceParser parser;
  Result read = read_all(fd, &parser);
  close(fd);
  if (read.ok()) read = parser.finish(trace_out);
  return read.ok() ? Result::good() : Result::bad(text("trace %s: %s", path.c_str(), read.why().c_str()));
}

}  // namespace pinrail::perf
