// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. prepare(), activate() and mend() take the lock of patches.
#include "base/patch/patch.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

#include <dlfcn.h>
#include <link.h>
#include <linux/membarrier.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/patch/island.h"
#include "base/patch/maps.h"
#include "base/sync/lock.h"

namespace pinrail::patch {
namespace {

constexpr size_t kBehind = 16;  // more bytes that find_places() may read

Mutex mutex{LockRank::leaf};  // pages of code are writable only while it is held

const uint8_t* code_at(uintptr_t address) {
  return reinterpret_cast<const uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr): an address of code
}

bool may_synchronise() {
  return system_call_hook(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) == 0;
}

// A copy of a function's code.
struct Code {
  size_t length;
  bool is_whole = false;  // it ends with the function
  uint8_t bytes[kMaxCode + kBehind] = {};
};

// The symbol table has the length of an exported function. Of any other function the code is looked at to its page's
// end.
void copy_code(uintptr_t function, Code* code_out) {
  code_out->length = std::max(size_t{64}, std::min(size_t{256}, static_cast<size_t>(kPage - function % kPage)));
#ifdef __GLIBC__
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  const bool found = dladdr1(code_at(function), &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) != 0;
  code_out->is_whole = found && symbol != nullptr && info.dli_saddr == code_at(function) && symbol->st_size != 0;
  if (code_out->is_whole) code_out->length = std::min(size_t{symbol->st_size}, kMaxCode);
#endif
  std::memcpy(code_out->bytes, code_at(function), std::max(code_out->length, Snapshot::kStart));
}

// first: the record of another copy of this library, if it was there first. What that has found out is taken over.
void begin_record(const Calls& calls, Hook hook, void* arg, const Place& place, const Record* first, uint8_t* code,
                  Record* record_out) {
  if (first != nullptr) {
    *record_out = *first;
    std::memcpy(code, first->bytes, kJumpLength);
  } else {
    std::memcpy(record_out->bytes, code, kJumpLength);
  }
  record_out->enter = reinterpret_cast<uintptr_t>(&pinrail_patch_enter_hook);
  record_out->hook = hook;
  record_out->arg = arg;
  record_out->number = calls.number;
  record_out->or_number = calls.or_number;
  record_out->place = place;
  record_out->mark = kMark;
}

// The page on which prepare() puts islands. activate() makes it executable, and then it is not written any more.
struct OpenPage {
  uint8_t* base = nullptr;
  uint8_t* free = nullptr;

