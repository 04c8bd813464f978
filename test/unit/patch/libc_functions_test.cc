// SPDX-License-Identifier: BSD-3-Clause
// Each function of libc_functions.h is patched, as a copy: its hook gets the arguments, and its caller gets back what
// belongs to it.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "test/unit/patch/libc_functions.h"
#include "test/unit/patch/patched_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::test {
namespace {

using patch::Disassembler;
using patch::Signature;

constexpr size_t kPage = 4096;

const std::map<std::string, Signature>& signatures() {
  static const std::map<std::string, Signature> known = {
      {"munmap", {2, 0, SYS_munmap}},
      {"munmap of the loader", {2, 0, SYS_munmap}},
      {"mmap", {6, 4 | 8 | 16, SYS_mmap}},
      {"mremap", {5, 8, SYS_mremap}},
      {"madvise", {3, 4, SYS_madvise}},
      {"process_madvise", {5, 1 | 8 | 16, 440}},
      {"remap_file_pages", {5, 4 | 16, SYS_remap_file_pages}},
      {"brk", {1, 0, SYS_brk}},
      {"shmdt", {1, 0, SYS_shmdt}},
      {"shmat", {3, 1 | 4, SYS_shmat}},
      {"fallocate", {4, 1 | 2, SYS_fallocate}},
      {"ftruncate", {2, 1, SYS_ftruncate}},
      {"truncate", {2, 0, SYS_truncate}},
      {"mprotect", {3, 4, SYS_mprotect}},
      {"syscall", {6, 0, -1}},
  };
  return known;
}

// Their system call comes before the first instruction with five bytes that lie in one block.
bool is_refused(const std::string& name) {
  return name == "musl 1.2.2: remap_file_pages" || name == "musl 1.2.3: remap_file_pages" ||
         name == "musl 1.2.2: fallocate" || name == "musl 1.2.3: fallocate";
}

std::string name_of(const LibcFunction& function) { return std::string(function.libc) + ": " + function.name; }

// The bytes at the same place in a page, with int3 behind them. What they call before the jump loses what it may.
class Copy {
 public:
  Copy(const LibcFunction& function, const Disassembler& disassembler) {
    pages_ = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED) std::abort();
    auto* const bytes = static_cast<uint8_t*>(pages_);
    std::memset(bytes, 0xcc, 3 * kPage);
    const char* const lose = reinterpret_cast<const char*>(&pinrail_test_lose);
    std::memcpy(bytes, lose, static_cast<size_t>(pinrail_test_lose_end - lose));
    code_ = bytes + kPage + function.in_page;
    for (size_t i = 0; i < kLibcBytes; ++i) {
      code_[i] = static_cast<uint8_t>(std::stoul(std::string(function.bytes + 2 * i, 2), nullptr, 16));
    }
    lead_calls_to(bytes, disassembler);
    mprotect(pages_, 3 * kPage, PROT_READ | PROT_EXEC);
  }
  ~Copy() { munmap(pages_, 3 * kPage); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(code_); }

 private:
  void lead_calls_to(const uint8_t* target, const Disassembler& disassembler) {
    patch::Instruction instruction;
    for (size_t at = 0; disassembler.read(code_ + at, kLibcBytes - at, &instruction); at += instruction.length) {
      if (instruction.operation != patch::Operation::call) continue;
      const auto relative = static_cast<int32_t>(target - (code_ + at + instruction.length));
      std::memcpy(code_ + at + instruction.relative_at, &relative, sizeof(relative));
    }
  }

  void* pages_;
  uint8_t* code_;
};

class LibcFunctions : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Readers, LibcFunctions, testing::Bool(),
                         [](const auto& reader) { return reader.param ? "zydis" : "small"; });

TEST_P(LibcFunctions, all_of_all_are_patched_and_the_hook_and_the_caller_get_what_is_theirs) {
  const Disassembler disassembler = GetParam() ? Disassembler::open() : Disassembler();
  if (GetParam() && !disassembler.is_complete()) GTEST_SKIP() << "Zydis cannot be loaded";
  size_t patched = 0;
  for (const LibcFunction& function : kLibcFunctions) {
    SCOPED_TRACE(name_of(function));
    const Signature& signature = signatures().at(function.name);
    const Copy copy(function, disassembler);
    Seen seen;
    patch::Patch patch;
    const Status prepared = patch::prepare(copy.address(), signature, disassembler, record_hook, &seen, &patch);
    if (is_refused(name_of(function))) {
      EXPECT_TRUE(prepared.is(PINRAIL_ERR_NOT_SUPPORTED));
      continue;
    }
    EXPECT_TRUE(prepared.ok());
    if (!prepared.ok()) continue;
    ASSERT_TRUE(patch::activate(&patch).ok());
    EXPECT_FALSE(patch.is_chained());
    const long given[] = {0x1111222233334444, -0x1111222233334444, 0x7123456789abcdef, -3,
                          1L << 63,           0x5555666677778888,  0x3333444455556666};
    expect_call_is_hooked(copy.address(), given, signature, seen);
    ++patched;
  }
  EXPECT_EQ(patched + 4, sizeof(kLibcFunctions) / sizeof(kLibcFunctions[0]));
}

// A second copy of Pinrail lays its jump over ours, and calls on.
TEST_P(LibcFunctions, each_can_be_patched_over) {
  const Disassembler disassembler = GetParam() ? Disassembler::open() : Disassembler();
  if (GetParam() && !disassembler.is_complete()) GTEST_SKIP() << "Zydis cannot be loaded";
  for (const LibcFunction& function : kLibcFunctions) {
    SCOPED_TRACE(name_of(function));
    if (is_refused(name_of(function))) continue;
    const Signature& signature = signatures().at(function.name);
    const Copy copy(function, disassembler);
    Seen first, second;
    patch::Patch patch, over;
    ASSERT_TRUE(patch::prepare(copy.address(), signature, disassembler, record_hook, &first, &patch).ok());
    ASSERT_TRUE(patch::activate(&patch).ok());
    ASSERT_TRUE(patch::prepare(copy.address(), signature, disassembler, record_hook, &second, &over).ok());
    ASSERT_TRUE(patch::activate(&over).ok());
    EXPECT_TRUE(over.is_chained());
    const long given[] = {1, 2, 3, 4, 5, 6, 7};
    long kept[6] = {};
    EXPECT_EQ(pinrail_test_call(copy.address(), given, kept), -7);
    EXPECT_EQ(second.calls, 1);
    EXPECT_EQ(pinrail_test_call(over.island.original, given, kept), -7);
    EXPECT_EQ(first.calls, 1);
    expect_arguments(first, given, signature);
  }
}

}  // namespace
}  // namespace pinrail::test

#endif
