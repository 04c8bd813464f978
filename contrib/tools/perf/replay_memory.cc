// SPDX-License-Identifier: BSD-3-Clause
// replay_memory.cc - real memory for a trace: the same layout, and pages that really change.
#include "contrib/tools/perf/replay_memory.h"

#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <algorithm>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

// Buffers whose every page has contents that identify its mapping.

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

// Maps a trace's addresses to addresses in this process.

namespace {

// Merges spans that are at most `gap` apart.
std::vector<TraceSpan> merged(std::vector<TraceSpan> spans, uint64_t gap) {
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
  std::vector<TraceSpan> out;
  for (const TraceSpan& span : spans) {
    if (!out.empty() && span.begin <= out.back().end + gap)
      out.back().end = std::max(out.back().end, span.end);
    else
      out.push_back(span);
  }
  return out;
}

// Returns the first of sorted, disjoint spans that ends above addr.
template <typename Span>
typename std::vector<Span>::const_iterator first_behind(const std::vector<Span>& spans, uint64_t addr) {
  return std::upper_bound(spans.begin(), spans.end(), addr,
                          [](uint64_t value, const Span& span) { return value < span.end; });
}

}  // namespace

Layout Layout::of(const Trace& trace, uint64_t page_bytes, uint64_t gap) {
  std::vector<TraceSpan> registered, all;
  for (const TraceRecord& record : trace.records) {
    if (record.op != TraceOp::reg && record.op != TraceOp::find) continue;
    if (record.op == TraceOp::reg && record.id < 0) continue;  // it was refused: its range may be no memory
    const TraceSpan span = {round_down(record.addr, page_bytes), round_up(record.addr + record.size, page_bytes)};
    all.push_back(span);
    if (record.op == TraceOp::reg) registered.push_back(span);
  }
  Layout layout;
  layout.page_bytes_ = page_bytes;
  for (const TraceSpan& span : merged(std::move(all), gap))
    layout.clusters_.push_back({span.begin, span.end, static_cast<uintptr_t>(span.begin)});
  for (const TraceSpan& span : merged(std::move(registered), 0)) {
    layout.touched_.push_back({span.begin, span.end, layout.pages_});
    layout.pages_ += (span.end - span.begin) / page_bytes;
  }
  return layout;
}

uintptr_t Layout::translate(uint64_t addr) const {
  const auto cluster = first_behind(clusters_, addr);
  return cluster->base + static_cast<uintptr_t>(addr - cluster->begin);
}

std::vector<Piece> Layout::in_clusters(TraceSpan span) const {
  std::vector<Piece> pieces;
  for (auto it = first_behind(clusters_, span.begin); it != clusters_.end() && it->begin < span.end; ++it) {
    const uint64_t begin = std::max(it->begin, span.begin), end = std::min(it->end, span.end);
    if (begin < end) pieces.push_back({it->base + static_cast<uintptr_t>(begin - it->begin), end - begin, 0});
  }
  return pieces;
}

std::vector<Piece> Layout::touched_pages_in(TraceSpan span) const {
  std::vector<Piece> pieces;
  if (span.begin >= span.end) return pieces;
  span = {round_down(span.begin, page_bytes_), round_up(span.end, page_bytes_)};
  for (auto it = first_behind(touched_, span.begin); it != touched_.end() && it->begin < span.end; ++it) {
    const uint64_t begin = std::max(it->begin, span.begin), end = std::min(it->end, span.end);
    pieces.push_back({translate(begin), end - begin, it->first_page + (begin - it->begin) / page_bytes_});
  }
  return pieces;
}

