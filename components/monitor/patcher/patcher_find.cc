// SPDX-License-Identifier: BSD-3-Clause
// Finds the functions by which memory goes away. Start-up context.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstring>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

#ifdef __GLIBC__
constexpr const char* kLibc = "libc.so.6";
#else
constexpr const char* kLibc = "libc.so";  // musl answers to this name with itself
#endif
#ifdef __aarch64__
constexpr const char* kLoader = "ld-linux-aarch64.so.1";
#else
constexpr const char* kLoader = "ld-linux-x86-64.so.2";
#endif

// Looks the symbol up in libc itself, not in a program or sanitizer that overrides it.
void* libc_symbol(const char* name) {
  void* const libc = dlopen(kLibc, RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return nullptr;
  void* const symbol = dlsym(libc, name);
  dlclose(libc);  // does not unload it: it was loaded before
  return symbol;
}

#ifdef __aarch64__
// The loader does not export its munmap. The function begins with one instruction without effect, then mov x8, #215;
// svc #0.
constexpr uint32_t kLoaderMunmap = 0xd2801ae8, kSupervisorCall = 0xd4000001;
constexpr uintptr_t kAlignment = 4;
constexpr size_t kRoom = 2 * sizeof(uint32_t);

// Another copy of this monitor may have written a branch over the svc instruction.
bool is_loader_munmap(const uint8_t* code) {
  uint32_t words[2];
  std::memcpy(words, code, sizeof(words));
  constexpr uint32_t kBranch = 0x14000000, kOperation = 0xfc000000;
  return words[0] == kLoaderMunmap && (words[1] == kSupervisorCall || (words[1] & kOperation) == kBranch);
}
#else
// The loader does not export its munmap. The function begins as libc's does: mov $11, %eax; syscall.
constexpr uint8_t kLoaderMunmap[] = {0xb8, 0x0b, 0x00, 0x00, 0x00, 0x0f, 0x05};
constexpr uint8_t kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
constexpr uintptr_t kAlignment = 16;

// Another copy of this monitor may have written a jump over the first instruction. No other code has a jump before a
// syscall instruction.
bool is_loader_munmap(const uint8_t* code) {
  if (std::memcmp(code, kEndbr64, sizeof(kEndbr64)) == 0) code += sizeof(kEndbr64);
  constexpr uint8_t kJump = 0xe9;
  const uint8_t* const system_call = kLoaderMunmap + patch::kJumpLength;
  const bool patched = code[0] == kJump && std::memcmp(code + patch::kJumpLength, system_call, 2) == 0;
  return patched || std::memcmp(code, kLoaderMunmap, sizeof(kLoaderMunmap)) == 0;
}
constexpr size_t kRoom = sizeof(kEndbr64) + sizeof(kLoaderMunmap);
#endif

struct Search {
  uintptr_t base;  // of the shared object
  uintptr_t found;
  size_t count;
};

void search_segment(const uint8_t* begin, size_t length, Search* search) {
  for (size_t at = 0; at + kRoom <= length; at += kAlignment) {
    if (!is_loader_munmap(begin + at)) continue;
    search->found = reinterpret_cast<uintptr_t>(begin + at);
    ++search->count;
  }
}

int search_object(dl_phdr_info* object, size_t, void* search_pointer) {
  auto* search = static_cast<Search*>(search_pointer);
  if (object->dlpi_addr != search->base) return 0;
  for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
    search_segment(reinterpret_cast<const uint8_t*>(object->dlpi_addr + segment.p_vaddr), segment.p_filesz, search);
  }
  return 1;
}

// Returns 0 unless exactly one place matches.
uintptr_t find_loader_munmap() {
  void* const loader = dlopen(kLoader, RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  const bool found = loader != nullptr && dlinfo(loader, RTLD_DI_LINKMAP, &map) == 0;
  if (loader != nullptr) dlclose(loader);  // does not unload it: it was loaded before
  if (!found) return 0;
  Search search{map->l_addr, 0, 0};
  dl_iterate_phdr(search_object, &search);
  return search.count == 1 ? search.found : 0;
}

struct InFile {
  uintptr_t function;
  const char* path = nullptr;
  uint64_t offset = 0;
};

// A visitor of dl_iterate_phdr(): finds the file, and the place in it, that holds the function.
int locate_in_object(dl_phdr_info* object, size_t, void* place_pointer) {
  auto* const place = static_cast<InFile*>(place_pointer);
  for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t base = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || place->function < base || place->function >= base + segment.p_filesz) continue;
    place->path = object->dlpi_name;
    place->offset = segment.p_offset + (place->function - base);
    return 1;
  }
  return 0;
}

}  // namespace

patch::Snapshot CodeFile::read(const patch::Patch& patch) {
  InFile place{patch.function};
  if (dl_iterate_phdr(locate_in_object, &place) == 0) return patch::Snapshot::of(patch);
  if (!file_ || place.path != path_) {
    file_.emplace(open(place.path, O_RDONLY | O_CLOEXEC));
    path_ = place.path;
  }
  uint8_t code[patch::kMaxCode] = {};
  const bool is_read = file_->is_open() && pread(file_->get(), code, sizeof(code), static_cast<off_t>(place.offset)) ==
                                               static_cast<ssize_t>(sizeof(code));
  return is_read ? patch::Snapshot::of(patch, code) : patch::Snapshot::of(patch);
}

// Returns the function's address, or 0. musl's brk() moves nothing.
uintptr_t find_function(const Function& function) {
#ifndef __GLIBC__
  if (function.calls.number == SYS_brk) return 0;
#endif
  return function.in_loader ? find_loader_munmap() : reinterpret_cast<uintptr_t>(libc_symbol(function.name));
}

bool has_libc() { return libc_symbol("munmap") != nullptr; }

}  // namespace pinrail::patcher

#endif
