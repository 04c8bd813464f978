// SPDX-License-Identifier: BSD-3-Clause
// Islands and jumps on x86-64. Start-up or API context; write_jump() is called with the lock of patches held.
#include "base/patch/island.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

#include <cpuid.h>

#include "base/core/calling_thread.h"

namespace pinrail::patch {

const uintptr_t kReach = 0x7fff0000 - kPage;

namespace {

constexpr uint8_t kJump = 0xe9;

class RelativeWriter : public Writer {
 public:
  using Writer::Writer;

  bool fits() const { return fits_; }
  template <size_t N>
  void code(const uint8_t (&from)[N]) {
    bytes(from, N);
  }
  // A displacement to the target from the end of an instruction, which is that many bytes further on.
  void relative(uintptr_t target, size_t more = 0) {
    const auto wide = static_cast<intptr_t>(target - (here() + sizeof(int32_t) + more));
    const auto narrow = static_cast<int32_t>(wide);
    fits_ = fits_ && narrow == wide;
    bytes(&narrow, sizeof(narrow));
  }

 private:
  bool fits_ = true;  // each target was within reach
};

// Copies the instruction at the function's start and jumps behind it.
void write_resume(RelativeWriter* writer, const uint8_t* code, uintptr_t from, const Place& place) {
  if (place.relative_at == 0) {
    writer->bytes(code, place.length);
  } else {
    const size_t behind = place.relative_at + sizeof(int32_t);
    writer->bytes(code, place.relative_at);
    writer->relative(from + place.length + static_cast<uintptr_t>(int_at(code + place.relative_at)),
                     place.length - behind);
    writer->bytes(code + behind, place.length - behind);
  }
  writer->code({kJump});
  writer->relative(from + place.length);
}

// Whether the code returns the kernel's result unless that is an error: cmp $-4095 or $-4096, %rax; jae or ja; ret.
bool returns_result(const uint8_t* code) {
  constexpr uint8_t kCompare[] = {0x48, 0x3d}, kRest[] = {0xf0, 0xff, 0xff};
  return is(code, kCompare) && is(code + 3, kRest) && (code[6] == 0x73 || code[6] == 0x77) && code[8] == 0xc3;
}

// Copies a system call whose result is returned unless it is an error. A thread that sleeps there, or comes there by
// another runtime's patch of the function, needs the function's own code after an error only.
void write_system_call(RelativeWriter* writer, const uint8_t* code, uintptr_t behind) {
  constexpr size_t kUpToJump = 9;  // syscall; cmp; the operation of jae or ja
  writer->bytes(code, kUpToJump);
  writer->code({0x01, 0xc3, kJump});  // over the ret
  writer->relative(behind);
}

// Replaces bytes of one aligned block in one store. False if they are not `before` any more.
bool exchange(uintptr_t at, size_t length, const uint8_t* before, const uint8_t* after) {
  const uintptr_t block = at & ~(kBlock - 1);
  uint64_t old_words[2], new_words[2];
  auto *const old_bytes = reinterpret_cast<uint8_t*>(old_words), *const new_bytes =
                                                                     reinterpret_cast<uint8_t*>(new_words);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
  std::memcpy(old_bytes, reinterpret_cast<const void*>(block), kBlock);
  std::memcpy(new_bytes, old_bytes, kBlock);
  std::memcpy(old_bytes + (at - block), before, length);
  std::memcpy(new_bytes + (at - block), after, length);
  bool done;
  __asm__ volatile("lock cmpxchg16b (%3)\n\tsete %0"
                   : "=q"(done), "+a"(old_words[0]), "+d"(old_words[1])
                   : "r"(block), "b"(new_words[0]), "c"(new_words[1])
                   : "memory", "cc");
  return done;
}

// A jump across two blocks. While its end is written, threads that come there run in a loop of one instruction.
bool write_across(uintptr_t at, const uint8_t* before, const uint8_t* after) {
  constexpr uint8_t kLoop[] = {0xeb, 0xfe};
  constexpr size_t kHead = sizeof(kLoop);
  const BlockAsyncSignals no_handlers;  // which may call the function
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
  auto* const tail = reinterpret_cast<uint8_t*>(at + kHead);
  if (std::memcmp(tail, before + kHead, kJumpLength - kHead) != 0 || !exchange(at, kHead, before, kLoop)) return false;
  synchronise();
  std::memcpy(tail, after + kHead, kJumpLength - kHead);
  synchronise();
  return exchange(at, kHead, kLoop, after);
}

}  // namespace

uint8_t* write_island(uint8_t* at, const uint8_t* code, uintptr_t function, Record* record) {
  const Place& place = record->place;
  const uintptr_t from = function + place.offset, behind = from + place.length;
  const bool is_first = record->behind == 0;  // no other copy of this library was there
  const bool is_copied = place.kind == Kind::system_call || place.kind == Kind::before_call;
  RelativeWriter writer(at);
  if (is_copied) writer.bytes(code + place.offset, place.length);
  writer.code({0x4c, 0x8d, 0x1d});  // lea record, %r11
  writer.relative(reinterpret_cast<uintptr_t>(record));
  writer.code({0x3e, 0x41, 0xff, 0x23});  // notrack jmp *(%r11)
  if (!is_first) return writer.end();
  constexpr size_t kSystemCallLength = 2;
  record->resume = record->behind = behind;
  switch (place.kind) {
    case Kind::system_call:
      record->behind += kSystemCallLength;
      if (!returns_result(code + place.offset + place.length + kSystemCallLength)) break;
      record->leaves = Leaves::on_success;
      if (record->number == kAnyCall) break;
      record->resume = writer.here();
      write_system_call(&writer, code + place.offset + place.length, record->behind);
      break;
    case Kind::before_call: record->behind += kJumpLength; break;
    case Kind::call: record->called = behind + static_cast<uintptr_t>(int_at(code + place.offset + 1)); break;
    case Kind::start:
      record->resume = writer.here();
      record->leaves = Leaves::always;
      write_resume(&writer, code + place.offset, from, place);
  }
  return writer.fits() ? writer.end() : nullptr;
}

void put_jump(uintptr_t at, uintptr_t island, uint8_t* jump_out) {
  const auto relative = static_cast<int32_t>(island - (at + kJumpLength));
  jump_out[0] = kJump;
  std::memcpy(jump_out + 1, &relative, sizeof(relative));
}

uintptr_t target_of_jump(const uint8_t* code, uintptr_t at) {
  return code[0] == kJump ? at + kJumpLength + static_cast<uintptr_t>(int_at(code + 1)) : 0;
}

bool is_breakpoint(const uint8_t* bytes, size_t at) { return bytes[at] == 0xcc; }

bool write_jump(uintptr_t at, const uint8_t* before, const uint8_t* after) {
  return at % kBlock + kJumpLength <= kBlock ? exchange(at, kJumpLength, before, after)
                                             : write_across(at, before, after);
}

bool can_write_jumps() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_CMPXCHG16B) != 0;
}

}  // namespace pinrail::patch

