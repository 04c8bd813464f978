// SPDX-License-Identifier: BSD-3-Clause
// Compares page frames and bytes of hits. API context; no lock is held while the kernel or the registrar is asked.
#include "framework/mpool/hit_check.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>

#include "base/core/kernel.h"
#include "framework/monitor/mapping.h"

namespace pinrail::mpool {
namespace {

constexpr size_t kSampledPages = 16, kSampledBytes = 64, kPiece = 65536;
// How often a byte is looked at that differs, and the pause before the first, second and so on.
constexpr int kLooks = 16;
constexpr long kPause = 20000;  // nanoseconds

Span pages_of(const Span& span) {
  Span pages = span;
  (void)round_out(&pages, page_bytes());
  return pages;
}

// Reads the process's own memory, which may be unmapped or protected. False: it is, or the kernel forbids the call.
bool read_process(const Span& at, unsigned char* into) {
  const iovec local = {into, at.length()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): spans are numbers
  const iovec remote = {reinterpret_cast<void*>(at.base), at.length()};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(at.length());
}

std::string frame_text(uint64_t frame) {
  if (frame == 0) return "none";
  char text[24];
  std::snprintf(text, sizeof(text), "%#" PRIx64, frame);
  return text;
}

}  // namespace

std::atomic<uint32_t> watchers{0};

HitCheck::HitCheck(Check check, pinrail_bound_registrar_t* registrar) : check_(check), registrar_(registrar) {
  watchers.fetch_add(1, std::memory_order_relaxed);
}
HitCheck::~HitCheck() { watchers.fetch_sub(1, std::memory_order_relaxed); }

bool HitCheck::can_compare() const {
  if (registrar_->table.device_read != nullptr) return true;
  uint64_t frame = 0;
  const Span here = pages_of(Span::of(reinterpret_cast<uintptr_t>(&frame), sizeof(frame)));
  uint64_t frames[2] = {};
  return registrar_->table.pins_nothing == 0 && monitor::read_frames({here.base, here.base + page_bytes()}, frames) &&
         frames[0] != 0;
}

// False: it was not known, and is now. Reads the kernel's table without the lock: two threads may both do so.
bool HitCheck::find_or_note(pinrail_handle_t handle, const Span& pages, Frames* frames_out) {
  const Span whole = pages_of(Span::of(reinterpret_cast<uintptr_t>(handle.reg->base), handle.reg->length));
  {
    Guard guard(mutex_);
    const auto at = known_.find(handle.reg);
    if (at != known_.end() && at->second.generation == handle.generation) {
      const Frames& frames = at->second.frames;
      const size_t first = (pages.base - whole.base) / page_bytes(), count = pages.length() / page_bytes();
      if (!frames.empty()) frames_out->assign(frames.data() + first, frames.data() + first + count);
      return true;
    }
  }
  Frames frames;
  const bool is_on_demand = (handle.reg->traits & PINRAIL_TRAIT_ON_DEMAND) != 0;
  if (registrar_->table.pins_nothing == 0 && !is_on_demand) {  // what is not pinned may move
    frames.resize(whole.length() / page_bytes());
    if (!monitor::read_frames(whole, frames.data())) frames.clear();
  }
  Guard guard(mutex_);
  known_[handle.reg] = {handle.generation, std::move(frames)};
  return false;
}

// All of the range, or, for a sample, so many bytes of it anywhere.
Span HitCheck::part_of(const Span& asked, size_t most) const {
  if (check_ == Check::all || asked.length() <= most) return asked;
  const uint64_t draw = draws_.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15u >> 16;
  const uintptr_t base = asked.base + draw % (asked.length() - most + 1);
  return {base, base + most};
}

// is_known: of all pages of the range.
std::string HitCheck::other_frame(const Span& pages, const Frames& then, bool* is_known_out) const {
  Frames now(then.size());
  *is_known_out =
      !then.empty() && monitor::read_frames(pages, now.data()) && std::find(then.begin(), then.end(), 0) == then.end();
  for (size_t i = 0; i < now.size() && *is_known_out; ++i) {
    if (now[i] == then[i]) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "the device has page frame %s at %#" PRIxPTR " and the process has %s",
                  frame_text(then[i]).c_str(), pages.base + i * page_bytes(), frame_text(now[i]).c_str());
    return text;
  }
  return {};
}

bool HitCheck::look(pinrail_thread_t* thread, pinrail_handle_t handle, const Span& at, Look* look_out) const {
  look_out->process.resize(at.length());
  look_out->device.resize(at.length());
  const size_t offset = at.base - reinterpret_cast<uintptr_t>(handle.reg->base);
  return read_process(at, look_out->process.data()) &&
         registrar::device_read(registrar_, thread, handle.reg, offset, look_out->device.data(), at.length()) ==
             PINRAIL_SUCCESS;
}

// hit_check/W1. Empty: no byte differs; none: one side cannot be looked at.
std::optional<std::string> HitCheck::other_byte(pinrail_thread_t* thread, pinrail_handle_t handle,
                                                const Span& at) const {
  Look first;
  if (!look(thread, handle, at, &first)) return {};
  if (first.process == first.device) return "";
  std::vector<size_t> others;
  for (size_t i = 0; i < at.length(); ++i) {
    if (first.process[i] != first.device[i]) others.push_back(i);
  }
  for (int looks = 1; looks < kLooks && !others.empty(); ++looks) {
    const timespec pause = {0, looks * kPause};
    (void)nanosleep(&pause, nullptr);
    Look again;
    if (!look(thread, handle, at, &again)) return {};
    const auto has_changed = [&](size_t i) {
      return again.process[i] != first.process[i] || again.device[i] != first.device[i];
    };
    others.erase(std::remove_if(others.begin(), others.end(), has_changed), others.end());
  }
  if (others.empty()) return "";
  const size_t i = others.front();
  char text[128];
  std::snprintf(text, sizeof(text), "the byte at %#" PRIxPTR " is %#x for the device and %#x for the process",
                at.base + i, first.device[i], first.process[i]);
  return text;
}

std::string HitCheck::difference(pinrail_thread_t* thread, pinrail_handle_t handle, const Span& asked) {
  const Span pages = pages_of(part_of(asked, kSampledPages * page_bytes()));
  Frames frames;
  if (!find_or_note(handle, pages, &frames)) return {};
  bool is_known = false;
  std::string text = other_frame(pages, frames, &is_known);
  if (is_known) return counted(text);
  if (registrar_->table.device_read == nullptr) return {};
  const Span part = part_of(asked, kSampledBytes);
  for (uintptr_t base = part.base; base < part.end && text.empty(); base += kPiece) {
    const auto other = other_byte(thread, handle, {base, std::min(base + kPiece, part.end)});
    if (!other) return {};
    text = *other;
  }
  return counted(text);
}

// relaxed: figures.
std::string HitCheck::counted(std::string difference) {
  compared_.fetch_add(1, std::memory_order_relaxed);
  if (!difference.empty()) differed_.fetch_add(1, std::memory_order_relaxed);
  return difference;
}

std::string HitCheck::result() const {
  return std::to_string(compared_.load(std::memory_order_relaxed)) +
         " hits were compared with what the device sees, and " +
         std::to_string(differed_.load(std::memory_order_relaxed)) + " differed";
}

}  // namespace pinrail::mpool
