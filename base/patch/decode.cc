// SPDX-License-Identifier: BSD-3-Clause
#include "base/patch/decode.h"

#include <cstring>

namespace pinrail::patch {
namespace {

enum class Kind : uint8_t {
  harmless,      // may run before the jump, and needs no undoing
  take_stack,    // sub $imm8, %rsp
  push,          // of a register that the function keeps
  push_high,     // the same of r8 to r15
  shift,         // mov %from, %to, of an argument to where a system call expects it: mov %to, %from gives it back
  displaceable,  // five bytes or more, and no branch
  branch,        // jmp rel32: a patch
  move_branch,   // mov $imm64, %reg; jmp *%reg: a patch
};

struct Pattern {
  Kind kind;
  uint8_t length;
  uint8_t relative_at;
  uint8_t bytes[5];  // what it begins with
  uint8_t byte_count;
};

// Instructions that are known, as the glibc versions of common distributions begin with them. A displaced one is also
// harmless if it may stand before the jump.
constexpr Pattern kPatterns[] = {
    {Kind::harmless, 4, 0, {0xf3, 0x0f, 0x1e, 0xfa}, 4},            // endbr64
    {Kind::harmless, 3, 0, {0x41, 0x89, 0xca}, 3},                  // mov %ecx, %r10d
    {Kind::harmless, 3, 0, {0x49, 0x89, 0xca}, 3},                  // mov %rcx, %r10
    {Kind::harmless, 2, 0, {0x31, 0xc0}, 2},                        // xor %eax, %eax
    {Kind::harmless, 5, 0, {0xb8}, 1},                              // mov $imm32, %eax
    {Kind::harmless, 1, 0, {0x90}, 1},                              // nop
    {Kind::harmless, 2, 0, {0x66, 0x90}, 2},                        // xchg %ax, %ax
    {Kind::take_stack, 4, 0, {0x48, 0x83, 0xec}, 3},                // sub $imm8, %rsp
    {Kind::push, 1, 0, {0x53}, 1},                                  // push %rbx
    {Kind::push, 1, 0, {0x55}, 1},                                  // push %rbp
    {Kind::push_high, 2, 0, {0x41, 0x54}, 2},                       // push %r12
    {Kind::push_high, 2, 0, {0x41, 0x55}, 2},                       // push %r13
    {Kind::push_high, 2, 0, {0x41, 0x56}, 2},                       // push %r14
    {Kind::push_high, 2, 0, {0x41, 0x57}, 2},                       // push %r15
    {Kind::shift, 3, 0, {0x48, 0x89, 0xf8}, 3},                     // mov %rdi, %rax: syscall() begins so
    {Kind::shift, 3, 0, {0x48, 0x89, 0xf7}, 3},                     // mov %rsi, %rdi
    {Kind::shift, 3, 0, {0x48, 0x89, 0xd6}, 3},                     // mov %rdx, %rsi
    {Kind::shift, 3, 0, {0x48, 0x89, 0xca}, 3},                     // mov %rcx, %rdx
    {Kind::shift, 3, 0, {0x4d, 0x89, 0xc2}, 3},                     // mov %r8, %r10
    {Kind::shift, 3, 0, {0x4d, 0x89, 0xc8}, 3},                     // mov %r9, %r8
    {Kind::displaceable, 5, 0, {0x4c, 0x8b, 0x4c, 0x24}, 4},        // mov disp8(%rsp), %r9
    {Kind::displaceable, 7, 0, {0x41, 0xf7, 0xc1}, 3},              // test $imm32, %r9d
    {Kind::displaceable, 5, 0, {0x4c, 0x89, 0x44, 0x24}, 4},        // mov %r8, disp8(%rsp)
    {Kind::displaceable, 7, 2, {0x80, 0x3d}, 2},                    // cmpb $imm8, rel32(%rip)
    {Kind::displaceable, 7, 3, {0x48, 0x8b, 0x05}, 3},              // mov rel32(%rip), %rax
    {Kind::displaceable, 6, 2, {0x8b, 0x05}, 2},                    // mov rel32(%rip), %eax
    {Kind::displaceable, 9, 0, {0x64, 0x48, 0x8b, 0x04, 0x25}, 5},  // mov %fs:disp32, %rax
    {Kind::displaceable, 8, 0, {0x64, 0x8b, 0x04, 0x25}, 4},        // mov %fs:disp32, %eax
    {Kind::branch, 5, 1, {0xe9}, 1},                                // jmp rel32
    {Kind::move_branch, 13, 0, {0x49, 0xbb}, 2},                    // movabs $imm64, %r11; jmp *%r11
    {Kind::move_branch, 12, 0, {0x48, 0xb8}, 2},                    // movabs $imm64, %rax; jmp *%rax
};

bool matches(const Pattern& pattern, const uint8_t* code, size_t room) {
  if (pattern.length > room) return false;
  if (std::memcmp(pattern.bytes, code, pattern.byte_count) != 0) return false;
  if (pattern.kind != Kind::move_branch) return true;
  // The jump behind the ten bytes of the move.
  const uint8_t r11[] = {0x41, 0xff, 0xe3};
  const uint8_t rax[] = {0xff, 0xe0};
  return code[1] == 0xbb ? std::memcmp(code + 10, r11, sizeof(r11)) == 0
                         : std::memcmp(code + 10, rax, sizeof(rax)) == 0;
}

const Pattern* find_pattern(const uint8_t* code, size_t room) {
  for (const Pattern& pattern : kPatterns) {
    if (matches(pattern, code, room)) return &pattern;
  }
  return nullptr;
}

uintptr_t target_of(const Pattern& pattern, const uint8_t* code, uintptr_t address) {
  if (pattern.kind == Kind::branch) {
    int32_t relative;
    std::memcpy(&relative, code + 1, sizeof(relative));
    return address + kJumpLength + static_cast<uintptr_t>(intptr_t{relative});
  }
  uintptr_t target;
  std::memcpy(&target, code + 2, sizeof(target));
  return target;
}

// What was done last is undone first.
bool put_before(Entry* entry, const uint8_t* undo, size_t length) {
  if (entry->undo_length + length > kMostUndo) return false;
  std::memmove(entry->undo + length, entry->undo, entry->undo_length);
  std::memcpy(entry->undo, undo, length);
  entry->undo_length += length;
  return true;
}

// Whether the jump may stand behind this instruction, and how it is undone then.
bool step_over(const Pattern& pattern, const uint8_t* code, Entry* entry) {
  switch (pattern.kind) {
    case Kind::harmless: return true;
    case Kind::take_stack: {
      const uint8_t give_back[] = {0x48, 0x83, 0xc4, code[3]};  // add $imm8, %rsp
      return put_before(entry, give_back, sizeof(give_back));
    }
    case Kind::push: {
      const uint8_t pop[] = {static_cast<uint8_t>(code[0] + 8)};
      return put_before(entry, pop, sizeof(pop));
    }
    case Kind::push_high: {
      const uint8_t pop[] = {0x41, static_cast<uint8_t>(code[1] + 8)};
      return put_before(entry, pop, sizeof(pop));
    }
    case Kind::shift: {
      const auto registers = static_cast<uint8_t>(0xc0 | (code[2] & 7) << 3 | (code[2] >> 3 & 7));
      const auto prefix = static_cast<uint8_t>(0x48 | (code[0] & 1) << 2 | (code[0] >> 2 & 1));
      const uint8_t back[] = {prefix, 0x89, registers};
      return put_before(entry, back, sizeof(back));
    }
    case Kind::displaceable:
    case Kind::branch:
    case Kind::move_branch: break;
  }
  return false;
}

bool is_patch(const Pattern& pattern) { return pattern.kind == Kind::branch || pattern.kind == Kind::move_branch; }

}  // namespace

Status decode(const uint8_t* code, uintptr_t address, Entry* entry_out) {
  Entry entry;
  while (const Pattern* pattern = find_pattern(code + entry.offset, kMostDecoded - entry.offset)) {
    const uintptr_t place = address + entry.offset;
    if (pattern->length >= kJumpLength && fits_block(place, 16)) {
      entry.length = pattern->length;
      entry.relative_at = is_patch(*pattern) ? 0 : pattern->relative_at;
      if (is_patch(*pattern)) entry.foreign = target_of(*pattern, code + entry.offset, place);
      *entry_out = entry;
      return success();
    }
    if (!step_over(*pattern, code + entry.offset, &entry)) break;
    entry.offset += pattern->length;
  }
  return PINRAIL_ERR_NOT_SUPPORTED;
}

}  // namespace pinrail::patch
