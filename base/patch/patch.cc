// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context. Only activate() takes the lock of patches; store_protected_locked() is called with it held.
#include "base/patch/patch.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

#include <cpuid.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/patch/maps.h"
#include "base/sync/lock.h"

namespace pinrail::patch {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kWide = 16;

Mutex mutex{LockRank::patch};  // pages of code are writable only while it is held

const uint8_t* code_at(uintptr_t address) {
  return reinterpret_cast<const uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr): an address of code
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

// After synchronise() each other thread executes a serialising instruction before it continues, so it runs the new
// code.
bool may_synchronise() {
  return system_call_hook(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) == 0;
}
void synchronise() { system_call_hook(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE); }

bool has_wide_exchange() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_CMPXCHG16B) != 0;
}

// Replaces 8 aligned bytes in one store. False if they are not `before` any more.
bool exchange_8(uintptr_t at, const uint8_t* before, const uint8_t* after) {
  uint64_t old_word, new_word;
  std::memcpy(&old_word, before, sizeof(old_word));
  std::memcpy(&new_word, after, sizeof(new_word));
  bool done;
  __asm__ volatile("lock cmpxchgq %3, (%2)\n\tsete %0"
                   : "=q"(done), "+a"(old_word)
                   : "r"(at), "r"(new_word)
                   : "memory", "cc");
  return done;
}

// Replaces 16 aligned bytes in one store. False if they are not `before` any more.
bool exchange_16(uintptr_t at, const uint8_t* before, const uint8_t* after) {
  uint64_t old_words[2], new_words[2];
  std::memcpy(old_words, before, sizeof(old_words));
  std::memcpy(new_words, after, sizeof(new_words));
  bool done;
  __asm__ volatile("lock cmpxchg16b (%3)\n\tsete %0"
                   : "=q"(done), "+a"(old_words[0]), "+d"(old_words[1])
                   : "r"(at), "b"(new_words[0]), "c"(new_words[1])
                   : "memory", "cc");
  return done;
}

// The aligned block that contains the jump, before and after the store.
struct Block {
  uintptr_t at;
  size_t length;
  uint8_t before[kWide];
  uint8_t after[kWide];
};

// Bytes of neighbouring functions in the block are taken as they are now: patch/P3 is about this function's bytes only.
Block make_block(const Patch& patch) {
  const uintptr_t place = patch.function + patch.entry.offset;
  Block block{};
  block.length = fits_block(place, 8) ? 8 : kWide;
  block.at = place & ~(uintptr_t{block.length} - 1);
  std::memcpy(block.before, code_at(block.at), block.length);
  const uintptr_t first = std::max(block.at, patch.function);
  const uintptr_t last = std::min(block.at + block.length, patch.function + kMaxDecoded);
  std::memcpy(block.before + (first - block.at), patch.seen.bytes + (first - patch.function), last - first);
  std::memcpy(block.after, block.before, block.length);
  uint8_t* const jump = block.after + (place - block.at);
  const auto relative = static_cast<int32_t>(patch.island.enter - (place + kJumpLength));
  jump[0] = 0xe9;
  std::memcpy(jump + 1, &relative, sizeof(relative));
  return block;
}

bool store(const Block& block) {
  return block.length == 8 ? exchange_8(block.at, block.before, block.after)
                           : exchange_16(block.at, block.before, block.after);
}

// Sets the protection of the address's page. False if the system refuses.
bool protect(uintptr_t address, int protection) {
  const auto page = static_cast<long>(address & ~(kPage - 1));
  return system_call_hook(SYS_mprotect, page, kPage, protection) == 0;
}

// Makes the page writable for one store. BUSY: the bytes have changed. PERM: the system does not permit it.
Status store_protected_locked(const Block& block) REQUIRES(mutex) {
  ProtectionQuery wanted{block.at, 0};
  if (!for_each_mapping(is_there, &wanted) || wanted.protection == 0) return PINRAIL_ERR_PERM;
  // The page stays executable, because other threads run in it.
  if (!protect(block.at, PROT_READ | PROT_WRITE | PROT_EXEC)) return PINRAIL_ERR_PERM;
  const bool stored = store(block);
  protect(block.at, wanted.protection);
  return stored ? success() : Status(PINRAIL_ERR_BUSY);
}

}  // namespace

Snapshot Snapshot::of(uintptr_t function) {
  Snapshot snapshot;
  std::memcpy(snapshot.bytes, code_at(function), sizeof(snapshot.bytes));
  return snapshot;
}

Status prepare(uintptr_t function, const Signature& signature, const Disassembler& disassembler, Hook hook, void* arg,
               Patch* patch_out) {
  Patch patch;
  patch.function = function;
  // The bytes are copied once, so that activate() compares with the bytes that were decoded.
  uint8_t code[kMaxSeen];
  const size_t length = std::max(kMaxDecoded, std::min(kMaxSeen, kPage - function % kPage));
  std::memcpy(code, code_at(function), length);
  std::memcpy(patch.seen.bytes, code, sizeof(patch.seen.bytes));
  Status status = decode(code, length, function, signature, disassembler, &patch.entry);
  if (!status.ok()) return status;
  const bool wide = !fits_block(function + patch.entry.offset, 8);
  if (!may_synchronise() || (wide && !has_wide_exchange())) return PINRAIL_ERR_NOT_AVAILABLE;
  status = build_island(function, patch.seen.bytes, patch.entry, hook, arg, &patch.island);
  if (status.ok()) *patch_out = patch;
  return status;
}

