// SPDX-License-Identifier: BSD-3-Clause
// The entry of hooks on 64-bit Arm, to which islands branch. Hook context; no lock.
#include <cerrno>

#include "base/patch/enter_hook.h"
#include "base/patch/island_aarch64.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__aarch64__)

// regs: the values of x0 to x8. A system call other than the function's own is made without the hook.
extern "C" __attribute__((visibility("hidden"))) long pinrail_patch_call_hook(const void* record_pointer,
                                                                              const long* regs) {
  using namespace pinrail::patch;
  const auto& record = *static_cast<const Record*>(record_pointer);
  if (record.place == Place::function) return record.hook(record.arg, regs);
  const long number = regs[record.place == Place::call ? 6 : 8];
  const int kept = errno;
  if (record.number < 0) {
    const long args[kStackArgs + 1] = {number, regs[0], regs[1], regs[2], regs[3], regs[4], 0, 0, regs[5]};
    const long result = record.hook(record.arg, args);
    const long answer = result == -1 ? -errno : result;
    errno = kept;
    return answer;
  }
  if (number != record.number) {
    const long result = system_call_hook(number, regs[0], regs[1], regs[2], regs[3], regs[4], regs[5]);
    if (record.place == Place::system_call || !is_error_hook(result)) return result;
    errno = static_cast<int>(-result);
    return -1;
  }
  const long result = record.hook(record.arg, regs);
  if (result != -1 || record.place == Place::call) return result;
  const long answer = -errno;
  errno = kept;
  return answer;
}

// The kernel changes only x0, so all other registers that a function may change are saved here. x16 points to the
// record; the island saves x16, x17, x29 and x30.
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
    "stp q0, q1, [sp, #160]\n"
    "stp q2, q3, [sp, #192]\n"
    "stp q4, q5, [sp, #224]\n"
    "stp q6, q7, [sp, #256]\n"
    "stp q8, q9, [sp, #288]\n"
    "stp q10, q11, [sp, #320]\n"
    "stp q12, q13, [sp, #352]\n"
    "stp q14, q15, [sp, #384]\n"
    "stp q16, q17, [sp, #416]\n"
    "stp q18, q19, [sp, #448]\n"
    "stp q20, q21, [sp, #480]\n"
    "stp q22, q23, [sp, #512]\n"
    "stp q24, q25, [sp, #544]\n"
    "stp q26, q27, [sp, #576]\n"
    "stp q28, q29, [sp, #608]\n"
    "stp q30, q31, [sp, #640]\n"
    "mov x0, x16\n"
    "add x1, sp, #16\n"
    "bl pinrail_patch_call_hook\n"
    "ldp q0, q1, [sp, #160]\n"
    "ldp q2, q3, [sp, #192]\n"
    "ldp q4, q5, [sp, #224]\n"
    "ldp q6, q7, [sp, #256]\n"
    "ldp q8, q9, [sp, #288]\n"
    "ldp q10, q11, [sp, #320]\n"
    "ldp q12, q13, [sp, #352]\n"
    "ldp q14, q15, [sp, #384]\n"
    "ldp q16, q17, [sp, #416]\n"
    "ldp q18, q19, [sp, #448]\n"
    "ldp q20, q21, [sp, #480]\n"
    "ldp q22, q23, [sp, #512]\n"
    "ldp q24, q25, [sp, #544]\n"
    "ldp q26, q27, [sp, #576]\n"
    "ldp q28, q29, [sp, #608]\n"
    "ldp q30, q31, [sp, #640]\n"
    "ldp x18, x17, [sp, #144]\n"
    "msr nzcv, x17\n"
    "ldr x1, [sp, #24]\n"
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
