// SPDX-License-Identifier: BSD-3-Clause
// A minimal shared object: headers, an empty symbol table, and zeroed data.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "contrib/tools/common/memory_calls.h"

namespace pinrail::tools {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_NONE;  // the loader refuses it, so this machine lacks the event
#endif

struct Image {
  ElfW(Ehdr) header;
  ElfW(Phdr) segments[3];
  ElfW(Dyn) dynamic[6];
  ElfW(Sym) symbols[1];
  uint32_t hash[4];  // one bucket and one symbol, both empty
  char strings[8];
};
static_assert(sizeof(Image) <= kLibraryData);

ElfW(Ehdr) header() {
  ElfW(Ehdr) head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_ident[EI_VERSION] = EV_CURRENT;
  head.e_type = ET_DYN;
  head.e_machine = kMachine;
  head.e_version = EV_CURRENT;
  head.e_phoff = offsetof(Image, segments);
  head.e_ehsize = sizeof(ElfW(Ehdr));
  head.e_phentsize = sizeof(ElfW(Phdr));
  head.e_phnum = 3;
  return head;
}

ElfW(Phdr) segment(uint32_t type, size_t at, size_t file_bytes, size_t bytes, size_t align) {
  ElfW(Phdr) made{};
  made.p_type = type;
  made.p_flags = PF_R | PF_W;  // PT_GNU_STACK too: without it the loader makes stacks executable
  made.p_offset = made.p_vaddr = made.p_paddr = at;
  made.p_filesz = file_bytes;
  made.p_memsz = bytes;
  made.p_align = align;
  return made;
}

ElfW(Dyn) entry(int64_t tag, uint64_t value) {
  ElfW(Dyn) made{};
  made.d_tag = tag;
  made.d_un.d_val = value;
  return made;
}

Image image(size_t data_bytes) {
  Image made{};
  made.header = header();
  made.segments[0] = segment(PT_LOAD, 0, kLibraryData, kLibraryData + data_bytes, kLibraryData);
  made.segments[1] =
      segment(PT_DYNAMIC, offsetof(Image, dynamic), sizeof(made.dynamic), sizeof(made.dynamic), sizeof(void*));
  made.segments[2] = segment(PT_GNU_STACK, 0, 0, 0, 16);
  made.dynamic[0] = entry(DT_HASH, offsetof(Image, hash));
  made.dynamic[1] = entry(DT_STRTAB, offsetof(Image, strings));
  made.dynamic[2] = entry(DT_SYMTAB, offsetof(Image, symbols));
  made.dynamic[3] = entry(DT_STRSZ, sizeof(made.strings));
  made.dynamic[4] = entry(DT_SYMENT, sizeof(ElfW(Sym)));
  made.hash[0] = made.hash[1] = 1;
  return made;
}

}  // namespace

int make_library(size_t data_bytes) {
  const int file = memfd_create("pinrail-library", MFD_CLOEXEC);
  if (file < 0) return -1;
  char page[kLibraryData] = {};
  const Image made = image(data_bytes);
  std::memcpy(page, &made, sizeof(made));
  if (write(file, page, sizeof(page)) == static_cast<ssize_t>(sizeof(page))) return file;
  close(file);
  return -1;
}

}  // namespace pinrail::tools