// The entry of hooks on x86-64, to which islands jump. Hook context; no lock.
long pinrail_patch_call_hook(const void* record_pointer, void* registers) {
  using namespace pinrail::patch;
  struct Registers {  // as the code below lays them out
    long rdi, rsi, rdx, rcx, r8, r9, rax, r10;
    const long* stack;  // the function's
  };
  const auto& record = *static_cast<const Record*>(record_pointer);
  auto& at = *static_cast<Registers*>(registers);
  const Kind kind = record.place.kind;
  const long of_kernel[6] = {at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9};
  if (kind == Kind::system_call) return call_hook(record, at.rax, of_kernel, false, &at.rax);
  long args[8] = {at.rdi, at.rsi, at.rdx, at.rcx, at.r8, at.r9};
  if (kind == Kind::start) return call_hook(record, record.number, args, true, &at.rax);
  args[6] = at.stack[0];  // a replaced call has two more arguments, which lie on the stack
  args[7] = at.stack[1];
  const size_t number_at = record.place.number_at;
  const bool is_last = number_at == 6;  // then the called function returns as libc's functions do
  return call_hook(record, args[number_at], is_last ? args : args + number_at + 1, is_last, &at.rax);
}

// r11 points to the record; it is free, because the kernel changes it as well, or because a function may. All other
// registers keep their values. The function may use 128 bytes below its stack.
//
// An unwinder finds the function above this frame, as if it had called this code where it goes on behind the call.
// Nothing here changes the shadow stack of CET: what leaves, leaves by a jump, or by the function's own return.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden " PINRAIL_ENTER_HOOK
    "\n"
    ".globl " PINRAIL_ENTER_HOOK
    "\n"
    ".type " PINRAIL_ENTER_HOOK ", @function\n" PINRAIL_ENTER_HOOK
    ":\n"
    ".cfi_startproc\n"
    ".cfi_def_cfa %rsp, 0\n"
    ".cfi_undefined %rip\n"
    "endbr64\n"
    "lea -144(%rsp), %rsp\n"
    ".cfi_def_cfa_offset 144\n"
    "mov %r11, (%rsp)\n"
    "mov 16(%r11), %r11\n"  // Record::behind
    "mov %r11, 8(%rsp)\n"
    ".cfi_offset %rip, -136\n"
    "mov (%rsp), %r11\n"
    "push %rbp\n"
    ".cfi_def_cfa_offset 152\n"
    ".cfi_offset %rbp, -152\n"
    "mov %rsp, %rbp\n"
    ".cfi_def_cfa_register %rbp\n"
    "sub $336, %rsp\n"
    "and $-16, %rsp\n"
    "mov %rdi, 0(%rsp)\n"
    "mov %rsi, 8(%rsp)\n"
    "mov %rdx, 16(%rsp)\n"
    "mov %rcx, 24(%rsp)\n"
    "mov %r8, 32(%rsp)\n"
    "mov %r9, 40(%rsp)\n"
    "mov %rax, 48(%rsp)\n"
    "mov %r10, 56(%rsp)\n"
    "lea 152(%rbp), %rdi\n"
    "mov %rdi, 64(%rsp)\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "movups %xmm\\n, 80+16*\\n(%rsp)\n"
    ".endr\n"
    "mov %r11, %rdi\n"
    "mov %rsp, %rsi\n"
    "call " PINRAIL_CALL_HOOK
    "\n"
    "mov %eax, %r11d\n"
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "movups 80+16*\\n(%rsp), %xmm\\n\n"
    ".endr\n"
    "mov 0(%rsp), %rdi\n"
    "mov 8(%rsp), %rsi\n"
    "mov 16(%rsp), %rdx\n"
    "mov 24(%rsp), %rcx\n"
    "mov 32(%rsp), %r8\n"
    "mov 40(%rsp), %r9\n"
    "mov 48(%rsp), %rax\n"
    "mov 56(%rsp), %r10\n"
    "mov %rbp, %rsp\n"
    ".cfi_def_cfa %rsp, 152\n"
    "pop %rbp\n"
    ".cfi_def_cfa_offset 144\n"
    ".cfi_restore %rbp\n"
    "test %r11d, %r11d\n"
    "mov (%rsp), %r11\n"
    "lea 144(%rsp), %rsp\n"
    ".cfi_def_cfa_offset 0\n"
    "jz 2f\n"
    // The hook has made the call: rcx is free as well. Record::leaves: 1 unless it is an error, 2 always.
    "movzbl 56(%r11), %ecx\n"
    "cmp $2, %ecx\n"
    "je 1f\n"
    "test %ecx, %ecx\n"
    "je 0f\n"
    "cmp $-4095, %rax\n"
    "jae 0f\n"
    "1: ret\n"
    "0: notrack jmp *16(%r11)\n"
    // The function makes the call. If the island replaced its call of another function, that is called here, with the
    // arguments on the stack once more.
    "2: cmpq $0, 24(%r11)\n"  // Record::called
    "jne 3f\n"
    "notrack jmp *8(%r11)\n"  // Record::resume
    "3: push 16(%r11)\n"
    ".cfi_adjust_cfa_offset 8\n"
    ".cfi_offset %rip, -8\n"
    "push %r11\n"
    ".cfi_adjust_cfa_offset 8\n"
    "push 24(%rsp)\n"
    ".cfi_adjust_cfa_offset 8\n"
    "push 24(%rsp)\n"
    ".cfi_adjust_cfa_offset 8\n"
    "notrack call *24(%r11)\n"
    "add $16, %rsp\n"
    ".cfi_adjust_cfa_offset -16\n"
    "pop %r11\n"
    ".cfi_adjust_cfa_offset -8\n"
    "lea 8(%rsp), %rsp\n"
    ".cfi_adjust_cfa_offset -8\n"
    "notrack jmp *16(%r11)\n"
    ".cfi_endproc\n"
    ".size " PINRAIL_ENTER_HOOK ", . - " PINRAIL_ENTER_HOOK "\n");

#endif