namespace {

constexpr uint64_t kAlignment = 2 << 20;  // offsets within a huge page are kept
constexpr uint64_t kNowhere = 1 << 30;
constexpr uint64_t kLowest = 1 << 20;      // NULL and the kernel's reserve are below
constexpr uint64_t kStackRoom = 64 << 20;  // room for this program's own stack
constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* reserve_anywhere(uint64_t length) { return mmap(nullptr, length, PROT_NONE, kReserve, -1, 0); }

bool may_lie_at(const Cluster& cluster) {
  char here = 0;
  const auto stack = reinterpret_cast<uintptr_t>(&here);
  const bool in_stack = cluster.begin < stack + kStackRoom && cluster.end > stack - kStackRoom;
  return cluster.begin >= kLowest && !in_stack;
}

// The address is compared, because old kernels treat MAP_FIXED_NOREPLACE as a hint.
bool reserve_at(uint64_t addr, uint64_t length) {
  void* const wanted = reinterpret_cast<void*>(addr);
  void* const got = mmap(wanted, length, PROT_NONE, kReserve | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return true;
  if (got != MAP_FAILED) munmap(got, length);
  return false;
}

}  // namespace

ReplayMemory::~ReplayMemory() {
  for (const Mapping& mapping : mappings_) {
    pinrail_monitor_report(mapping.base, mapping.length);
    munmap(mapping.base, mapping.length);
  }
}

Result ReplayMemory::reserve(Cluster* cluster) {
  const uint64_t length = cluster->end - cluster->begin;
  if (may_lie_at(*cluster) && reserve_at(cluster->begin, length)) {
    mappings_.push_back({reinterpret_cast<void*>(cluster->begin), length});
    return Result::good();
  }
  void* const got = reserve_anywhere(length + kAlignment);
  if (got == MAP_FAILED)
    return Result::bad(text("the trace's ranges near %llx span %s, which cannot be reserved here: %s",
                            static_cast<unsigned long long>(cluster->begin), size_text(length).c_str(),
                            errno_text().c_str()));
  mappings_.push_back({got, length + kAlignment});
  const auto base = reinterpret_cast<uintptr_t>(got);
  cluster->base = base + static_cast<uintptr_t>((cluster->begin - base) % kAlignment);
  return Result::good();
}

Result ReplayMemory::map(const Trace& trace) {
  layout_ = Layout::of(trace, page_size());
  if (layout_.touched_pages() > available_memory() / page_size())
    return Result::bad(text("the trace touches %llu pages, more memory than this machine has free",
                            static_cast<unsigned long long>(layout_.touched_pages())));
  for (Cluster& cluster : layout_.clusters()) {
    Result reserved = reserve(&cluster);
    if (!reserved.ok()) return reserved;
  }
  changed_at_.assign(layout_.touched_pages(), 0);
  resident_.assign(layout_.touched_pages(), false);
  for (const Touched& touched : layout_.touched()) {
    Result mapped = map_piece({layout_.translate(touched.begin), touched.end - touched.begin, touched.first_page});
    if (!mapped.ok()) return mapped;
  }
  void* const nowhere = reserve_anywhere(kNowhere + page_size());
  if (nowhere == MAP_FAILED) return Result::good();
  mappings_.push_back({nowhere, kNowhere + page_size()});
  nowhere_ = reinterpret_cast<uintptr_t>(nowhere);
  nowhere_bytes_ = kNowhere;
  return Result::good();
}

Result ReplayMemory::map_piece(const Piece& piece) {
  const auto first = static_cast<std::ptrdiff_t>(piece.first_page);
  const bool fill = touch_ == Touch::at_birth;
  std::fill_n(resident_.begin() + first, piece.length / page_size(), fill);
  std::fill_n(changed_at_.begin() + first, piece.length / page_size(), changes_);
  return fill ? map_fresh(piece.base, piece.length, changes_) : map_empty(piece.base, piece.length);
}

bool ReplayMemory::has(TraceSpan span) const {
  const std::vector<Piece> pieces = layout_.touched_pages_in(span);
  return pieces.size() == 1 && pieces[0].length >= span.end - span.begin;
}

void ReplayMemory::touch(TraceSpan span) {
  if (touch_ == Touch::at_birth) return;
  for (const Piece& piece : layout_.touched_pages_in(span)) {
    for (uint64_t offset = 0; offset < piece.length; offset += page_size()) {
      const uint64_t page = piece.first_page + offset / page_size();
      if (!resident_[page]) fill_pages(piece.base + offset, page_size(), changed_at_[page]);
      resident_[page] = true;
    }
  }
}

std::vector<Piece> ReplayMemory::to_report(TraceSpan span) const {
  std::vector<Piece> pieces = layout_.in_clusters(span);
  const uint64_t length = std::min(span.end - span.begin, nowhere_bytes_);
  if (pieces.empty() && length > 0) pieces.push_back({nowhere_ + span.begin % page_size(), length, 0});
  return pieces;
}

Result ReplayMemory::remap(TraceSpan span) {
  changes_++;
  for (const Piece& piece : layout_.touched_pages_in(span)) {
    Result mapped = map_piece(piece);
    if (!mapped.ok()) return mapped;
  }
  return Result::good();
}

uint64_t ReplayMemory::changed_at(TraceSpan span) const {
  uint64_t last = 0;
  for (const Piece& piece : layout_.touched_pages_in(span)) {
    const auto first = changed_at_.begin() + static_cast<std::ptrdiff_t>(piece.first_page);
    last = std::max(last, *std::max_element(first, first + static_cast<std::ptrdiff_t>(piece.length / page_size())));
  }
  return last;
}

}  // namespace pinrail::perf
