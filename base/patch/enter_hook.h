// SPDX-License-Identifier: BSD-3-Clause
// enter_hook.h - calls a hook with the arguments that a patched function's caller passed in registers.
#ifndef PINRAIL_BASE_PATCH_ENTER_HOOK_H
#define PINRAIL_BASE_PATCH_ENTER_HOOK_H

// Islands jump here; C++ code must not call it. On entry the stack is as at the patched function's start, and r11
// points to {hook, arg}. The hook's array contains the six argument registers, two words of ours, and then the
// arguments that the caller passed on the stack. On 64-bit Arm islands call it, with x16 pointing to a record
// (island_aarch64.h).
extern "C" __attribute__((visibility("hidden"))) void pinrail_patch_enter_hook(void);

// Its name for the assembler, with the prefix that an embedded build gives to it (framework/symbols).
#define PINRAIL_TEXT_OF(name) #name
#define PINRAIL_TEXT(name) PINRAIL_TEXT_OF(name)
#define PINRAIL_ENTER_HOOK PINRAIL_TEXT(pinrail_patch_enter_hook)

#endif
