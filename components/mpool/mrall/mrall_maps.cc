// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc/self/maps. API context; the caller holds no lock.
#include "components/mpool/mrall/mrall_maps.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/core/files.h"

namespace pinrail::mrall {
namespace {

constexpr uint32_t kReadable = PINRAIL_ACCESS_REMOTE_READ;
constexpr size_t kFirstBuffer = size_t{256} << 10;

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// Whether the path names memory of a device or of the kernel, which cannot be pinned.
bool is_device(std::string_view path) {
  if (begins(path, "[v") || begins(path, "anon_inode:")) return true;  // vdso, vvar, vsyscall; rings
  return begins(path, "/dev/") && !begins(path, "/dev/shm/") && !begins(path, "/dev/zero") &&
         !begins(path, "/dev/hugepages/");
}

constexpr int kFieldsBeforePath = 4;  // rights, offset, device, inode

// Parses one line. False: it is malformed. Reads no more than the line: sscanf() would measure the whole text.
bool parse_line(const char* text, Line* line_out) {
  char* at = nullptr;
  const uint64_t base = std::strtoull(text, &at, 16);
  if (at == text || *at != '-') return false;
  const char* const rest = at + 1;
  const uint64_t end = std::strtoull(rest, &at, 16);
  if (at == rest || *at != ' ') return false;
  const char* const allowed = at + 1;
  const char* path = at;
  for (int field = 0; field < kFieldsBeforePath; ++field) {
    path += std::strspn(path, " ");
    const size_t length = std::strcspn(path, " \n");
    if (length == 0) return false;
    path += length;
  }
  path += std::strspn(path, " ");
  const char* const line_end = std::strchr(path, '\n');
  const std::string_view name(path, line_end == nullptr ? std::strlen(path) : static_cast<size_t>(line_end - path));
  const bool is_readable = allowed[0] == 'r', is_of_device = is_device(name);
  line_out->span = {static_cast<uintptr_t>(base), static_cast<uintptr_t>(end)};
  line_out->rights = allowed[1] == 'w' ? uint32_t{PINRAIL_RIGHTS_MASK} : kReadable;
  line_out->is_registrable = is_readable && !is_of_device;
  line_out->reason = is_of_device ? PINRAIL_LEFT_OUT_DEVICE : PINRAIL_LEFT_OUT_PROTECTED;
  return true;
}

// Reads the whole file; the text ends with 0. May throw bad_alloc.
Status read_file(int file, std::vector<char>* text) {
  if (text->size() < kFirstBuffer) text->resize(kFirstBuffer);
  for (size_t length = 0;;) {
    if (length + 1 == text->size()) text->resize(text->size() * 2);
    const ssize_t got = ::read(file, text->data() + length, text->size() - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return PINRAIL_ERR_ERROR;
    length += static_cast<size_t>(got);
    if (got != 0) continue;
    (*text)[length] = 0;
    return success();
  }
}

}  // namespace

Status Maps::read() {
  const Descriptor file(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    const bool is_lack = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    return is_lack ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_AVAILABLE;
  }
  const Status status = read_file(file.get(), &text_);
  if (status.ok()) parse(text_.data());
  return status;
}

void Maps::parse(const char* text) {
  lines_.clear();
  if (lines_.capacity() == 0) lines_.reserve(1024);
  while (text != nullptr && *text != 0) {
    Line line{};
    if (parse_line(text, &line)) lines_.push_back(line);
    text = std::strchr(text, '\n');
    if (text != nullptr) ++text;
  }
}

size_t Maps::first_above(uintptr_t at) const {
  const auto found = std::upper_bound(lines_.begin(), lines_.end(), at,
                                      [](uintptr_t address, const Line& line) { return address < line.span.end; });
  return static_cast<size_t>(found - lines_.begin());
}

bool Maps::is_registrable(const Span& span, uint32_t* rights_out, pinrail_left_out_reason_t* reason_out) const {
  uint32_t rights = PINRAIL_RIGHTS_MASK;
  *reason_out = PINRAIL_LEFT_OUT_NONE;
  uintptr_t at = span.base;
  for (size_t i = first_above(at); at < span.end; ++i) {
    if (i == lines_.size() || lines_[i].span.base > at) return false;
    if (!lines_[i].is_registrable) {
      *reason_out = lines_[i].reason;
      return false;
    }
    rights &= lines_[i].rights;
    at = lines_[i].span.end;
  }
  *rights_out = rights;
  return true;
}

Span Maps::extend(const Span& span, uint32_t rights, size_t step) const {
  const auto permits = [&](const Line& line) { return line.is_registrable && (rights & ~line.rights) == 0; };
  const uintptr_t lowest = span.base - span.base % step;
  const uintptr_t highest = span.end > UINTPTR_MAX - step ? span.end : span.end + (step - span.end % step) % step;
  Span wider = span;
  size_t i = first_above(span.base);
  if (i == lines_.size()) return span;
  for (size_t below = i + 1; below-- > 0 && wider.base > lowest;) {
    const Line& line = lines_[below];
    if (!permits(line) || line.span.end < wider.base) break;
    wider.base = std::max(lowest, std::min(wider.base, line.span.base));
  }
  for (; i < lines_.size() && lines_[i].span.base <= wider.end && wider.end < highest && permits(lines_[i]); ++i) {
    wider.end = std::min(highest, std::max(wider.end, lines_[i].span.end));
  }
  return wider;
}

}  // namespace pinrail::mrall
