// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc/self/maps. API context; the caller holds no lock.
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "components/mpool/mrall/mrall.h"

namespace pinrail::mrall {
namespace {

constexpr uint32_t kReadable = PINRAIL_ACCESS_REMOTE_READ;

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// Whether the path names memory of a device or of the kernel, which cannot be pinned.
bool is_device(std::string_view path) {
  if (begins(path, "[v") || begins(path, "anon_inode:")) return true;  // vdso, vvar, vsyscall; rings
  return begins(path, "/dev/") && !begins(path, "/dev/shm/") && !begins(path, "/dev/zero") &&
         !begins(path, "/dev/hugepages/");
}

}  // namespace

Status Maps::read() {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen("/proc/self/maps", "re"), close);
  if (file == nullptr) {
    const bool is_lack = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    return is_lack ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_AVAILABLE;
  }
  lines_.clear();
  if (lines_.capacity() == 0) lines_.reserve(1024);
  char text[512];
  for (bool is_start = true; std::fgets(text, sizeof(text), file.get()) != nullptr;) {
    if (is_start) add(text);
    is_start = std::strchr(text, '\n') != nullptr;  // the rest of a long path begins no line
  }
  return std::ferror(file.get()) != 0 ? PINRAIL_ERR_ERROR : PINRAIL_SUCCESS;
}

void Maps::add(const char* text) {
  Line line{};
  char allowed[5] = "";
  int path_at = 0;
  // NOLINTNEXTLINE(cert-err34-c): the kernel wrote it
  const int fields = std::sscanf(text, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %*s %n", &line.span.base, &line.span.end,
                                 allowed, &path_at);
  if (fields != 3 || path_at == 0) return;
  const bool is_of_device = is_device(text + path_at);
  line.rights = allowed[1] == 'w' ? uint32_t{PINRAIL_RIGHTS_MASK} : kReadable;
  line.is_registrable = allowed[0] == 'r' && !is_of_device;
  line.reason = is_of_device ? PINRAIL_LEFT_OUT_DEVICE : PINRAIL_LEFT_OUT_PROTECTED;
  lines_.push_back(line);
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
