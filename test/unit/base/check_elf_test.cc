// SPDX-License-Identifier: BSD-3-Clause
// check_elf_test.cc - files that dlopen must not see.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "test/support/child.h"
#include "test/unit/base/loader_fixture.h"

namespace pinrail::loader {
namespace {

class CheckElf : public testing::Test {
 protected:
  // Why the bytes are refused; "" if they are not.
  std::string check(const std::string& bytes) {
    std::string why;
    const Status status = check_elf(folder_.write("mpool_tiny.so", bytes), &why);
    EXPECT_EQ(status.ok(), why.empty());
    return why;
  }

  std::string whole() const { return Image().bytes(); }

  // A copy of the file with one field of its header, or of a segment's header, changed.
  template <typename Change>
  std::string with_header(Change change) const {
    std::string bytes = whole();
    change(reinterpret_cast<ElfW(Ehdr)*>(bytes.data()));
    return bytes;
  }
  template <typename Change>
  std::string with_segment(uint32_t type, Change change) const {
    std::string bytes = whole();
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
    auto* segments = reinterpret_cast<ElfW(Phdr)*>(bytes.data() + header->e_phoff);
    auto* found = std::find_if(segments, segments + header->e_phnum, [type](auto& it) { return it.p_type == type; });
    EXPECT_NE(found, segments + header->e_phnum);
    change(found);
    return bytes;
  }

  test::TempFolder folder_;
};

TEST_F(CheckElf, a_whole_component_passes) { EXPECT_EQ(check(whole()), ""); }

TEST_F(CheckElf, what_is_no_file_is_refused) {
  std::string why;
  EXPECT_TRUE(check_elf(folder_.path("none.so"), &why).is(PINRAIL_ERR_ERROR));
  EXPECT_EQ(why, "cannot be read: No such file or directory");
  ASSERT_EQ(mkdir(folder_.path("x.so").c_str(), 0700), 0);
  EXPECT_TRUE(check_elf(folder_.path("x.so"), &why).is(PINRAIL_ERR_ERROR));
  EXPECT_EQ(why, "is a folder");
  ASSERT_EQ(mkfifo(folder_.path("pipe.so").c_str(), 0600), 0);
  EXPECT_TRUE(check_elf(folder_.path("pipe.so"), &why).is(PINRAIL_ERR_ERROR));
  EXPECT_EQ(why, "is not a regular file");
}

TEST_F(CheckElf, what_is_no_elf_file_is_refused) {
  EXPECT_EQ(check(""), "is not an ELF file");
  EXPECT_EQ(check("\x7f"
                  "ELF"),
            "is not an ELF file");
  EXPECT_EQ(check("#!/bin/sh\necho this is no shared object at all\n"), "is not an ELF file");
}

TEST_F(CheckElf, another_kind_of_elf_file_is_refused) {
  EXPECT_EQ(check(with_header([](auto* it) { it->e_ident[EI_CLASS] = ELFCLASSNONE; })),
            "is of another word size than this process");
  EXPECT_EQ(check(with_header([](auto* it) { it->e_ident[EI_DATA] ^= 3; })),
            "is of another byte order than this machine");
  EXPECT_TRUE(test::has(check(with_header([](auto* it) { it->e_machine = EM_68K; })), "is for machine 4, this is "));
  EXPECT_EQ(check(with_header([](auto* it) { it->e_type = ET_REL; })), "is an ELF file, but not a shared object");
  EXPECT_EQ(check(with_header([](auto* it) { it->e_phentsize = 1; })), "has segment headers of another size");
  EXPECT_EQ(check(with_header([](auto* it) { it->e_phnum = 0; })), "has no segments");
}

TEST_F(CheckElf, headers_that_reach_behind_the_file_are_refused) {
  EXPECT_EQ(check(with_header([](auto* it) { it->e_phoff = ~uint64_t{0} - 7; })),
            "is cut off: its segment headers are not whole");
  EXPECT_EQ(check(with_header([](auto* it) { it->e_phnum = 0xfff0; })), "has more segments than a linker makes");
  EXPECT_EQ(check(with_segment(PT_LOAD, [](auto* it) { it->p_offset = ~uint64_t{0} - 7; })),
            "is cut off: a segment reaches behind its end");
  EXPECT_EQ(check(with_segment(PT_LOAD, [](auto* it) { it->p_filesz = ~uint64_t{0} - 7; })),
            "is cut off: a segment reaches behind its end");
}

TEST_F(CheckElf, segments_that_make_no_sense_are_refused) {
  EXPECT_EQ(check(with_segment(PT_LOAD, [](auto* it) { it->p_memsz = it->p_filesz - 1; })),
            "has a segment larger than its memory");
  EXPECT_EQ(check(with_segment(PT_DYNAMIC, [](auto* it) { it->p_vaddr = 1U << 30; })),
            "has a dynamic section that is not loaded");
  EXPECT_EQ(check(with_segment(PT_DYNAMIC, [](auto* it) { it->p_type = PT_NULL; })), "has no dynamic section");
}

TEST_F(CheckElf, a_file_is_refused_at_every_length_that_is_short_of_its_segments) {
  const std::string bytes = whole();
  const size_t end = Image().mapped_end();
  std::vector<size_t> lengths = {end - 1, end, end + 1, bytes.size()};
  for (size_t length = 0; length < end; length += 512) lengths.push_back(length);
  for (const size_t length : lengths) {
    const std::string why = check(bytes.substr(0, length));
    EXPECT_EQ(why.empty(), length >= end) << length << " bytes of " << bytes.size() << ": " << why;
  }
}

TEST_F(CheckElf, without_the_check_dlopen_of_a_short_file_ends_the_process) {
  const size_t end = Image().mapped_end();
  size_t deaths = 0;
  for (size_t length = 4096; length < end; length += 4096) {
    const std::string path = folder_.write("short.so", whole().substr(0, length));
    test::ChildAnswer answer{};
    const bool lived = test::in_child(
        [&path] {
          close(STDERR_FILENO);  // sanitizers tell of deaths at length
          return test::ChildAnswer{dlopen(path.c_str(), RTLD_NOW) != nullptr};
        },
        &answer);
    if (!lived) ++deaths;
  }
  EXPECT_GT(deaths, 0U) << "this machine does not need the check, or the test does not show it";
}

TEST_F(CheckElf, no_bytes_whatever_make_it_fall) {
  const std::string bytes = whole();
  const size_t headers = sizeof(ElfW(Ehdr)) + 12 * sizeof(ElfW(Phdr));
  // A small generator of its own: the same bytes in every run.
  uint32_t state = 4711;
  const auto next = [&state] { return (state = state * 1664525 + 1013904223) >> 8; };
  size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string changed = bytes.substr(0, round % 2 == 0 ? bytes.size() : next() % bytes.size());
    for (uint32_t i = 0; i <= next() % 4 && !changed.empty(); ++i) {
      changed[next() % std::min(headers, changed.size())] = static_cast<char>(next());
    }
    if (!check(changed).empty()) ++refused;
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace pinrail::loader
