// SPDX-License-Identifier: BSD-3-Clause
// Patches functions on 64-bit Arm. Start-up or API context; pinrail_patch_call_hook() runs in hook context. Only
// activate() takes the lock of patches.
//
// A branch to an island replaces the instruction with which the function makes its system call (svc), or the call (bl)
// of the function that makes it. The architecture permits one thread to change these instructions while another one
// executes them, and at that place all arguments are where the kernel expects them. To the function the island looks
// like the kernel: it changes no register except x0.
#include <dlfcn.h>
#include <link.h>
#include <linux/membarrier.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/patch/enter_hook.h"
#include "base/patch/maps_hook.h"
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

uint32_t word_at(uintptr_t address) {
  uint32_t word;
  std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof(word));  // NOLINT(performance-no-int-to-ptr): code
  return word;
}

// Lies in the island: what the island's code passes to the hook's entry.
struct Record {
  uintptr_t enter;  // pinrail_patch_enter_hook
  Hook hook;
  void* arg;
  int64_t number;   // of the system call; -1: any
  int64_t is_call;  // 1: the caller expects -1 and errno, as from a function; 0: the kernel's result
};
static_assert(offsetof(Record, enter) == 0, "the island's code reads it");

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

// Finds each place where the function makes a system call. If there is none, finds its only call (bl), if the system
// call's number is passed there as the seventh argument. NOT_SUPPORTED otherwise.
Status find_places(const Signature& signature, Patch* patch) {
  const size_t length = length_of(patch->function);
  const auto code = [&](size_t at) {
    uint32_t word;
    std::memcpy(&word, patch->seen.bytes + at, sizeof(word));
    return word;
  };
  const auto add = [&](size_t at) {
    if (patch->count == Patch::kMaxPlaces) return false;
    patch->places[patch->count++] = static_cast<uint16_t>(at);
    return true;
  };
  for (size_t at = 0; at + kWord <= length; at += kWord) {
    if (code(at) == kSupervisorCall && !add(at)) return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (patch->count != 0) return success();
  bool is_told = false;
  for (size_t at = 0; at + kWord <= length; at += kWord) {
    is_told = is_told || is_number(code(at), 6, signature.system_call);
    if (is_call(code(at)) && !add(at)) return PINRAIL_ERR_NOT_SUPPORTED;
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

constexpr size_t kCallWords = 8;       // of what calls the hook
constexpr size_t kLongestIsland = 80;  // bytes

// Writes code that makes the system calls clone and clone3 without the hook: the child may have a new stack, without
// the frames that the island and the hook have on this one. The function is syscall(), so x16 and x17 are free. The
// code is: sub x16, x8, #number; cbz x16, end of the island.
void write_way_of_clones(IslandWriter* writer) {
  constexpr uint32_t kSubtract = 0xd1000110, kBranchIfZero = 0xb4000010;
  constexpr uint32_t kClone = 220, kClone3 = 435;
  writer->word(kSubtract | kClone << 10);
  writer->word(kBranchIfZero | (kCallWords + 3) << 5);
  writer->word(kSubtract | kClone3 << 10);
  writer->word(kBranchIfZero | (kCallWords + 1) << 5);
}

uint8_t* write_island(uint8_t* at, uintptr_t place, const Record* record) {
  IslandWriter writer(at);
  const bool is_any = record->number < 0;
  if (is_any) write_way_of_clones(&writer);
  const size_t behind = is_any ? 2 : 0;
  const uintptr_t pool = (writer.here() + (kCallWords + behind) * kWord + 7) & ~uintptr_t{7};
  writer.word(0xa9be7bfd);                                                               // stp x29, x30, [sp, #-32]!
  writer.word(0xa90147f0);                                                               // stp x16, x17, [sp, #16]
  writer.word(0x58000010 | static_cast<uint32_t>((pool - writer.here()) / kWord) << 5);  // ldr x16, pool
  writer.word(0xf9400211);                                                               // ldr x17, [x16]
  writer.word(0xd63f0220);                                                               // blr x17
  writer.word(0xa94147f0);                                                               // ldp x16, x17, [sp, #16]
  writer.word(0xa8c27bfd);                                                               // ldp x29, x30, [sp], #32
  writer.word(branch(writer.here(), place + kWord));
  if (is_any) {
    writer.word(kSupervisorCall);
    writer.word(branch(writer.here(), place + kWord));
  }
  writer.align();
  writer.address(record);
  return writer.end();
}

static_assert(sizeof(Record) + 4 * kLongestIsland < kPage, "all of a function's islands are on one page");

Status build_islands(const Signature& signature, Hook hook, void* arg, Patch* patch) {
  uint8_t* const page = map_near(patch->function, kReach);
  if (page == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const bool is_call = word_at(patch->function + patch->places[0]) != kSupervisorCall;
  auto* const record = new (page) Record{reinterpret_cast<uintptr_t>(&pinrail_patch_enter_hook), hook, arg,
                                         signature.system_call >= 0 ? signature.system_call : -1, is_call ? 1 : 0};
  uint8_t* at = page + sizeof(Record);
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
  return success();
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS { new (&mutex) Mutex(LockRank::patch); }

bool is_in_place(const Patch& patch) { return Snapshot::of(patch.function).agrees(patch.seen, patch.guarded_length()); }

void accept(Patch* patch) { patch->seen = Snapshot::of(patch->function); }

}  // namespace pinrail::patch

// regs: the values of x0 to x8. A system call other than the function's own is made without the hook.
extern "C" __attribute__((visibility("hidden"))) long pinrail_patch_call_hook(const void* record_pointer,
                                                                              const long* regs) {
  using namespace pinrail::patch;
  const auto& record = *static_cast<const Record*>(record_pointer);
  const long number = regs[record.is_call != 0 ? 6 : 8];
  const int kept = errno;
  if (record.number < 0) {
    const long args[kStackArgs + 1] = {number, regs[0], regs[1], regs[2], regs[3], regs[4], 0, 0, regs[5]};
    const long result = record.hook(record.arg, args);
    const long answer = result == -1 ? -errno : result;
    errno = kept;
    return answer;
  }
  if (number != record.number) {
    const long result = system_call_hook(number, regs[0], regs[1], regs[2], regs[3], regs[4], regs[5]);
    if (record.is_call == 0 || !is_error_hook(result)) return result;
    errno = static_cast<int>(-result);
    return -1;
  }
  const long result = record.hook(record.arg, regs);
  if (result != -1 || record.is_call != 0) return result;
  const long answer = -errno;
  errno = kept;
  return answer;
}

// The kernel changes only x0, so all other registers that a function may change are saved here. x16 points to the
// record; the island saves x16, x17, x29 and x30.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden pinrail_patch_enter_hook\n"
    ".globl pinrail_patch_enter_hook\n"
    ".type pinrail_patch_enter_hook, %function\n"
    "pinrail_patch_enter_hook:\n"
    ".cfi_startproc\n"
    "hint #34\n"  // bti c
    "sub sp, sp, #688\n"
    ".cfi_adjust_cfa_offset 688\n"
    "stp x29, x30, [sp]\n"
    ".cfi_offset 29, -688\n"
    ".cfi_offset 30, -680\n"
    "mov x29, sp\n"
    "stp x0, x1, [sp, #16]\n"
    "stp x2, x3, [sp, #32]\n"
    "stp x4, x5, [sp, #48]\n"
    "stp x6, x7, [sp, #64]\n"
    "stp x8, x9, [sp, #80]\n"
    "stp x10, x11, [sp, #96]\n"
    "stp x12, x13, [sp, #112]\n"
    "stp x14, x15, [sp, #128]\n"
    "mrs x17, nzcv\n"
    "stp x18, x17, [sp, #144]\n"
    "stp q0, q1, [sp, #160]\n"
    "stp q2, q3, [sp, #192]\n"
    "stp q4, q5, [sp, #224]\n"
    "stp q6, q7, [sp, #256]\n"
    "stp q8, q9, [sp, #288]\n"
    "stp q10, q11, [sp, #320]\n"
    "stp q12, q13, [sp, #352]\n"
    "stp q14, q15, [sp, #384]\n"
    "stp q16, q17, [sp, #416]\n"
    "stp q18, q19, [sp, #448]\n"
    "stp q20, q21, [sp, #480]\n"
    "stp q22, q23, [sp, #512]\n"
    "stp q24, q25, [sp, #544]\n"
    "stp q26, q27, [sp, #576]\n"
    "stp q28, q29, [sp, #608]\n"
    "stp q30, q31, [sp, #640]\n"
    "mov x0, x16\n"
    "add x1, sp, #16\n"
    "bl pinrail_patch_call_hook\n"
    "ldp q0, q1, [sp, #160]\n"
    "ldp q2, q3, [sp, #192]\n"
    "ldp q4, q5, [sp, #224]\n"
    "ldp q6, q7, [sp, #256]\n"
    "ldp q8, q9, [sp, #288]\n"
    "ldp q10, q11, [sp, #320]\n"
    "ldp q12, q13, [sp, #352]\n"
    "ldp q14, q15, [sp, #384]\n"
    "ldp q16, q17, [sp, #416]\n"
    "ldp q18, q19, [sp, #448]\n"
    "ldp q20, q21, [sp, #480]\n"
    "ldp q22, q23, [sp, #512]\n"
    "ldp q24, q25, [sp, #544]\n"
    "ldp q26, q27, [sp, #576]\n"
    "ldp q28, q29, [sp, #608]\n"
    "ldp q30, q31, [sp, #640]\n"
    "ldp x18, x17, [sp, #144]\n"
    "msr nzcv, x17\n"
    "ldr x1, [sp, #24]\n"
    "ldp x2, x3, [sp, #32]\n"
    "ldp x4, x5, [sp, #48]\n"
    "ldp x6, x7, [sp, #64]\n"
    "ldp x8, x9, [sp, #80]\n"
    "ldp x10, x11, [sp, #96]\n"
    "ldp x12, x13, [sp, #112]\n"
    "ldp x14, x15, [sp, #128]\n"
    "ldp x29, x30, [sp]\n"
    ".cfi_restore 29\n"
    ".cfi_restore 30\n"
    "add sp, sp, #688\n"
    ".cfi_adjust_cfa_offset -688\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size pinrail_patch_enter_hook, . - pinrail_patch_enter_hook\n");

#endif
