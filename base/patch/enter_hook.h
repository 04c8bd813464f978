// SPDX-License-Identifier: BSD-3-Clause
// enter_hook.h - from a patched function's registers to a hook's arguments.
#ifndef PINRAIL_BASE_PATCH_ENTER_HOOK_H
#define PINRAIL_BASE_PATCH_ENTER_HOOK_H

// The hook's array has the six registers, two words of ours, and then what the caller passed on the stack.
// Not to be called: islands jump here, with the stack as at the patched function's start and r11 at {hook, arg}.
extern "C" __attribute__((visibility("hidden"))) void pinrail_patch_enter_hook(void);

#endif