Status activate(Patch* patch) {
  Guard guard(mutex);
  const Block block = make_block(*patch);
  const Status status = store_protected_locked(block);
  if (!status.ok()) return status;
  synchronise();
  std::memcpy(patch->seen.bytes + patch->entry.offset, block.after + (patch->function + patch->entry.offset - block.at),
              kJumpLength);
  patch->own = patch->seen;
  return success();
}

namespace {

constexpr uint8_t kBreakpoint = 0xcc;
constexpr size_t kGuarded = 16;  // at least: an accepted patch may be longer than ours

size_t guarded(const Patch& patch) { return std::max(patch.guarded_length(), kGuarded); }

}  // namespace

Bytes whose(const Patch& patch, const Snapshot& file, const Snapshot& now) {
  if (now.agrees(patch.seen, patch.guarded_length())) return Bytes::expected;
  Bytes bytes = Bytes::torn;
  for (size_t i = 0; i < guarded(patch); ++i) {
    const uint8_t byte = now.bytes[i];
    const bool is_known = byte == patch.seen.bytes[i] || byte == patch.own.bytes[i] || byte == file.bytes[i];
    if (is_known) continue;
    if (byte != kBreakpoint) return Bytes::foreign;
    bytes = Bytes::breakpoint;
  }
  return bytes;
}

namespace {

// Whether bytes are left that only an accepted patch of another runtime has.
bool has_accepted_bytes(const Patch& patch, const Snapshot& file, const Snapshot& now) {
  for (size_t i = 0; i < guarded(patch); ++i) {
    const uint8_t byte = now.bytes[i];
    if (byte == patch.seen.bytes[i] && byte != patch.own.bytes[i] && byte != file.bytes[i]) return true;
  }
  return false;
}

// The aligned block that changes the function's bytes from `now` to `target`. Length 0: it would have to be longer.
Block make_mending_block(uintptr_t function, const Snapshot& now, const Snapshot& target, size_t length) {
  size_t first = 0, last = length;
  while (first < last && now.bytes[first] == target.bytes[first]) ++first;
  while (last > first && now.bytes[last - 1] == target.bytes[last - 1]) --last;
  Block block{};
  block.at = (function + first) & ~(kWide - 1);
  if (first == last || function + last > block.at + kWide) return block;
  block.length = kWide;
  std::memcpy(block.before, code_at(block.at), kWide);
  std::memcpy(block.after, block.before, kWide);
  std::memcpy(block.before + (function + first - block.at), now.bytes + first, last - first);
  std::memcpy(block.after + (function + first - block.at), target.bytes + first, last - first);
  return block;
}

}  // namespace

Status mend(Patch* patch, const Snapshot& file, const Snapshot& now) {
  Guard guard(mutex);
  const Snapshot target = has_accepted_bytes(*patch, file, now) ? patch->seen : patch->own;
  const Block block = make_mending_block(patch->function, now, target, guarded(*patch));
  if (block.length == 0 || !has_wide_exchange()) return PINRAIL_ERR_BUSY;
  const Status status = store_protected_locked(block);
  if (!status.ok()) return status;
  synchronise();
  patch->seen = target;
  return status;
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS { new (&mutex) Mutex(LockRank::patch); }

bool is_in_place(const Patch& patch) { return Snapshot::of(patch.function).agrees(patch.seen, patch.guarded_length()); }

void accept(Patch* patch) { patch->seen = Snapshot::of(patch->function); }

long call_original_hook(uintptr_t original, const long* args) {
  using Call = long (*)(long, long, long, long, long, long);
  const auto call = reinterpret_cast<Call>(original);  // NOLINT(performance-no-int-to-ptr): an address of code
  return call(args[0], args[1], args[2], args[3], args[4], args[5]);
}

long call_original_syscall_hook(uintptr_t original, long number, const long* args) {
  using Call = long (*)(long, long, long, long, long, long, long);
  const auto call = reinterpret_cast<Call>(original);  // NOLINT(performance-no-int-to-ptr): an address of code
  return call(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

}  // namespace pinrail::patch

#elif !PINRAIL_CAN_PATCH

namespace pinrail::patch {

Snapshot Snapshot::of(uintptr_t) { return Snapshot(); }
Status prepare(uintptr_t, const Signature&, const Disassembler&, Hook, void*, Patch*) {
  return PINRAIL_ERR_NOT_SUPPORTED;
}
Status activate(Patch*) { return PINRAIL_ERR_NOT_SUPPORTED; }
void fork_reinit() {}
bool is_in_place(const Patch&) { return false; }
Bytes whose(const Patch&, const Snapshot&, const Snapshot&) { return Bytes::foreign; }
Status mend(Patch*, const Snapshot&, const Snapshot&) { return PINRAIL_ERR_NOT_SUPPORTED; }
void accept(Patch*) {}
long call_original_hook(uintptr_t, const long*) { return -1; }
long call_original_syscall_hook(uintptr_t, long, const long*) { return -1; }

}  // namespace pinrail::patch

#endif
