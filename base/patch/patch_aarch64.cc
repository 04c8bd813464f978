// SPDX-License-Identifier: BSD-3-Clause
// Patches functions on 64-bit Arm. Start-up or API context. Only activate() takes the lock of patches.
//
// A branch to an island replaces the instruction with which the function makes its system call (svc), or the call (bl)
// of the function that makes it. The architecture permits one thread to change these instructions while another one
// executes them, and at that place all arguments are where the kernel expects them. To the function the island looks
// like the kernel: it changes no register except x0. A branch to such an island may be there already: another copy of
// the library, or a forked child's parent, patched the function. Then the new island takes its place, and the new hook
// calls the other one where it would have made the system call. If another runtime has written a far jump over the
// function's start, the branch replaces the jump's first instruction, and the new hook calls the jump's target.
#include <dlfcn.h>
#include <link.h>
#include <linux/membarrier.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/patch/enter_hook.h"
#include "base/patch/island_aarch64.h"
#include "base/patch/maps.h"
#include "base/patch/patch.h"
#include "base/patch/system_call.h"
#include "base/sync/lock.h"

#if PINRAIL_CAN_PATCH && defined(__aarch64__)

namespace pinrail::patch {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kReach = (uintptr_t{1} << 27) - 2 * kPage;  // the reach of a branch, in both directions
constexpr size_t kWord = 4;

Mutex mutex{LockRank::patch};  // pages of code are writable only while it is held

constexpr uint32_t kSupervisorCall = 0xd4000001;                      // svc #0
constexpr bool is_call(uint32_t word) { return word >> 26 == 0x25; }  // bl
// Returns whether the word is a mov of a 16-bit number to that register, of 32 or 64 bits.
constexpr bool is_number(uint32_t word, unsigned reg, int number) {
  return (word & 0x7fffffff) == (0x52800000 | static_cast<uint32_t>(number) << 5 | reg);
}
constexpr uint32_t branch(uintptr_t from, uintptr_t to) {
  return 0x14000000 | (static_cast<uint32_t>(static_cast<int64_t>(to - from) >> 2) & 0x3ffffff);
}

uint32_t word_of(const Snapshot& seen, size_t at) {
  uint32_t word;
  std::memcpy(&word, seen.bytes + at, sizeof(word));
  return word;
}

uint32_t word_at(uintptr_t address) {
  uint32_t word;
  std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof(word));  // NOLINT(performance-no-int-to-ptr): code
  return word;
}

// Returns the length of the function's code. The symbol table has the length of an exported function. Of any other
// function only the first four instructions are examined.
size_t length_of(uintptr_t function) {
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of code
  const void* const address = reinterpret_cast<const void*>(function);
  const bool found = dladdr1(address, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) != 0;
  const bool is_it = found && symbol != nullptr && info.dli_saddr == address && symbol->st_size != 0;
  return std::min(is_it ? size_t{symbol->st_size} : 4 * kWord, kMaxDecoded);
}

// The words of an island in front of the record's address: it saves what a call changes, calls the hook's entry, and
// restores.
constexpr uint32_t kSaveFrame = 0xa9be7bfd;    // stp x29, x30, [sp, #-32]!
constexpr uint32_t kSaveScratch = 0xa90147f0;  // stp x16, x17, [sp, #16]
constexpr uint32_t kLoadRecord = 0x58000010;   // ldr x16, of an address that is added
constexpr uint32_t kLoadEntry = 0xf9400211;    // ldr x17, [x16]
constexpr uint32_t kCallEntry = 0xd63f0220;    // blr x17
constexpr uint32_t kLoadScratch = 0xa94147f0;  // ldp x16, x17, [sp, #16]
constexpr uint32_t kLoadFrame = 0xa8c27bfd;    // ldp x29, x30, [sp], #32
constexpr uint32_t kReturn = 0xd65f03c0;       // ret
constexpr uint32_t kSkipClone = 0xd1000110;    // sub x16, x8, #0, of a number that is added
constexpr size_t kCallWords = 8;               // of what calls the hook
constexpr size_t kCloneWords = 4;              // of what write_way_of_clones() writes
constexpr size_t kLongestIsland = 80;          // bytes

constexpr bool is_branch(uint32_t word) { return word >> 26 == 0x05; }  // b
// Returns where the branch at that address leads.
constexpr uintptr_t target_of(uint32_t word, uintptr_t from) {
  return from + static_cast<uintptr_t>(static_cast<int64_t>(static_cast<int32_t>(word << 6) >> 6) * 4);
}

