// SPDX-License-Identifier: BSD-3-Clause
#include "base/patch/enter_hook.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

// Stores the six argument registers in order in an array on the stack; the padding aligns the stack for the call. An
// unwinder finds the patched function's caller above this frame.
//
// With CET: from the patched function to here there are only direct or untracked jumps. So the top of the shadow stack
// is always the caller's return address, and the last ret uses it. Code that is reached through a register or memory
// (this function and the island's two entries) begins with endbr64. The hooks do if this object was compiled with
// -fcf-protection; otherwise the loader does not enable indirect branch tracking for the process.
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
    "endbr64\n"
    "sub $56, %rsp\n"
    ".cfi_adjust_cfa_offset 56\n"
    "mov %rdi, 0(%rsp)\n"
    "mov %rsi, 8(%rsp)\n"
    "mov %rdx, 16(%rsp)\n"
    "mov %rcx, 24(%rsp)\n"
    "mov %r8, 32(%rsp)\n"
    "mov %r9, 40(%rsp)\n"
    "mov 8(%r11), %rdi\n"
    "mov %rsp, %rsi\n"
    "call *(%r11)\n"
    "add $56, %rsp\n"
    ".cfi_adjust_cfa_offset -56\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size " PINRAIL_ENTER_HOOK ", . - " PINRAIL_ENTER_HOOK "\n");

#endif
