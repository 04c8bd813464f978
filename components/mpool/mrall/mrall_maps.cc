// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc/self/maps. API context; the caller holds no lock.
#include <sys/mman.h>

#include <cerrno>
#include <string_view>

#include "base/core/files.h"
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
  lines_.clear();
  if (lines_.capacity() == 0) lines_.reserve(1024);
  const bool is_read = patch::for_each_mapping([&](const patch::Mapping& mapping) {
    add(mapping);
    return true;
  });
  if (is_read) return success();
  return is_lack(errno) ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_AVAILABLE;
}

void Maps::add(const patch::Mapping& mapping) {
  const bool is_of_device = is_device(mapping.path);
  lines_.push_back({{mapping.base, mapping.end},
                    (mapping.protection & PROT_WRITE) != 0 ? uint32_t{PINRAIL_RIGHTS_MASK} : kReadable,
                    (mapping.protection & PROT_READ) != 0 && !is_of_device,
                    is_of_device ? PINRAIL_LEFT_OUT_DEVICE : PINRAIL_LEFT_OUT_PROTECTED});
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