// Returns the record of the island to which the word at that address branches, if an island of this library is there.
// Otherwise NULL.
const Record* record_behind(uint32_t word, uintptr_t from) {
  if (!is_branch(word)) return nullptr;
  uintptr_t at = target_of(word, from);
  if ((word_at(at) & 0xffc003ff) == kSkipClone) at += kCloneWords * kWord;
  const uint32_t load = word_at(at + 2 * kWord);
  const bool is_island = word_at(at) == kSaveFrame && word_at(at + kWord) == kSaveScratch &&
                         (load & 0xff00001f) == kLoadRecord && word_at(at + 3 * kWord) == kLoadEntry &&
                         word_at(at + 4 * kWord) == kCallEntry;
  const uintptr_t pool = at + 2 * kWord + (load >> 5 & 0x7ffff) * kWord;
  if (!is_island || pool >= at + kLongestIsland) return nullptr;
  const Record* record;
  std::memcpy(&record, reinterpret_cast<const void*>(pool), sizeof(record));  // NOLINT(performance-no-int-to-ptr): code
  return record->mark == kMark ? record : nullptr;
}

// Returns where a far jump of another runtime leads, or 0 if the function does not begin with one. UCX and Open MPI
// write the address by movz and movk; others load it from behind the jump.
uintptr_t far_jump_target(const Snapshot& seen) {
  const auto code = [&](size_t word) { return word_of(seen, word * kWord); };
  const uint32_t load = code(0), reg = load & 0x1f;
  const uint32_t jump = 0xd61f0000 | reg << 5;                 // br
  if ((load & 0xffffffe0) == 0x58000040 && code(1) == jump) {  // ldr of the eight bytes behind br
    uintptr_t target;
    std::memcpy(&target, seen.bytes + 2 * kWord, sizeof(target));
    return target;
  }
  constexpr uint32_t kMovz = 0xd2800000, kMovk = 0xf2800000, kMove = 0xff800000;
  uintptr_t target = 0;
  size_t word = 0;
  for (; word < 4 && (code(word) & kMove) == (word == 0 ? kMovz : kMovk) && (code(word) & 0x1f) == reg; ++word) {
    const unsigned shift = code(word) >> 21 & 3;
    target = (target & ~(uintptr_t{0xffff} << 16 * shift)) | uintptr_t{code(word) >> 5 & 0xffff} << 16 * shift;
  }
  return word != 0 && code(word) == jump ? target : 0;
}

// A hook like those of islands: calls the function at `code`, another runtime's.
long call_code_hook(void* code, const long* args) {
  using Call = long (*)(long, long, long, long, long, long);
  return reinterpret_cast<Call>(code)(args[0], args[1], args[2], args[3], args[4], args[5]);
}

