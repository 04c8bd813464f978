// SPDX-License-Identifier: BSD-3-Clause
// The note of a library that Go's linker made; its runtime exports no allocator.
#include <elf.h>

struct note {
  Elf64_Nhdr head;
  char owner[4];
  char text[8];
};
__attribute__((section(".note.go.buildid"), used)) static const struct note go_note = {{4, 8, 4}, "Go\0", "build-i"};
