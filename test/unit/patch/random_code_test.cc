// SPDX-License-Identifier: BSD-3-Clause
// Functions that begin with random instructions. Most are refused. Of those that are patched the hook must get the
// arguments, and the caller its registers and its stack, whatever came before the jump (decode/D2, frame/F1).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "test/unit/patch/patched_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::test {
namespace {

using patch::Disassembler;

constexpr size_t kCodeBytes = 128;
constexpr int kSystemCall = SYS_munmap;

// The code of one function: pushes, pops, moves between registers and its part of the stack, calls, branches; then a
// system call.
class RandomCode {
 public:
  RandomCode(uint64_t seed, uintptr_t address, uintptr_t callee) : random_(seed), address_(address), callee_(callee) {
    const unsigned count = below(14);
    for (unsigned i = 0; i < count; ++i) add_any();
    add({0xb8, kSystemCall, 0, 0, 0, 0x0f, 0x05, 0xc3});
    bytes_.resize(kCodeBytes, 0xcc);
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  unsigned below(unsigned bound) { return std::uniform_int_distribution<unsigned>(0, bound - 1)(random_); }
  void add(std::initializer_list<unsigned> bytes) {
    for (const unsigned byte : bytes) bytes_.push_back(static_cast<uint8_t>(byte));
  }
  // Mostly one of a few, so that what is saved is overwritten and read back. r11 tells pinrail_test_lose() where the
  // caller's part of the stack begins, and rsp changes by its own instructions.
  unsigned any_register() {
    constexpr unsigned kFew[] = {patch::kRdi, patch::kRsi, patch::kRbx, patch::kRbp, patch::kRax};
    if (below(8) != 0) return kFew[below(sizeof(kFew) / sizeof(kFew[0]))];
    for (;;) {
      const unsigned number = below(16);
      if (number != patch::kRsp && number != patch::kR11) return number;
    }
  }
  unsigned changed_register() {
    const unsigned number = any_register();
    if (number == patch::kRbp) is_frame_pointer_ = false;
    return number;
  }
  static unsigned rex(bool is_wide, unsigned reg, unsigned rm) {
    return 0x40u | (is_wide ? 8u : 0u) | reg / 8 << 2 | rm / 8;
  }
  static unsigned registers(unsigned reg, unsigned rm) { return 0xc0u | (reg & 7) << 3 | (rm & 7); }
  bool either() { return below(2) == 0; }

  void add_any() {
    switch (below(16)) {
      case 0:
      case 1:
      case 2: return add_push(any_register());
      case 3: return add_pop();
      case 4:
      case 5: return add_move();
      case 6:
      case 7:
      case 8: return add_memory_move();
      case 9: return add({0x48, 0x83, either() ? 0xecu : 0xc4u, 8 * below(14)});  // sub or add to rsp
      case 10: is_frame_pointer_ = true; return add({0x48, 0x89, 0xe5});          // mov %rsp, %rbp
      case 11: return add_call();
      case 12: return add_narrow();
      case 13: return add_stack_address();
      case 14: return add_harmless();
      default: return add({0x74u + below(2), below(24)});  // je or jne
    }
  }
  void add_push(unsigned number) { add({0x40u | number / 8, 0x50u + (number & 7)}); }
  void add_pop() {
    const unsigned number = changed_register();
    add({0x40u | number / 8, 0x58u + (number & 7)});
  }
  void add_move() {
    const unsigned from = any_register(), to = changed_register();
    add({rex(below(4) != 0, from, to), 0x89, registers(from, to)});
  }
  // A move to or from memory at rsp or rbp, sometimes outside the function's own part of the stack.
  void add_memory_move() {
    const bool by_rbp = is_frame_pointer_ && either(), is_store = either();
    const unsigned reg = is_store ? any_register() : changed_register();
    const unsigned at = (4 * below(52) - 128) & 0xff;
    add({rex(below(4) != 0, reg, 0), is_store ? 0x89u : 0x8bu});
    if (by_rbp) {
      add({0x45u | (reg & 7) << 3, at});
    } else {
      add({0x44u | (reg & 7) << 3, 0x24, at});
    }
  }
  void add_call() {
    const uintptr_t behind = address_ + bytes_.size() + patch::kJumpLength;
    const auto relative = static_cast<uint32_t>(callee_ - behind);
    add({0xe8, relative & 0xff, relative >> 8 & 0xff, relative >> 16 & 0xff, relative >> 24});
  }
  // What changes the upper half of a register, or the register as a whole.
  void add_narrow() {
    const unsigned from = any_register(), to = changed_register();
    switch (below(4)) {
      case 0: return add({rex(true, to, from), 0x63, registers(to, from)});        // movslq
      case 1: return add({rex(false, to, to), 0x31, registers(to, to)});           // xor
      case 2: return add({rex(true, 0, to), 0x83, registers(0, to), below(100)});  // add
      default: return add({0x40u | to / 8, 0xb8u + (to & 7), below(256), 0, 0, 0});
    }
  }
  void add_stack_address() {
    if (below(3) == 0) return add({0x54});  // push %rsp
    const unsigned to = changed_register();
    if (either()) return add({rex(true, patch::kRsp, to), 0x89, registers(patch::kRsp, to)});
    add({rex(true, to, 0), 0x8d, 0x44u | (to & 7) << 3, 0x24, 8 * below(10)});  // lea
  }
  void add_harmless() {
    switch (below(5)) {
      case 0: return add({0xf3, 0x0f, 0x1e, 0xfa});  // endbr64
      case 1: return add({0x90});
      case 2: return add({0x48, 0x85, 0xff});                                // test %rdi, %rdi
      case 3: return add({0x81, 0x3d, below(100), 0, 0, 0, 0, 0xba, 0, 0});  // cmpl of a word behind it
      default: return add({0x80, 0x3d, below(100), 0, 0, 0, below(2)});      // cmpb of a byte behind it
    }
  }

  std::mt19937_64 random_;
  const uintptr_t address_, callee_;
  std::vector<uint8_t> bytes_;
  bool is_frame_pointer_ = false;  // rbp is a stack address
};

// Memory for the code of many functions, with pinrail_test_lose() at its beginning.
class Functions {
 public:
  explicit Functions(size_t count) : bytes_((count + 5) * kCodeBytes) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    const char* const lose = reinterpret_cast<const char*>(&pinrail_test_lose);
    std::memcpy(memory_, lose, static_cast<size_t>(pinrail_test_lose_end - lose));
  }
  ~Functions() { munmap(memory_, bytes_); }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  uintptr_t callee() const { return reinterpret_cast<uintptr_t>(memory_); }
  // Functions begin at any place in a block of 16 bytes.
  uintptr_t address(size_t number) const { return callee() + (number + 3) * kCodeBytes + number % 16; }
  void write(size_t number, uint64_t seed) {
    const RandomCode code(seed, address(number), callee());
    std::memcpy(reinterpret_cast<void*>(address(number)),  // NOLINT(performance-no-int-to-ptr)
                code.bytes().data(), kCodeBytes - 16);
  }
  void close() { mprotect(memory_, bytes_, PROT_READ | PROT_EXEC); }

