// SPDX-License-Identifier: BSD-3-Clause
#include "base/patch/enter_hook.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

// The six registers of arguments become an array on the stack, in order; with the padding the stack is aligned for the
// call. An unwinder sees the patched function's caller above this.
//
// With CET: the way from the patched function to here is jumps alone, direct or untracked, so the shadow stack's top is
// the caller's return address all along, and the last ret takes it. What is called or jumped to through a register or
// memory (this, the island's two entries) begins with endbr64; the hooks do if this object was built with
// -fcf-protection, and else the loader does not switch indirect branch tracking on for the process.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden pinrail_patch_enter_hook\n"
    ".globl pinrail_patch_enter_hook\n"
    ".type pinrail_patch_enter_hook, @function\n"
    "pinrail_patch_enter_hook:\n"
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
    ".size pinrail_patch_enter_hook, . - pinrail_patch_enter_hook\n");

#endif
