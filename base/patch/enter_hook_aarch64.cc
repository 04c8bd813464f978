// SPDX-License-Identifier: BSD-3-Clause
// The entry of hooks on 64-bit Arm, which islands call. Hook context; no lock.
#include "base/patch/enter_hook.h"
#include "base/patch/island.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__aarch64__)

// registers: the values of x0 to x8. A called function gets the number as its seventh argument, and returns as libc's
// functions do.
long pinrail_patch_call_hook(const void* record_pointer, void* registers) {
  using namespace pinrail::patch;
  const auto& record = *static_cast<const Record*>(record_pointer);
  auto* const x = static_cast<long*>(registers);
  const bool is_call = record.place.kind == Kind::call;
  return call_hook(record, x[is_call ? 6 : 8], x, is_call, &x[0]);
}

// The kernel changes only x0, so all other registers that a function may change are saved here. x16 points to the
// record; the island saves x16, x17, x29 and x30. On return x17 tells whether the hook has made the call.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden " PINRAIL_ENTER_HOOK
    "\n"
    ".globl " PINRAIL_ENTER_HOOK
    "\n"
    ".type " PINRAIL_ENTER_HOOK ", %function\n" PINRAIL_ENTER_HOOK
    ":\n"
    ".cfi_startproc\n"
    "hint #34\n"  // bti c
    "sub sp, sp, #688\n"
    ".cfi_adjust_cfa_offset 688\n"
    "stp x29, x30, [sp]\n"
    ".cfi_offset 29, -688\n"
    ".cfi_offset 30, -680\n"
    "mov x29, sp\n"
    "stp x0, x1, [sp, #16]\n"
    "stp x2, x3, [sp, #32]\n"
    "stp x4, x5, [sp, #48]\n"
    "stp x6, x7, [sp, #64]\n"
    "stp x8, x9, [sp, #80]\n"
    "stp x10, x11, [sp, #96]\n"
    "stp x12, x13, [sp, #112]\n"
    "stp x14, x15, [sp, #128]\n"
    "mrs x17, nzcv\n"
    "stp x18, x17, [sp, #144]\n"
    ".irp n, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30\n"
    "str q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    ".irp n, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31\n"
    "str q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    "mov x0, x16\n"
    "add x1, sp, #16\n"
    "bl " PINRAIL_CALL_HOOK
    "\n"
    "mov x16, x0\n"
    ".irp n, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30\n"
    "ldr q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    ".irp n, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31\n"
    "ldr q\\n, [sp, #160 + 16*\\n]\n"
    ".endr\n"
    "ldp x18, x17, [sp, #144]\n"
    "msr nzcv, x17\n"
    "mov x17, x16\n"
    "ldp x0, x1, [sp, #16]\n"
    "ldp x2, x3, [sp, #32]\n"
    "ldp x4, x5, [sp, #48]\n"
    "ldp x6, x7, [sp, #64]\n"
    "ldp x8, x9, [sp, #80]\n"
    "ldp x10, x11, [sp, #96]\n"
    "ldp x12, x13, [sp, #112]\n"
    "ldp x14, x15, [sp, #128]\n"
    "ldp x29, x30, [sp]\n"
    ".cfi_restore 29\n"
    ".cfi_restore 30\n"
    "add sp, sp, #688\n"
    ".cfi_adjust_cfa_offset -688\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size " PINRAIL_ENTER_HOOK ", . - " PINRAIL_ENTER_HOOK "\n");

#endif
