// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. activate() and mend() take the lock of patches.
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
#include <new>

#include "base/patch/enter_hook.h"
#include "base/patch/island.h"
#include "base/patch/maps.h"
#include "base/sync/lock.h"

namespace pinrail::patch {
namespace {

constexpr size_t kBehind = 16;  // more bytes that find_places() may read

Mutex mutex{LockRank::patch};  // pages of code are writable only while it is held

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

// Takes over what another copy of this library has found out about the place, if it was there first.
void begin_record(const Calls& calls, Hook hook, void* arg, const Patch& patch, size_t i, Code* code,
                  Record* record_out) {
  const Place& place = patch.places[i];
  const uintptr_t island = target_of_jump(code->bytes + place.offset, patch.function + place.offset);
  const Record* const first = island == 0 ? nullptr : record_of(island);
  if (first != nullptr) {
    *record_out = *first;
    std::memcpy(code->bytes + place.offset, code_at(island), kJumpLength);
  }
  record_out->enter = reinterpret_cast<uintptr_t>(&pinrail_patch_enter_hook);
  record_out->hook = hook;
  record_out->arg = arg;
  record_out->number = calls.number;
  record_out->or_number = calls.or_number;
  record_out->place = place;
  record_out->mark = kMark;
}

bool make_executable(uint8_t* page) {
  return system_call_hook(SYS_mprotect, reinterpret_cast<long>(page), kPage, PROT_READ | PROT_EXEC) == 0;
}

Status build_islands(const Calls& calls, Hook hook, void* arg, Code* code, Patch* patch) {
  uint8_t* const page = map_near(patch->function, kReach);
  if (page == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  uint8_t* at = page;
  for (size_t i = 0; at != nullptr && i < patch->count; ++i) {
    const uintptr_t place = patch->function + patch->places[i].offset;
    const uintptr_t other = target_of_jump(code->bytes + patch->places[i].offset, place);
    if (patch->original == nullptr && other != 0) patch->original = record_of(other);
    auto* const record = new (at) Record{};
    begin_record(calls, hook, arg, *patch, i, code, record);
    patch->islands[i] = reinterpret_cast<uintptr_t>(at + sizeof(Record));
    at = write_island(at + sizeof(Record), code->bytes, patch->function, record);
    while (at != nullptr && reinterpret_cast<uintptr_t>(at) % alignof(Record) != 0) ++at;
  }
  __builtin___clear_cache(reinterpret_cast<char*>(page), reinterpret_cast<char*>(page) + kPage);
  const bool runs = at != nullptr && make_executable(page);
  if (runs) return success();
  system_call_hook(SYS_munmap, reinterpret_cast<long>(page), kPage);
  return at == nullptr ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_PERM;
}

// The bytes with the jumps.
Snapshot with_jumps(const Patch& patch, Code code) {
  for (size_t i = 0; i < patch.count; ++i) {
    const size_t offset = patch.places[i].offset;
    put_jump(patch.function + offset, patch.islands[i], code.bytes + offset);
  }
  return Snapshot::of(patch, code.bytes);
}

struct ProtectionQuery {
  uintptr_t address;
  int protection;
};

// A visitor for for_each_mapping() that finds the protection of one address.
bool is_there(void* arg, const Mapping& mapping) {
  auto* wanted = static_cast<ProtectionQuery*>(arg);
  if (wanted->address >= mapping.end) return true;
  if (wanted->address >= mapping.base) wanted->protection = mapping.protection;
  return false;
}

// Makes the function's pages writable for its life. They stay executable, because other threads run in them.
class Writable {
 public:
  explicit Writable(const Patch& patch)
      : base_(patch.function & ~(kPage - 1)),
        length_((patch.function + patch.places[patch.count - 1].offset + kJumpLength + kPage - 1) / kPage * kPage -
                base_) {
    ProtectionQuery wanted{patch.function, 0};
    if (for_each_mapping(is_there, &wanted)) before_ = wanted.protection;
    is_writable_ = before_ != 0 && protect(PROT_READ | PROT_WRITE | PROT_EXEC);
  }
  ~Writable() {
    if (is_writable_) protect(before_);
  }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;

  bool is_writable() const { return is_writable_; }

 private:
  bool protect(int protection) const {
    return system_call_hook(SYS_mprotect, static_cast<long>(base_), static_cast<long>(length_), protection) == 0;
  }

  const uintptr_t base_;
  const size_t length_;
  int before_ = 0;
  bool is_writable_ = false;
};

// Writes all jumps of which the bytes are not there.
Status write_locked(const Patch& patch, const Snapshot& before) REQUIRES(mutex) {
  const Writable writable(patch);
  if (!writable.is_writable()) return PINRAIL_ERR_PERM;
  bool done = true;
  for (size_t i = 0; done && i < patch.count; ++i) {
    const uint8_t *const now = before.places[i], *const own = patch.own.places[i];
    done = std::memcmp(now, own, kJumpLength) == 0 || write_jump(patch.function + patch.places[i].offset, now, own);
  }
  synchronise();
  return done ? success() : Status(PINRAIL_ERR_BUSY);
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
  if (!can_write_jumps() || !may_synchronise()) return PINRAIL_ERR_NOT_AVAILABLE;
  patch.seen = Snapshot::of(patch, code.bytes);
  const Status status = build_islands(calls, hook, arg, &code, &patch);
  if (!status.ok()) return status;
  patch.own = with_jumps(patch, code);
  *patch_out = patch;
  return status;
}

Status activate(Patch* patch) {
  Guard guard(mutex);
  const Status status = write_locked(*patch, patch->seen);
  if (status.ok()) patch->seen = patch->own;
  return status;
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS { new (&mutex) Mutex(LockRank::patch); }

bool is_in_place(const Patch& patch) { return Snapshot::of(patch) == patch.seen; }

Bytes whose(const Patch& patch, const Snapshot& file, const Snapshot& now) {
  if (now == patch.seen) return Bytes::expected;
  Bytes bytes = Bytes::foreign;
  for (size_t i = 0; i < patch.count; ++i) {
    const uint8_t* const place = now.places[i];
    if (std::memcmp(place, patch.own.places[i], kJumpLength) == 0) continue;
    if (bytes == Bytes::foreign) bytes = Bytes::torn;
    for (size_t at = 0; at < kJumpLength; ++at) {
      if (place[at] == patch.own.places[i][at] || place[at] == file.places[i][at]) continue;
      if (!is_breakpoint(place, at)) return Bytes::foreign;
      bytes = Bytes::breakpoint;
    }
  }
  return bytes;
}

Status mend(Patch* patch, const Snapshot& now) {
  Guard guard(mutex);
  const Status status = write_locked(*patch, now);
  if (status.ok()) patch->seen = Snapshot::of(*patch);
  return status;
}

void accept(Patch* patch) { patch->seen = Snapshot::of(*patch); }

}  // namespace pinrail::patch

#else

namespace pinrail::patch {

Snapshot Snapshot::of(const Patch&, const uint8_t*) { return Snapshot(); }
Snapshot Snapshot::of(const Patch&) { return Snapshot(); }
Status prepare(uintptr_t, const Calls&, Hook, void*, Patch*) { return PINRAIL_ERR_NOT_SUPPORTED; }
Status activate(Patch*) { return PINRAIL_ERR_NOT_SUPPORTED; }
void fork_reinit() {}
bool is_in_place(const Patch&) { return false; }
Bytes whose(const Patch&, const Snapshot&, const Snapshot&) { return Bytes::foreign; }
Status mend(Patch*, const Snapshot&) { return PINRAIL_ERR_NOT_SUPPORTED; }
void accept(Patch*) {}
bool call_original_hook(const Record*, long, const long*, long*) { return false; }

}  // namespace pinrail::patch

#endif