// Finds each place where the function makes a system call. If there is none, finds its only call (bl), if the system
// call's number is passed there as the seventh argument. NOT_SUPPORTED otherwise. A branch to an island of this library
// counts as what it replaced, and becomes the patch's `original`.
Status find_places(const Signature& signature, Patch* patch) {
  const size_t length = length_of(patch->function);
  const auto code = [&](size_t at) { return word_of(patch->seen, at); };
  const auto add = [&](size_t at) {
    if (patch->count == Patch::kMaxPlaces) return false;
    patch->places[patch->count++] = static_cast<uint16_t>(at);
    return true;
  };
  // Returns whether the code there is `plain`, or a branch to an island that replaced it.
  const auto was = [&](size_t at, bool plain, Place place) {
    const Record* const record = record_behind(code(at), patch->function + at);
    if (record == nullptr || record->place != place) return plain;
    patch->island.original = reinterpret_cast<uintptr_t>(record);
    return true;
  };
  if (was(0, far_jump_target(patch->seen) != 0, Place::function)) {
    patch->replaces_function = true;
    // The arguments of syscall() differ, and the system calls that it makes may need the caller's stack.
    return signature.system_call != kAnyCall && add(0) ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
  }
  for (size_t at = 0; at + kWord <= length; at += kWord) {
    if (was(at, code(at) == kSupervisorCall, Place::system_call) && !add(at)) return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (patch->count != 0) return success();
  bool is_told = false;
  for (size_t at = 0; at + kWord <= length; at += kWord) {
    is_told = is_told || is_number(code(at), 6, signature.system_call);
    if (was(at, is_call(code(at)), Place::call) && !add(at)) return PINRAIL_ERR_NOT_SUPPORTED;
  }
  return is_told && patch->count == 1 ? success() : Status(PINRAIL_ERR_NOT_SUPPORTED);
}

// Writes an island's words.
class IslandWriter {
 public:
  explicit IslandWriter(uint8_t* at) : at_(at) {}

  uint8_t* end() const { return at_; }
  uintptr_t here() const { return reinterpret_cast<uintptr_t>(at_); }
  void word(uint32_t value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }
  void align() {
    while (here() % sizeof(uintptr_t) != 0) word(0);
  }
  void address(const void* value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  uint8_t* at_;
};

// Writes code that makes the system calls clone and clone3 without the hook: the child may have a new stack, without
// the frames that the island and the hook have on this one. The function is syscall(), so x16 and x17 are free. The
// code is: sub x16, x8, #number; cbz x16, end of the island.
void write_way_of_clones(IslandWriter* writer) {
  constexpr uint32_t kBranchIfZero = 0xb4000010;
  constexpr uint32_t kClone = 220, kClone3 = 435;
  writer->word(kSkipClone | kClone << 10);
  writer->word(kBranchIfZero | (kCallWords + 3) << 5);
  writer->word(kSkipClone | kClone3 << 10);
  writer->word(kBranchIfZero | (kCallWords + 1) << 5);
}

uint8_t* write_island(uint8_t* at, uintptr_t place, const Record* record) {
  IslandWriter writer(at);
  const bool is_function = record->place == Place::function;
  const bool is_any = record->number < 0 && !is_function;
  if (is_any) write_way_of_clones(&writer);
  const size_t behind = is_any ? 2 : 0;
  const uintptr_t pool = (writer.here() + (kCallWords + behind) * kWord + 7) & ~uintptr_t{7};
  writer.word(kSaveFrame);
  writer.word(kSaveScratch);
  writer.word(kLoadRecord | static_cast<uint32_t>((pool - writer.here()) / kWord) << 5);
  writer.word(kLoadEntry);
  writer.word(kCallEntry);
  writer.word(kLoadScratch);
  writer.word(kLoadFrame);
  writer.word(is_function ? kReturn : branch(writer.here(), place + kWord));
  if (is_any) {
    writer.word(kSupervisorCall);
    writer.word(branch(writer.here(), place + kWord));
  }
  writer.align();
  writer.address(record);
  return writer.end();
}

static_assert(2 * sizeof(Record) + 4 * kLongestIsland < kPage, "all of a function's islands are on one page");

Place place_of(const Patch& patch) {
  if (patch.replaces_function) return Place::function;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the record of another island
  if (patch.is_chained()) return reinterpret_cast<const Record*>(patch.island.original)->place;
  return word_of(patch.seen, patch.places[0]) == kSupervisorCall ? Place::system_call : Place::call;
}

Status build_islands(const Signature& signature, Hook hook, void* arg, Patch* patch) {
  uint8_t* const page = map_near(patch->function, kReach);
  if (page == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  auto* const record = new (page) Record{reinterpret_cast<uintptr_t>(&pinrail_patch_enter_hook),
                                         hook,
                                         arg,
                                         signature.system_call >= 0 ? signature.system_call : -1,
                                         place_of(*patch),
                                         kMark};
  uint8_t* at = page + sizeof(Record);
  if (patch->replaces_function && !patch->is_chained()) {
    void* const code =
        reinterpret_cast<void*>(far_jump_target(patch->seen));  // NOLINT(performance-no-int-to-ptr): code
    patch->island.original =
        reinterpret_cast<uintptr_t>(new (at) Record{0, call_code_hook, code, -1, Place::function, kMark});
    at += sizeof(Record);
  }
  for (size_t i = 0; i < patch->count; ++i) {
    patch->islands[i] = reinterpret_cast<uintptr_t>(at);
    at = write_island(at, patch->function + patch->places[i], record);
  }
  __builtin___clear_cache(reinterpret_cast<char*>(page), reinterpret_cast<char*>(at));
  const auto address = reinterpret_cast<long>(page);
  if (!is_error_hook(system_call_hook(SYS_mprotect, address, kPage, PROT_READ | PROT_EXEC))) return success();
  system_call_hook(SYS_munmap, address, kPage);
  return PINRAIL_ERR_PERM;
}

bool protect(uintptr_t address, size_t length, int protection) {
  const uintptr_t base = address & ~(kPage - 1);
  const uintptr_t end = (address + length + kPage - 1) & ~(kPage - 1);
  return system_call_hook(SYS_mprotect, static_cast<long>(base), static_cast<long>(end - base), protection) == 0;
}

bool may_synchronise() {
  return system_call_hook(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) == 0;
}
void synchronise() { system_call_hook(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE); }

// Keeps patch/P1 and patch/P3: one aligned word for each place. False if the place has changed.
bool store(const Patch& patch, size_t i) {
  const uintptr_t at = patch.function + patch.places[i];
  uint32_t before;
  std::memcpy(&before, patch.seen.bytes + patch.places[i], sizeof(before));
  auto* const word = reinterpret_cast<uint32_t*>(at);  // NOLINT(performance-no-int-to-ptr): an address of code
  if (!__atomic_compare_exchange_n(word, &before, branch(at, patch.islands[i]), false, __ATOMIC_SEQ_CST,
                                   __ATOMIC_SEQ_CST)) {
    return false;
  }
  __builtin___clear_cache(reinterpret_cast<char*>(word), reinterpret_cast<char*>(word + 1));
  return true;
}

}  // namespace

Snapshot Snapshot::of(uintptr_t function) {
  Snapshot snapshot;
  for (size_t i = 0; i < kMaxDecoded; i += kWord) {
    const uint32_t word = word_at(function + i);
    std::memcpy(snapshot.bytes + i, &word, sizeof(word));
  }
  return snapshot;
}

Status prepare(uintptr_t function, const Signature& signature, const Disassembler&, Hook hook, void* arg,
               Patch* patch_out) {
  if (signature.system_call == -1 || getauxval(AT_PAGESZ) != kPage) return PINRAIL_ERR_NOT_SUPPORTED;
  Patch patch;
  patch.function = function;
  patch.seen = Snapshot::of(function);
  Status status = find_places(signature, &patch);
  if (!status.ok()) return status;
  if (!may_synchronise()) return PINRAIL_ERR_NOT_AVAILABLE;
  status = build_islands(signature, hook, arg, &patch);
  if (status.ok()) *patch_out = patch;
  return status;
}

// BUSY: one of several places has changed since prepare(). The places before it are patched then, and they work.
Status activate(Patch* patch) {
  Guard guard(mutex);
  const size_t length = patch->guarded_length();
  if (!protect(patch->function, length, PROT_READ | PROT_WRITE | PROT_EXEC)) return PINRAIL_ERR_PERM;
  bool stored = true;
  for (size_t i = 0; stored && i < patch->count; ++i) stored = store(*patch, i);
  protect(patch->function, length, PROT_READ | PROT_EXEC);
  synchronise();
  if (!stored) return PINRAIL_ERR_BUSY;
  accept(patch);
  patch->own = patch->seen;
  return success();
}

// The kernel's probes and debuggers write whole instructions.
Bytes whose(const Patch& patch, const Snapshot& file, const Snapshot& now) {
  if (now.agrees(patch.seen, patch.guarded_length())) return Bytes::expected;
  constexpr uint32_t kBreakpoint = 0xd4200000, kNumber = 0x1fffe0;
  Bytes bytes = Bytes::torn;
  for (size_t at = 0; at < patch.guarded_length(); at += kWord) {
    const uint32_t word = word_of(now, at);
    if (word == word_of(patch.seen, at) || word == word_of(patch.own, at) || word == word_of(file, at)) continue;
    if ((word & ~kNumber) != kBreakpoint) return Bytes::foreign;
    bytes = Bytes::breakpoint;
  }
  return bytes;
}

Status mend(Patch* patch, const Snapshot&, const Snapshot& now) {
  {
    Guard guard(mutex);
    patch->seen = now;  // store() expects it
  }
  const Snapshot own = patch->own;
  const Status status = activate(patch);
  patch->own = own;
  return status;
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS { new (&mutex) Mutex(LockRank::patch); }

bool is_in_place(const Patch& patch) { return Snapshot::of(patch.function).agrees(patch.seen, patch.guarded_length()); }

void accept(Patch* patch) { patch->seen = Snapshot::of(patch->function); }

long call_original_hook(uintptr_t original, const long* args) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the record of another island
  const auto& record = *reinterpret_cast<const Record*>(original);
  return record.hook(record.arg, args);
}

long call_original_syscall_hook(uintptr_t original, long number, const long* args) {
  const long given[kStackArgs + 1] = {number, args[0], args[1], args[2], args[3], args[4], 0, 0, args[5]};
  return call_original_hook(original, given);
}

}  // namespace pinrail::patch

#endif
