// SPDX-License-Identifier: BSD-3-Clause
#include "test/unit/patch/patched_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

// pinrail_test_lose() knows by r11, which pinrail_test_call() sets, where the function's part of the stack ends.
// One step of it overwrites the word at the address in a register, if that lies between rax and rcx.
#define LOSE_WORD_AT(reg) "cmp %rax, %" reg "\n jb 1f\n cmp %rcx, %" reg "\n ja 1f\n movq $-1, (%" reg ")\n 1:\n"

__asm__(
    ".text\n"
    ".globl pinrail_test_call, pinrail_test_lose, pinrail_test_lose_end\n"
    "pinrail_test_call:\n"
    "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rdx\n"
    "sub $8, %rsp\n push 48(%rsi)\n"
    "mov %rdi, %r10\n mov %rsi, %rax\n"
    "mov 0(%rax), %rdi\n mov 8(%rax), %rsi\n mov 16(%rax), %rdx\n mov 24(%rax), %rcx\n"
    "mov 32(%rax), %r8\n mov 40(%rax), %r9\n"
    "mov $0x1b, %ebx\n mov $0x2b, %ebp\n mov $0x3b, %r12d\n mov $0x4b, %r13d\n mov $0x5b, %r14d\n mov $0x6b, %r15d\n"
    "lea -16(%rsp), %r11\n"  // the first word below the return address
    "call *%r10\n"
    "add $16, %rsp\n pop %rdx\n"
    "mov %rbx, 0(%rdx)\n mov %rbp, 8(%rdx)\n mov %r12, 16(%rdx)\n mov %r13, 24(%rdx)\n mov %r14, 32(%rdx)\n"
    "mov %r15, 40(%rdx)\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
    "pinrail_test_lose:\n"
    "lea 8(%rsp), %rax\n mov %rcx, %r10\n mov %r11, %rcx\n" LOSE_WORD_AT("rdi") LOSE_WORD_AT("rsi")
        LOSE_WORD_AT("rdx") LOSE_WORD_AT("r10") LOSE_WORD_AT("r8") LOSE_WORD_AT("r9")
    "mov $-1, %rax\n mov %rax, %rcx\n mov %rax, %rdx\n mov %rax, %rsi\n mov %rax, %rdi\n mov %rax, %r8\n"
    "mov %rax, %r9\n mov %rax, %r10\n"
    "mov %rax, -8(%rsp)\n mov %rax, -16(%rsp)\n mov %rax, -24(%rsp)\n mov %rax, -32(%rsp)\n ret\n"
    "pinrail_test_lose_end:\n");

#endif
