// SPDX-License-Identifier: BSD-3-Clause
// API context; takes no lock and no reference. Helper threads call most of it.
#include "framework/api/prefault.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "base/core/files.h"
#include "base/core/kernel.h"

namespace pinrail::api {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

uintptr_t page_bytes() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

// The kernel's PAGEMAP_SCAN, which headers before Linux 6.7 lack.
struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArgument {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr uint64_t kPresent = 1 << 3, kHuge = 1 << 6;

}  // namespace

void prefault(const Span& span, Populate populate) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return;
  const int advice = populate == Populate::for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  (void)madvise(pointer(pages.base), pages.length(), advice);
}

void request_huge_pages(const Span& span) {
  if (span.end < kHugePage || span.base > UINTPTR_MAX - kHugePage) return;
  const uintptr_t base = (span.base + kHugePage - 1) & ~(kHugePage - 1), end = span.end & ~(kHugePage - 1);
  if (base < end) (void)madvise(pointer(base), end - base, MADV_HUGEPAGE);
}

uint64_t huge_bytes(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return 0;
  const Descriptor file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return 0;
  PageRegion regions[16];
  ScanArgument scan{};
  scan.size = sizeof(scan);
  scan.start = pages.base;
  scan.end = pages.end;
  scan.vec = reinterpret_cast<uintptr_t>(regions);
  scan.vec_len = sizeof(regions) / sizeof(regions[0]);
  scan.category_mask = scan.return_mask = kPresent | kHuge;
  uint64_t bytes = 0;
  while (scan.start < scan.end) {
    const int found = ioctl_of(file.get(), kPagemapScan, &scan);
    if (found < 0) break;
    for (int i = 0; i < found; ++i) bytes += regions[i].end - regions[i].start;
    if (scan.walk_end <= scan.start) break;
    scan.start = scan.walk_end;
  }
  return bytes;
}

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 1 ? static_cast<unsigned>(count) : 1;
}

}  // namespace pinrail::api
