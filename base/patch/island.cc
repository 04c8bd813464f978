// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock.
#include "base/patch/island.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstring>

#include "base/patch/enter_hook.h"
#include "base/patch/maps.h"

namespace pinrail::patch {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kLowest = 0x100000;  // islands are not placed below: null pointers with an offset may lead there
constexpr int kMaxTries = 100;           // another thread may map the gap first

uintptr_t distance(uintptr_t a, uintptr_t b) { return a < b ? b - a : a - b; }

// Left free for the heap, which grows up, and for the stack, which grows down.
constexpr uintptr_t kRoomToGrow = uintptr_t{1} << 30;

struct Gap {
  uintptr_t near;
  uintptr_t behind = kLowest;  // the end of the previous mapping
  bool below_grows = false;    // true if the previous mapping is the heap
  uintptr_t best = 0;

  void offer(uintptr_t at) {
    if (best == 0 || distance(at, near) < distance(best, near)) best = at;
  }
};

// A visitor for for_each_mapping(). Offers the two ends of each gap, which are its nearest free pages.
bool look_at(void* arg, const Mapping& mapping) {
  auto* gap = static_cast<Gap*>(arg);
  const bool above_grows = std::strncmp(mapping.name, "[stack", 6) == 0;
  const uintptr_t room = mapping.base > gap->behind ? mapping.base - gap->behind : 0;
  if (room >= (gap->below_grows || above_grows ? kRoomToGrow : kPage)) {
    if (!gap->below_grows) gap->offer(gap->behind);
    if (!above_grows) gap->offer(mapping.base - kPage);
  }
  gap->below_grows = std::strncmp(mapping.name, "[heap", 5) == 0;
  gap->behind = mapping.end;
  return true;
}

}  // namespace

// Maps a writable page at most `reach` bytes from `near`. NULL if there is none.
uint8_t* map_near(uintptr_t near, uintptr_t reach) {
  for (int tries = 0; tries < kMaxTries; ++tries) {
    Gap gap{near};
    if (!for_each_mapping(look_at, &gap) || gap.best == 0 || distance(gap.best, near) > reach) return nullptr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address of the gap that was found
    void* const got = mmap(reinterpret_cast<void*>(gap.best), kPage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (reinterpret_cast<uintptr_t>(got) == gap.best) return static_cast<uint8_t*>(got);
    // A kernel that does not know MAP_FIXED_NOREPLACE took the address as a hint.
    if (got != MAP_FAILED) munmap(got, kPage);
  }
  return nullptr;
}

#ifdef __x86_64__

namespace {

constexpr uintptr_t kReach = 0x7fff0000 - kPage;  // the reach of a jump, less a page for where it starts

// Writes code, and records whether a displacement did not fit.
class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}

  uintptr_t here() const { return reinterpret_cast<uintptr_t>(at_); }
  bool fits() const { return fits_; }

  void bytes(const uint8_t* from, size_t length) {
    std::memcpy(at_, from, length);
    at_ += length;
  }
  template <size_t N>
  void code(const uint8_t (&from)[N]) {
    bytes(from, N);
  }
  void word(uintptr_t value) { bytes(reinterpret_cast<const uint8_t*>(&value), sizeof(value)); }
  void align() {
    while (here() % 16 != 0) *at_++ = 0xcc;
  }

  // Corrects the displacement at `at`, whose instruction was moved by moved_by bytes.
  void move_relative(uint8_t* at, intptr_t moved_by) {
    int32_t relative;
    std::memcpy(&relative, at, sizeof(relative));
    put_relative(at, intptr_t{relative} - moved_by);
  }
  void jump_to(uintptr_t target) {
    code({0xe9, 0, 0, 0, 0});
    put_relative(at_ - 4, static_cast<intptr_t>(target - here()));
  }
  void jump_far(uintptr_t target) {
    code({0x3e, 0xff, 0x25, 0, 0, 0, 0});  // notrack jmp *0(%rip)
    word(target);
  }

 private:
  void put_relative(uint8_t* at, intptr_t relative) {
    const auto narrow = static_cast<int32_t>(relative);
    fits_ = fits_ && narrow == relative;
    std::memcpy(at, &narrow, sizeof(narrow));
  }

  uint8_t* at_;
  bool fits_ = true;
};

constexpr uint8_t kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};

// Registers are as at the function's entry, except r11, which points to the record of hook and argument.
void write_enter(Writer* writer, const PatchPoint& entry, uintptr_t record) {
  writer->code(kEndbr64);
  writer->bytes(entry.undo, entry.undo_length);
  writer->code({0x49, 0xbb});  // movabs $record, %r11
  writer->word(record);
  writer->jump_far(reinterpret_cast<uintptr_t>(&pinrail_patch_enter_hook));
}

// Copies the code before the jump. Then it jumps to the other runtime's patch, or copies the displaced instruction and
// jumps to the rest of the function.
void write_original(Writer* writer, uintptr_t function, const uint8_t* code, const PatchPoint& entry) {
  writer->code(kEndbr64);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the writer's position
  auto* const copy = reinterpret_cast<uint8_t*>(writer->here());
  writer->bytes(code, entry.foreign != 0 ? entry.offset : entry.offset + entry.length);
  for (size_t i = 0; i < entry.moved_count; ++i) {
    writer->move_relative(copy + entry.moved_at[i], reinterpret_cast<intptr_t>(copy) - static_cast<intptr_t>(function));
  }
  if (entry.foreign != 0) {
    writer->jump_far(entry.foreign);
    return;
  }
  writer->jump_to(function + entry.offset + entry.length);
}

}  // namespace

Status build_island(uintptr_t function, const uint8_t* code, const PatchPoint& entry, Hook hook, void* arg,
                    Island* island_out) {
  uint8_t* const page = map_near(function, kReach);
  if (page == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Writer writer(page);
  const uintptr_t record = writer.here();
  writer.word(reinterpret_cast<uintptr_t>(hook));
  writer.word(reinterpret_cast<uintptr_t>(arg));
  Island island;
  island.enter = writer.here();
  write_enter(&writer, entry, record);
  writer.align();
  island.original = writer.here();
  write_original(&writer, function, code, entry);
  const auto at = reinterpret_cast<long>(page);
  const bool runs = !is_error_hook(system_call_hook(SYS_mprotect, at, kPage, PROT_READ | PROT_EXEC));
  if (!runs || !writer.fits()) {
    system_call_hook(SYS_munmap, at, kPage);
    return runs ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_PERM;
  }
  *island_out = island;
  return success();
}

#endif

}  // namespace pinrail::patch

#endif
