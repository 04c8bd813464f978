// SPDX-License-Identifier: BSD-3-Clause
// Patches functions and tries them. Start-up context; Context::mutex is held in functions with REQUIRES.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/core/files.h"
#include "base/patch/maps.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr int kMaxTries = 5;  // while another library patches the same function

// The topic of the message about a function whose events do not arrive. status: of its patch.
const char* topic_of(const Site& site, Status status) {
  switch (status.code()) {
    case PINRAIL_SUCCESS: return "not seen";
    case PINRAIL_ERR_BUSY: return "patched by another";
    case PINRAIL_ERR_NOT_SUPPORTED: return is_as_in_file(site.address) ? "unknown code" : "patched by another";
    case PINRAIL_ERR_NOT_AVAILABLE: return "no safe way";
    case PINRAIL_ERR_OUT_OF_RESOURCE: return "no room";
    default: return access("/proc/self/maps", R_OK) == 0 ? "code cannot be written" : "no list of mappings";
  }
}

// Makes the site ready for a patch, which is not written yet.
Status prepare_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  site->patch = {};
  site->patch.function = site->address;
  const Status status = patch::prepare(site->address, function.calls, enter_hook, site, &site->patch);
  if (!status.ok()) return status;
  site->original.store(site->patch.original, std::memory_order_relaxed);  // relaxed: `context` is written behind it
  site->context.store(context, std::memory_order_release);                // release: pairs with context_of_hook()
  return status;
}

// Only what others have torn is written again.
Status keep_patch(patch::Patch* patch) {
  const patch::Snapshot now = patch::Snapshot::of(*patch);
  return patch::whose(*patch, now) == patch::Bytes::torn ? patch::mend(patch, now) : success();
}

// The jumps are written together, because to make code writable and to stop all processors take longer than that.
// Returns whether another library has changed a function meanwhile.
bool patch_once_locked(Context* context) REQUIRES(context->mutex) {
  patch::Patch* wanted[kFunctions];
  size_t count = 0;
  for (size_t i = 0; i < kFunctions; ++i) {
    Site* const site = &context->sites[i];
    patch::Patch* const patch = &site->patch;
    if (site->address == 0) continue;
    const bool is_patched = patch->count != 0;
    patch->written = is_patched ? keep_patch(patch) : prepare_locked(context, site, kFunctionTable[i]);
    if (!is_patched && patch->written.ok()) wanted[count++] = patch;
  }
  patch::activate(wanted, count);
  return std::any_of(wanted, wanted + count,
                     [](const patch::Patch* each) { return each->written.is(PINRAIL_ERR_BUSY); });
}

}  // namespace

void print_topic(const Context& context, const char* topic, const Function& function, uintptr_t address) {
  const std::string bytes = address != 0 ? patch::bytes_of(address) : "";
  show(context.services, topic,
       {{"function", function.name}, {"consequence", function.consequence}, {"bytes", bytes.c_str()}});
}

void patch_locked(Context* context) {
  for (int tries = 1; patch_once_locked(context) && tries < kMaxTries; ++tries) {
    usleep(1000);  // so that the other library can finish
  }
}

// Keeps E5: a function counts only if its event arrives. It may arrive where another library was there first: the
// patches of UCX, Open MPI and libfabric call syscall() in the end.
Status try_locked(Context* context, Site* site, const Function& function, Scratch* scratch) {
  const Status patched = site->patch.written;
  site->is_unseen = false;
  const bool is_tried = patched.ok() || patched.is(PINRAIL_ERR_NOT_SUPPORTED) || patched.is(PINRAIL_ERR_BUSY);
  const bool arrives = is_tried && fire(function, site->address, scratch);
  if (!arrives) print_topic(*context, topic_of(*site, patched), function, site->address);
  if (!arrives) return patched.ok() || patched.is(PINRAIL_ERR_BUSY) ? Status(PINRAIL_ERR_NOT_SUPPORTED) : patched;
  patch::accept(&site->patch);
  return success();
}

// Finds the functions by which memory goes away.

namespace {

#ifdef __GLIBC__
constexpr const char* kLibc = "libc.so.6";
#else
constexpr const char* kLibc = "libc.so";  // musl answers to this name with itself
#endif

// Looks the symbol up in the library itself, not in a program or sanitizer that overrides it.
uintptr_t address_in(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return 0;
  void* const symbol = dlsym(handle, name);
  dlclose(handle);  // does not unload it: it was loaded before
  return reinterpret_cast<uintptr_t>(symbol);
}

// 0: libpthread has none, or it is libc's.
uintptr_t find_open_of_libpthread() {
  const uintptr_t found = address_in("libpthread.so.0", "open");
  return found != address_in(kLibc, "open") ? found : 0;
}

}  // namespace

bool is_libc_of_program() {
#ifdef __GLIBC__
  void* const libc = dlopen(kLibc, RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return true;  // report_if_static() says so
  Lmid_t where = LM_ID_BASE;
  const bool is_known = dlinfo(libc, RTLD_DI_LMID, &where) == 0;
  dlclose(libc);
  return is_known && where == LM_ID_BASE;
#else  // musl has no dlmopen()
  return true;
#endif
}

namespace {

#ifdef __GLIBC__
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

// Returns 0 unless exactly one place of the loader's code matches.
uintptr_t find_loader_munmap() {
  patch::Mapping loader;
  if (!patch::find_mapping(_r_debug.r_ldbase, &loader)) return 0;
  uintptr_t found = 0;
  size_t count = 0;
  patch::for_each_mapping([&](const patch::Mapping& mapping) {
    const bool is_of_loader = mapping.device == loader.device && mapping.inode == loader.inode;
    if (!is_of_loader || (mapping.protection & PROT_EXEC) == 0) return true;
    for (uintptr_t at = mapping.base; at + kRoom <= mapping.end; at += kAlignment) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
      if (!is_loader_munmap(reinterpret_cast<const uint8_t*>(at))) continue;
      found = at;
      ++count;
    }
    return true;
  });
  return count == 1 ? found : 0;
}
#else
uintptr_t find_loader_munmap() { return 0; }  // the loader is libc itself
#endif

}  // namespace

bool is_as_in_file(uintptr_t function) {
  patch::Mapping place;
  if (!patch::find_mapping(function, &place)) return true;
  const auto offset = static_cast<off_t>(place.offset + (function - place.base));
  const Descriptor file(open(place.path, O_RDONLY | O_CLOEXEC));
  uint8_t code[patch::Snapshot::kStart];
  const bool is_read = file.is_open() && pread(file.get(), code, sizeof(code), offset) == sizeof(code);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
  return !is_read || std::memcmp(reinterpret_cast<const void*>(function), code, sizeof(code)) == 0;
}

// Returns the function's address, or 0. musl's brk() moves nothing.
uintptr_t find_function(const Function& function) {
#ifndef __GLIBC__
  if (function.calls.number == SYS_brk) return 0;
#endif
  if (function.home == Home::libpthread) return find_open_of_libpthread();
  return function.home == Home::loader ? find_loader_munmap() : address_in(kLibc, function.name);
}

}  // namespace pinrail::patcher

#endif
