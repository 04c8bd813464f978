// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock.
#include "base/patch/decode.h"

#include <algorithm>
#include <cstring>

#include "base/patch/frame.h"

namespace pinrail::patch {
namespace {

// Reads another runtime's patch: jmp rel32 (UCX), or movabs and a jump through the register (Open MPI).
bool read_foreign(const uint8_t* code, uintptr_t address, PatchPoint* entry) {
  constexpr uint8_t kJump = 0xe9;
  if (code[0] == kJump) {
    int32_t relative;
    std::memcpy(&relative, code + 1, sizeof(relative));
    entry->foreign = address + kJumpLength + static_cast<uintptr_t>(intptr_t{relative});
    entry->length = kJumpLength;
    return true;
  }
  constexpr size_t kMove = 10;
  constexpr uint8_t kToR11[] = {0x49, 0xbb}, kByR11[] = {0x41, 0xff, 0xe3};
  constexpr uint8_t kToRax[] = {0x48, 0xb8}, kByRax[] = {0xff, 0xe0};
  const bool by_r11 = std::memcmp(code, kToR11, 2) == 0 && std::memcmp(code + kMove, kByR11, sizeof(kByR11)) == 0;
  const bool by_rax = std::memcmp(code, kToRax, 2) == 0 && std::memcmp(code + kMove, kByRax, sizeof(kByRax)) == 0;
  if (!by_r11 && !by_rax) return false;
  std::memcpy(&entry->foreign, code + 2, sizeof(entry->foreign));
  entry->length = kMove + (by_r11 ? sizeof(kByR11) : sizeof(kByRax));
  return true;
}

constexpr size_t kLongestForeign = 13;

class Decoder {
 public:
  Decoder(const uint8_t* code, size_t length, uintptr_t address, const Signature& signature,
          const Disassembler& disassembler)
      : code_(code), length_(length), address_(address), signature_(signature), disassembler_(disassembler) {}

  // Looks for the first place where a jump is safe. NOT_SUPPORTED: there is none.
  Status run(PatchPoint* entry_out) {
    while (entry_.offset + kLongestForeign <= kMaxDecoded) {
      if (is_foreign()) return finish(entry_out);
      Instruction instruction;
      if (!read_at(entry_.offset, &instruction)) break;
      entry_.length = instruction.length;
      if (entry_.offset + entry_.length > kMaxDecoded) break;
      if (may_displace(instruction) && finish(entry_out).ok()) return success();
      if (!note_moved(instruction) || !frame_.run(instruction)) break;
      entry_.offset += instruction.length;
    }
    return PINRAIL_ERR_NOT_SUPPORTED;
  }

 private:
  bool read_at(size_t offset, Instruction* out) const {
    return offset < length_ && disassembler_.read(code_ + offset, length_ - offset, out);
  }

  bool has_room() const { return entry_.length >= kJumpLength && fits_block(address_ + entry_.offset, 16); }

  bool is_foreign() {
    if (read_foreign(code_ + entry_.offset, address_ + entry_.offset, &entry_) && has_room()) return true;
    entry_.foreign = 0;
    return false;
  }

  bool may_displace(const Instruction& instruction) const {
    return has_room() && !is_unknown_patch(instruction) && !is_branch_target() && is_before_system_call();
  }

  // Returns whether the bytes may be a patch of a kind that is not known here, which would be lost: a jump, or an
  // instruction that is followed by a jump or a return.
  bool is_unknown_patch(const Instruction& instruction) const {
    if (instruction.operation == Operation::jump || instruction.operation == Operation::jump_by) return true;
    Instruction next;
    if (!read_at(entry_.offset + entry_.length, &next)) return false;
    return next.operation == Operation::jump_by ||
           (next.operation == Operation::leave && instruction.operation == Operation::push);
  }

  // Checks decode/D1. A branch to the function's first byte needs no check: it finds the state that a caller leaves.
  bool is_branch_target() const {
    const auto end = static_cast<int64_t>(entry_.offset + entry_.length);
    Instruction instruction;
    for (size_t at = 0; read_at(at, &instruction); at += instruction.length) {
      const bool leads = instruction.operation == Operation::branch || instruction.operation == Operation::jump ||
                         instruction.operation == Operation::call;
      const int64_t target = static_cast<int64_t>(at) + instruction.length + instruction.relative;
      if (leads && target > 0 && target < end) return true;
    }
    return false;
  }

  // Checks decode/D3.
  bool is_before_system_call() const {
    if (!frame_.has_called()) return true;
    Frame after = frame_;
    Instruction instruction;
    for (size_t at = entry_.offset; read_at(at, &instruction); at += instruction.length) {
      if (instruction.operation == Operation::system_call) {
        return signature_.system_call >= 0 && after.holds_constant(kRax, signature_.system_call);
      }
      if (instruction.operation == Operation::call || !after.run(instruction)) return false;
    }
    return false;
  }

  // Records a relative displacement, which must be corrected in a copy of the instruction. False: it has not 4 bytes,
  // or there are too many.
  bool note_moved(const Instruction& instruction) {
    if (instruction.relative_at == 0) return true;
    if (instruction.relative_bytes != 4 || entry_.moved_count == kMaxMoved) return false;
    entry_.moved_at[entry_.moved_count++] = static_cast<uint8_t>(entry_.offset + instruction.relative_at);
    return true;
  }

  // Completes the entry for a jump at the current offset. NOT_SUPPORTED if the instructions before it cannot be undone.
  Status finish(PatchPoint* entry_out) {
    PatchPoint entry = entry_;
    if (entry.foreign == 0) {
      Instruction displaced;
      const size_t before = entry_.moved_count;
      if (!read_at(entry_.offset, &displaced) || !note_moved(displaced)) return PINRAIL_ERR_NOT_SUPPORTED;
      entry = entry_;
      entry_.moved_count = before;
    }
    if (!frame_.write_undo(signature_, entry.undo, kMaxUndo, &entry.undo_length)) return PINRAIL_ERR_NOT_SUPPORTED;
    *entry_out = entry;
    return success();
  }

  const uint8_t* const code_;
  const size_t length_;
  const uintptr_t address_;
  const Signature& signature_;
  const Disassembler& disassembler_;
  PatchPoint entry_;
  Frame frame_;
};

}  // namespace

Status decode(const uint8_t* code, size_t length, uintptr_t address, const Signature& signature,
              const Disassembler& disassembler, PatchPoint* entry_out) {
  return Decoder(code, length, address, signature, disassembler).run(entry_out);
}

}  // namespace pinrail::patch