 private:
  const size_t bytes_;
  void* memory_;
};

class RandomFunctions : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Readers, RandomFunctions, testing::Bool(),
                         [](const auto& reader) { return reader.param ? "zydis" : "small"; });

TEST_P(RandomFunctions, what_is_patched_gives_the_hook_and_the_caller_what_is_theirs) {
  const Disassembler disassembler = GetParam() ? Disassembler::open() : Disassembler();
  if (GetParam() && !disassembler.is_complete()) GTEST_SKIP() << "Zydis cannot be loaded";
  const char* const chosen = std::getenv("PINRAIL_TEST_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 0) : 1;
  constexpr size_t kCount = 20000;
  Functions functions(kCount);
  for (size_t i = 0; i < kCount; ++i) functions.write(i, seed << 32 | i);
  functions.close();
  const long given[] = {0x1111222233334444, -0x1111222233334444, 0x7123456789abcdef, -3,
                        1L << 63,           0x5555666677778888,  0x3333444455556666};
  size_t patched = 0, moved = 0;
  for (size_t i = 0; i < kCount && !HasFailure(); ++i) {
    SCOPED_TRACE("PINRAIL_TEST_SEED=" + std::to_string(seed) + ", function " + std::to_string(i));
    const patch::Signature signature = {static_cast<uint8_t>(i % 4), static_cast<uint8_t>(i / 4 % 8), kSystemCall};
    Seen seen;
    patch::Patch patch;
    if (!patch::prepare(functions.address(i), signature, disassembler, record_hook, &seen, &patch).ok()) continue;
    ASSERT_TRUE(patch::activate(&patch).ok());
    expect_call_is_hooked(functions.address(i), given, signature, seen);
    ++patched;
    if (patch.entry.undo_length != 0) ++moved;
  }
  EXPECT_GT(patched, kCount / 10);
  EXPECT_GT(moved, kCount / 50);  // something had to be undone
}

}  // namespace
}  // namespace pinrail::test

#endif
