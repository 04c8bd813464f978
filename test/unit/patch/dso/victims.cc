// SPDX-License-Identifier: BSD-3-Clause
// Functions to be patched, each with a beginning that libc's have somewhere. All return a + 2 b + 3 c + 4 d but for
// victim_counts, which returns how often it has run, and victim_unknown, which returns 7.
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

// clang-format off
#define BEGIN(name) ".p2align 4\n.globl " name "\n.type " name ", @function\n" name ":\n"
#define END(name) ".size " name ", . - " name "\n"
#define SUM "lea (%rdi,%rsi,2), %rax\n lea (%rdx,%rdx,2), %rdx\n add %rdx, %rax\n lea (%rax,%rcx,4), %rax\n"

__asm__(".text\n"
  BEGIN("victim_plain")   "mov $11, %eax\n" SUM "ret\n" END("victim_plain")
  BEGIN("victim_endbr")   "endbr64\n mov $11, %eax\n" SUM "ret\n" END("victim_endbr")
  BEGIN("victim_moves")   "mov %ecx, %r10d\n .byte 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0\n" SUM "ret\n" END("victim_moves")
  BEGIN("victim_stack")   "sub $0x58, %rsp\n mov %r8, 0x40(%rsp)\n" SUM "add $0x58, %rsp\n ret\n" END("victim_stack")
  BEGIN("victim_pushes")  "push %rbx\n push %r12\n mov $1, %eax\n" SUM "pop %r12\n pop %rbx\n ret\n" END("victim_pushes")
  // The jump lies across two blocks of 8 bytes, in one of 16.
  BEGIN("victim_across")  "endbr64\n xor %eax, %eax\n mov $11, %eax\n" SUM "ret\n" END("victim_across")
  BEGIN("victim_counts")  "cmpb $0x5a, victim_flag(%rip)\n jne 1f\n incl victim_count(%rip)\n mov victim_count(%rip), %eax\n ret\n"
                          "1: mov $-1, %eax\n ret\n" END("victim_counts")
  BEGIN("victim_unknown") "movaps %xmm0, %xmm0\n mov $7, %eax\n ret\n" END("victim_unknown")
  ".p2align 4\n"
  ".data\nvictim_flag: .byte 0x5a\n.bss\n.local victim_count\n.comm victim_count, 4, 4\n"
  ".text\n");

#else

// On other processors only an object that is loaded and unloaded is wanted.
extern "C" long victim_plain(long a, long b, long c, long d);
long victim_plain(long a, long b, long c, long d) { return a + 2 * b + 3 * c + 4 * d; }

#endif
