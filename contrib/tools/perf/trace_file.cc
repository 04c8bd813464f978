// SPDX-License-Identifier: BSD-3-Clause
// trace_file.cc - reads a trace file, and decompresses it if it begins as an .xz file.
#include <config.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <optional>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/trace.h"

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
