// SPDX-License-Identifier: BSD-3-Clause
// memory.cc - buffers whose every page has contents that identify its mapping.
#include "contrib/tools/perf/memory.h"

#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

uint64_t mix(uint64_t value) {
  value ^= value >> 31;
  value *= 0x9e3779b97f4a7c15u;
  return value ^ value >> 29;
}

}  // namespace

void fill_pages(uintptr_t base, size_t length, uint64_t stamp) {
  const size_t words_per_page = page_size() / sizeof(uint64_t);
  for (size_t offset = 0; offset < length; offset += page_size()) {
    auto* words = reinterpret_cast<uint64_t*>(base + offset);
    const uint64_t seed = mix(mix(base + offset) + stamp);
    for (size_t i = 0; i < words_per_page; i++) words[i] = seed + i * 0x0101010101010101u;
  }
}

Result map_empty(uintptr_t base, size_t length) {
  void* const at = reinterpret_cast<void*>(base);
  if (mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != at)
    return Result::bad(text("mapping %s again: %s", size_text(length).c_str(), errno_text().c_str()));
  // Kernels without transparent huge pages refuse this; their pages are small anyway.
  (void)madvise(at, length, MADV_NOHUGEPAGE);
  return Result::good();
}

Result map_fresh(uintptr_t base, size_t length, uint64_t stamp) {
  Result mapped = map_empty(base, length);
  if (mapped.ok()) fill_pages(base, length, stamp);
  return mapped;
}

Result Buffers::map(size_t count, size_t size, Pages pages) {
  const size_t unit = pages == Pages::huge ? kHugePage : page_size();
  const size_t stride = round_up(size, unit);
  size_t length = 0;
  if (__builtin_mul_overflow(stride, count, &length) || length > available_memory())
    return Result::bad(
        text("%zu buffers of %s are more memory than this machine has free", count, size_text(size).c_str()));
  void* const reserved = mmap(nullptr, length + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    return Result::bad(text("mapping %s: %s", size_text(length).c_str(), errno_text().c_str()));
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  base_ = round_up(start, unit);
  if (base_ > start) munmap(reserved, base_ - start);
  munmap(reinterpret_cast<void*>(base_ + length), start + unit - base_);
  size_ = size;
  pages_ = pages;
  stride_ = stride;
  changed_at_.assign(count, 0);
  if (pages == Pages::small) return map_fresh(base_, length, 0);
  void* const base = reinterpret_cast<void*>(base_);
  if (mprotect(base, length, PROT_READ | PROT_WRITE) != 0 || madvise(base, length, MADV_HUGEPAGE) != 0)
    return Result::bad(text("asking for hugepages: %s", errno_text().c_str()));
  fill_pages(base_, length, 0);
  return Result::good();
}

void Buffers::unmap() {
  if (base_ == 0) return;
  const size_t length = stride_ * changed_at_.size();
  pinrail_monitor_report(reinterpret_cast<void*>(base_), length);
  munmap(reinterpret_cast<void*>(base_), length);
  base_ = 0;
  changed_at_.clear();
}

Result Buffers::remap(size_t index) {
  changed_at_[index] = ++changes_;
  const uintptr_t base = base_ + index * stride_;
  pinrail_monitor_report(reinterpret_cast<void*>(base), stride_);
  return map_fresh(base, stride_, changes_);
}

}  // namespace pinrail::perf
