// SPDX-License-Identifier: BSD-3-Clause
// enter_hook.h - the code that islands jump to (x86-64) or call (64-bit Arm), which calls the record's hook.
//
// Owns     nothing.
// Threads  runs on each thread that comes to a patched place.
// Hook     all of it. C++ code must not call pinrail_patch_enter_hook.
#ifndef PINRAIL_BASE_PATCH_ENTER_HOOK_H
#define PINRAIL_BASE_PATCH_ENTER_HOOK_H

extern "C" {
__attribute__((visibility("hidden"))) void pinrail_patch_enter_hook(void);
// Called by it. Calls the record's hook with the arguments of the system call. Returns 1 if the hook made the call;
// then the result is among the registers.
__attribute__((visibility("hidden"))) long pinrail_patch_call_hook(const void* record, void* registers);
}

// Their names for the assembler, with the prefix that an embedded build gives to it (framework/symbols).
#define PINRAIL_TEXT_OF(name) #name
#define PINRAIL_TEXT(name) PINRAIL_TEXT_OF(name)
#define PINRAIL_ENTER_HOOK PINRAIL_TEXT(pinrail_patch_enter_hook)
#define PINRAIL_CALL_HOOK PINRAIL_TEXT(pinrail_patch_call_hook)

#endif
