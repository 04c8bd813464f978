// SPDX-License-Identifier: BSD-3-Clause
// Whatever the built-in reader knows, it reads as Zydis does: all instructions by their first three bytes.
#include <gtest/gtest.h>

#include <iomanip>
#include <sstream>

#include "base/patch/disassemble.h"
#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::patch {
namespace {

bool is_same(const Operand& known, const Operand& full) {
  if (known.kind != full.kind) return false;
  switch (known.kind) {
    case Operand::none:
    case Operand::other: return true;
    case Operand::immediate: return known.value == full.value;
    case Operand::reg: return known.number == full.number && known.bytes == full.bytes;
    case Operand::frame: return known.number == full.number && known.bytes == full.bytes && known.value == full.value;
  }
  return false;
}

bool is_same(const Instruction& known, const Instruction& full) {
  const bool leads_alike =
      known.relative_at == full.relative_at &&
      (known.relative_at == 0 || (known.relative_bytes == full.relative_bytes && known.relative == full.relative));
  return known.operation == full.operation && known.length == full.length && leads_alike &&
         known.clobbers == full.clobbers && is_same(known.to, full.to) && is_same(known.from, full.from);
}

std::string text_of(const uint8_t* code, size_t length) {
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (size_t i = 0; i < length; ++i) text << std::setw(2) << unsigned{code[i]} << ' ';
  return text.str();
}

TEST(Readers, what_the_built_in_reader_knows_it_reads_as_zydis_does) {
  const Disassembler disassembler = Disassembler::open();
  if (!disassembler.is_complete()) GTEST_SKIP() << "Zydis cannot be loaded";
  size_t read = 0;
  // The fourth byte is a plain address by rsp, or not.
  for (const uint8_t fourth : {uint8_t{0x24}, uint8_t{0xe5}}) {
    for (uint32_t first = 0; first < 1 << 24 && !HasFailure(); ++first) {
      const uint8_t code[] = {static_cast<uint8_t>(first),
                              static_cast<uint8_t>(first >> 8),
                              static_cast<uint8_t>(first >> 16),
                              fourth,
                              0x81,
                              0x22,
                              0x33,
                              0x91,
                              0x55,
                              0x66,
                              0x77,
                              0x12};
      Instruction known, full;
      if (!read_known(code, sizeof(code), &known)) continue;
      ++read;
      ASSERT_TRUE(disassembler.read(code, sizeof(code), &full)) << text_of(code, known.length);
      ASSERT_TRUE(is_same(known, full)) << text_of(code, known.length);
      ASSERT_FALSE(read_known(code, known.length - size_t{1}, &full)) << "cut off: " << text_of(code, known.length);
    }
  }
  EXPECT_GT(read, 1000000u);
}

}  // namespace
}  // namespace pinrail::patch

#endif