  bool has_room(uintptr_t function, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(base);
    return base != nullptr && (at < function ? function - at : at - function) <= kReach && free + bytes <= base + kPage;
  }
};
OpenPage open_page GUARDED_BY(mutex);

// PERM: the page stays open, so that no patch that leads there is written.
Status close_page_locked() REQUIRES(mutex) {
  const auto base = reinterpret_cast<long>(open_page.base);
  if (base == 0) return success();
  __builtin___clear_cache(reinterpret_cast<char*>(open_page.base), reinterpret_cast<char*>(open_page.free));
  if (system_call_hook(SYS_mprotect, base, kPage, PROT_READ | PROT_EXEC) != 0) return PINRAIL_ERR_PERM;
  open_page = {};
  return success();
}

// Puts a page with that much room near the function.
Status open_page_locked(uintptr_t function, size_t bytes) REQUIRES(mutex) {
  if (open_page.has_room(function, bytes)) return success();
  const Status closed = close_page_locked();
  if (!closed.ok()) return closed;
  open_page.base = open_page.free = map_near(function, kReach);
  return open_page.base != nullptr ? success() : Status(PINRAIL_ERR_OUT_OF_RESOURCE);
}

Status build_islands_locked(const Calls& calls, Hook hook, void* arg, Code* code, Patch* patch) REQUIRES(mutex) {
  const Status opened = open_page_locked(patch->function, patch->count * (sizeof(Record) + kLongestIsland));
  if (!opened.ok()) return opened;
  uint8_t* at = open_page.free;
  for (size_t i = 0; at != nullptr && i < patch->count; ++i) {
    const Place& place = patch->places[i];
    uint8_t* const bytes = code->bytes + place.offset;
    const uintptr_t other = target_of_jump(bytes, patch->function + place.offset);
    const Record* const there = other != 0 ? record_of(other) : nullptr;
    const bool is_own = there != nullptr && there->hook == hook && there->arg == arg;  // it would call itself for ever
    if (patch->original == nullptr && !is_own) patch->original = there;
    auto* const record = new (at) Record{};
    begin_record(calls, hook, arg, place, there, bytes, record);
    patch->islands[i] = reinterpret_cast<uintptr_t>(at + sizeof(Record));
    at = write_island(at + sizeof(Record), code->bytes, patch->function, record);
    while (at != nullptr && reinterpret_cast<uintptr_t>(at) % alignof(Record) != 0) ++at;
  }
  if (at == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  open_page.free = at;
  return success();
}

// The bytes with the jumps.
Snapshot with_jumps(const Patch& patch, Code code) {
  for (size_t i = 0; i < patch.count; ++i) {
    const size_t offset = patch.places[i].offset;
    put_jump(patch.function + offset, patch.islands[i], code.bytes + offset);
  }
  return Snapshot::of(patch, code.bytes);
}

uintptr_t end_of(const Patch& patch) { return patch.function + patch.places[patch.count - 1].offset + kJumpLength; }

bool is_in(const Mapping& mapping, const Patch& patch) {
  return patch.function >= mapping.base && patch.function < mapping.end;
}

bool protect(uintptr_t base, uintptr_t end, int protection) {
  return system_call_hook(SYS_mprotect, base, end - base, protection) == 0;
}

// Writes all jumps of which the bytes are not there.
Status write_jumps(const Patch& patch) {
  for (size_t i = 0; i < patch.count; ++i) {
    const uint8_t *const now = patch.seen.places[i], *const own = patch.own.places[i];
    const bool is_there = std::memcmp(now, own, kJumpLength) == 0;
    if (!is_there && !write_jump(patch.function + patch.places[i].offset, now, own)) return PINRAIL_ERR_BUSY;
  }
  return success();
}

// Writes them for those functions in the mapping that were not tried yet. Their pages are writable meanwhile, and stay
// executable, because other threads run in them.
void write_in_mapping(const Mapping& mapping, Patch* const* patches, size_t count) {
  const auto is_wanted = [&](const Patch& patch) {
    return patch.written.is(PINRAIL_ERR_PERM) && is_in(mapping, patch);
  };
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (size_t i = 0; i < count; ++i) {
    const Patch& patch = *patches[i];
    if (!is_wanted(patch)) continue;
    low = std::min(low, patch.function & ~(kPage - 1));
    high = std::max(high, (end_of(patch) + kPage - 1) & ~(kPage - 1));
  }
  if (high == 0 || !protect(low, high, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
  for (size_t i = 0; i < count; ++i) {
    if (is_wanted(*patches[i])) patches[i]->written = write_jumps(*patches[i]);
  }
  synchronise();
  protect(low, high, mapping.protection);
}

// PERM: a function's pages cannot be made writable, or are not found. The list of mappings changes while it is read,
// and may have one of them twice: a function that was written is not tried again.
void write_all_locked(Patch* const* patches, size_t count) REQUIRES(mutex) {
  for (size_t i = 0; i < count; ++i) patches[i]->written = PINRAIL_ERR_PERM;
  const auto write = [&](const Mapping& mapping) {
    write_in_mapping(mapping, patches, count);
    return std::any_of(patches, patches + count, [](const Patch* each) { return each->written.is(PINRAIL_ERR_PERM); });
  };
  if (count != 0) for_each_mapping(write);
}

}  // namespace

void synchronise() { system_call_hook(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE); }

Snapshot Snapshot::of(const Patch& patch, const uint8_t* code) {
  Snapshot snapshot;
  std::memcpy(snapshot.start, code, kStart);
  for (size_t i = 0; i < patch.count; ++i) std::memcpy(snapshot.places[i], code + patch.places[i].offset, kJumpLength);
  return snapshot;
}

Snapshot Snapshot::of(const Patch& patch) { return of(patch, code_at(patch.function)); }

Status prepare(uintptr_t function, const Calls& calls, Hook hook, void* arg, Patch* patch_out) {
  if (getauxval(AT_PAGESZ) != kPage) return PINRAIL_ERR_NOT_SUPPORTED;
  Code code;
  copy_code(function, &code);
  Patch patch;
  patch.function = function;
  if (!find_places(code.bytes, code.length, code.is_whole, calls, &patch)) return PINRAIL_ERR_NOT_SUPPORTED;
  patch.seen = Snapshot::of(patch, code.bytes);
  Guard guard(mutex);
  const Status status = build_islands_locked(calls, hook, arg, &code, &patch);
  if (!status.ok()) return status;
  patch.bare = Snapshot::of(patch, code.bytes);
  patch.own = with_jumps(patch, code);
  *patch_out = patch;
  return status;
}

void activate(Patch* const* patches, size_t count) {
  Guard guard(mutex);
  const bool can_write = can_write_jumps() && may_synchronise();
  const Status ready = can_write ? close_page_locked() : Status(PINRAIL_ERR_NOT_AVAILABLE);
  for (size_t i = 0; i < count; ++i) patches[i]->written = ready;
  if (ready.ok()) write_all_locked(patches, count);
  for (size_t i = 0; i < count; ++i) {
    Patch* const patch = patches[i];
    if (patch->written.ok()) {
      patch->seen = patch->own;
    } else {
      patch->count = 0;
    }
  }
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  open_page = {};
}

// Each miss may ask this of all functions: nothing is copied.
bool is_in_place(const Patch& patch) {
  const uint8_t* const code = code_at(patch.function);
  bool same = std::memcmp(code, patch.seen.start, Snapshot::kStart) == 0;
  for (size_t i = 0; i < patch.count; ++i) {
    same = same && std::memcmp(code + patch.places[i].offset, patch.seen.places[i], kJumpLength) == 0;
  }
  return same;
}

Bytes whose(const Patch& patch, const Snapshot& now) {
  Bytes bytes = Bytes::foreign;
  for (size_t i = 0; i < patch.count; ++i) {
    const uint8_t* const place = now.places[i];
    if (std::memcmp(place, patch.own.places[i], kJumpLength) == 0) continue;
    if (bytes == Bytes::foreign) bytes = Bytes::torn;
    for (size_t at = 0; at < kJumpLength; ++at) {
      if (place[at] == patch.own.places[i][at] || place[at] == patch.bare.places[i][at]) continue;
      if (!is_breakpoint(place, at)) return Bytes::foreign;
      bytes = Bytes::breakpoint;
    }
  }
  return bytes;
}

Status mend(Patch* patch, const Snapshot& now) {
  Patch torn = *patch;
  torn.seen = now;
  Patch* const only = &torn;
  Guard guard(mutex);
  write_all_locked(&only, 1);
  if (torn.written.ok()) patch->seen = Snapshot::of(*patch);
  return torn.written;
}

void accept(Patch* patch) { patch->seen = Snapshot::of(*patch); }

std::string bytes_of(uintptr_t function) {
  constexpr size_t kPrinted = 64;
  std::string text;
  char byte[4];
  for (size_t i = 0; i < kPrinted; ++i) {
    std::snprintf(byte, sizeof(byte), "%02x ", code_at(function)[i]);
    text += byte;
  }
  return text;
}

bool pin_object_of(const void* hook) {
  Dl_info own{}, program{};
  if (dladdr(hook, &own) == 0) return false;
  const bool is_known = dladdr(code_at(getauxval(AT_ENTRY)), &program) != 0;
  if (is_known && program.dli_fbase == own.dli_fbase) return true;
  void* const handle = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

}  // namespace pinrail::patch

#else

namespace pinrail::patch {

// Of the functions that are called where nothing is patched.
Status prepare(uintptr_t, const Calls&, Hook, void*, Patch*) { return PINRAIL_ERR_NOT_SUPPORTED; }
void activate(Patch* const*, size_t) {}
void fork_reinit() {}
bool is_in_place(const Patch&) { return false; }
std::string bytes_of(uintptr_t) { return ""; }
bool pin_object_of(const void*) { return false; }
bool call_original_hook(const Record*, long, const long*, long*) { return false; }

}  // namespace pinrail::patch

#endif
