// SPDX-License-Identifier: BSD-3-Clause
// patchable.h - functions of the driver double that monitors patch: they begin with an instruction that a jump can take
// the place of, on every compiler.
#ifndef PINRAIL_TEST_FAKE_CUDA_PATCHABLE_H
#define PINRAIL_TEST_FAKE_CUDA_PATCHABLE_H

// What such a function leads to.
#define HIDDEN __attribute__((visibility("hidden")))

// body: a hidden function of the same file.
#if defined(__x86_64__)
#define PATCHABLE(name, body)                                                          \
  __asm__(".text\n\t.globl " name "\n\t.type " name ", @function\n\t.p2align 4\n" name \
          ":\n\tmovl $0x46726565, %eax\n\tjmp " body "\n\t.size " name ", .-" name "\n")
#else
#define PATCHABLE(name, body) __asm__(".globl " name "\n\t.set " name ", " body "\n")
#endif

#endif
