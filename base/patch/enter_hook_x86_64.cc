// SPDX-License-Identifier: BSD-3-Clause
// The entry of hooks on x86-64, to which islands jump. Hook context; no lock.
#include "base/patch/enter_hook.h"
#include "base/patch/island.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::patch {
namespace {

// As the code below lays them out.
struct Registers {
  long rdi, rsi, rdx, rcx, r8, r9, rax, r10;
  const long* stack;  // the function's
};

}  // namespace
}  // namespace pinrail::patch

long pinrail_patch_call_hook(const void* record_pointer, void* registers) {
  using namespace pinrail::patch;
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
