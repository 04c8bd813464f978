// SPDX-License-Identifier: BSD-3-Clause
// files_test.cc - files that are neither read nor loaded, for others may change them (files/X2), files that dlopen must
// not see, and descriptors of ours.
#include "base/core/files.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/sync/own_file.h"
#include "test/support/cases.h"
#include "test/unit/base/fixtures.h"

namespace pinrail {
namespace {

constexpr uid_t kOther = 12345;

TEST(Trust, only_root_the_user_and_the_owner_of_pinrail_may_change_a_file) {
  const trust::Owners owners{1000, 2000};
  const auto why = [&](uid_t user, gid_t group, mode_t mode) {
    struct stat about {};
    about.st_uid = user;
    about.st_gid = group;
    about.st_mode = S_IFREG | mode;
    return trust::why_untrusted(about, owners);
  };
  for (const uid_t user : {0u, 1000u, 2000u}) EXPECT_EQ(why(user, 50, 0755), "");
  EXPECT_EQ(why(3000, 0, 0755), "belongs to user 3000");
  EXPECT_EQ(why(0, 0, 0757), "may be written by all users (chmod go-w)");
  EXPECT_EQ(why(0, 50, 0775), "may be written by group 50 (chmod go-w)");
  EXPECT_EQ(why(0, 0, 0775), "") << "root's own";
}

// These change owners and modes.
#define NEEDS_ROOT \
  if (geteuid() != 0) GTEST_SKIP() << "only root has to care"

class TrustOfComponents : public loader::LoaderTest {
 protected:
  void expect_refused(const std::string& why) {
    EXPECT_TRUE(discover().ok());
    EXPECT_EQ(said(why), true) << said_;
    loader_->open("mpool").ignore();
    EXPECT_EQ(opened(), "");
  }
};

TEST_F(TrustOfComponents, a_folder_that_others_may_write_is_passed_over_with_one_message) {
  NEEDS_ROOT;
  write("mpool_tiny", loader::Image());
  ASSERT_EQ(chmod(folder_.path().c_str(), 01777), 0);
  expect_refused("no component is loaded from " + folder_.path() + ": it may be written by all users");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(chown(folder_.path().c_str(), kOther, 0), 0);
  expect_refused("belongs to user 12345");
  ASSERT_EQ(chown(folder_.path().c_str(), 0, 0), 0);
  EXPECT_TRUE(discover().ok());
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "tiny");
}

TEST_F(TrustOfComponents, a_file_that_others_may_write_is_skipped_also_behind_a_link) {
  NEEDS_ROOT;
  const std::string file = write("mpool_tiny", loader::Image());
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  expect_refused("skipped " + file + ": it may be written by all users");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  ASSERT_EQ(chown(file.c_str(), kOther, 0), 0);
  expect_refused("belongs to user 12345");
  const test::TempFolder elsewhere;
  const std::string real = elsewhere.write("mpool_tiny.so", loader::Image().bytes());
  ASSERT_EQ(chmod(elsewhere.path().c_str(), 0777), 0);
  ASSERT_EQ(unlink(file.c_str()), 0);
  ASSERT_EQ(symlink(real.c_str(), file.c_str()), 0);
  expect_refused("is in " + elsewhere.path() + "/, which may be written by all users");
}

constexpr uid_t kUser = 54321;

// The folder is the one of the default path, or named by a setting, in a process of a user.
class TrustOfUsers : public TrustOfComponents {
 protected:
  TrustOfUsers() {
    write("mpool_tiny", loader::Image());
    sources_.defaults.swap(sources_.settings);
  }
  void SetUp() override {
    NEEDS_ROOT;
    const test::ChildAnswer answer = test::answer_of([] {
      const bool is_user = setresuid(kUser, kUser, kUser) == 0;
      return test::ChildAnswer{is_user && access(std::filesystem::temp_directory_path().c_str(), X_OK) == 0};
    });
    if (answer[0] != 1) GTEST_SKIP() << "no other user reaches this folder of temporary files";
  }

  // "tiny", or "" if it was passed over.
  std::string opened_by_user() {
    const test::ChildAnswer answer = test::answer_of([this] {
      if (setresuid(kUser, kUser, kUser) != 0) return test::ChildAnswer{-1};
      const bool is_well = discover().ok() && open().ok();
      return test::ChildAnswer{is_well, opened() == "tiny"};
    });
    EXPECT_EQ(answer[0], 1);
    return answer[1] == 1 ? "tiny" : "";
  }
};

TEST_F(TrustOfUsers, what_another_user_put_into_the_default_folder_is_not_loaded) {
  const std::string file = folder_.path("mpool_tiny.so");
  const auto give = [](const std::string& path, uid_t user, mode_t mode) {
    ASSERT_EQ(chown(path.c_str(), user, user), 0);
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  };
  give(folder_.path(), kUser, 0775);
  give(file, kUser, 0664);
  EXPECT_EQ(opened_by_user(), "tiny") << "a user's group is his choice";
  give(file, kOther, 0644);
  EXPECT_EQ(opened_by_user(), "");
  give(file, kUser, 0644);
  give(folder_.path(), kOther, 0755);
  EXPECT_EQ(opened_by_user(), "");
  give(folder_.path(), 0, 01777);
  EXPECT_EQ(opened_by_user(), "");
  sources_.defaults.swap(sources_.settings);
  EXPECT_EQ(opened_by_user(), "tiny") << "a setting names the folder";
}

TEST_F(TrustOfUsers, a_default_folder_is_not_found_by_the_link_of_another_user) {
  const test::TempFolder elsewhere;
  const std::string link = elsewhere.path("pinrail");
  ASSERT_EQ(chmod(elsewhere.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(symlink(folder_.path().c_str(), link.c_str()), 0);
  sources_.defaults[0].value = link;
  EXPECT_EQ(opened_by_user(), "tiny");
  ASSERT_EQ(lchown(link.c_str(), kOther, 0), 0);
  EXPECT_EQ(opened_by_user(), "");
  const std::string with_slash = link + "/";
  sources_.defaults[0].value = with_slash;
  EXPECT_EQ(opened_by_user(), "");
}

class TrustOfParameters : public param::ParamTest {
 protected:
  Status read_anew() const { return param::Registry().read_sources(sources_); }
};

TEST_F(TrustOfParameters, a_file_that_others_may_write_sets_nothing) {
  NEEDS_ROOT;
  folder_.write("user.conf", "mpool_test_x = 1\n");
  folder_.write("site.conf", "");
  ASSERT_EQ(chmod(sources_.user_file.c_str(), 0666), 0);
  std::string said = test::said_anew_by([this] { EXPECT_TRUE(read_anew().ok()); });
  EXPECT_TRUE(test::has(said, sources_.user_file) && test::has(said, "it may be written by all users")) << said;
  ASSERT_EQ(chmod(sources_.user_file.c_str(), 0644), 0);
  EXPECT_EQ(test::said_anew_by([this] { EXPECT_TRUE(read_anew().ok()); }), "");
  ASSERT_EQ(chown(sources_.site_file.c_str(), kOther, 0), 0);
  said = test::said_anew_by([this] { EXPECT_TRUE(read_anew().is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(test::has(said, sources_.site_file) && test::has(said, "belongs to user 12345")) << said;
}

}  // namespace
}  // namespace pinrail

namespace pinrail::loader {
namespace {

// Files that dlopen must not see.

class CheckFile : public testing::Test {
 protected:
  // Why the bytes are refused; "" if they are not.
  std::string check(const std::string& bytes) {
    std::string why;
    const Status status = check_file(folder_.write("mpool_tiny.so", bytes), trust::Named::by_user, &why);
    EXPECT_EQ(status.ok(), why.empty());
    return why;
  }

  test::TempFolder folder_;
};

TEST_F(CheckFile, what_is_no_file_is_refused) {
  ASSERT_EQ(mkdir(folder_.path("x.so").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(folder_.path("pipe.so").c_str(), 0600), 0);
  for (const auto& [name, words] : {std::pair{"none.so", "cannot be read: No such file or directory"},
                                    std::pair{"x.so", "is a folder"}, std::pair{"pipe.so", "is not a regular file"}}) {
    std::string why;
    EXPECT_TRUE(check_file(folder_.path(name), trust::Named::by_user, &why).is(PINRAIL_ERR_ERROR));
    EXPECT_EQ(why, words);
  }
}

TEST_F(CheckFile, what_is_no_elf_file_is_refused) {
  EXPECT_EQ(check(""), "is not an ELF file");
  EXPECT_EQ(check("\x7f"
                  "ELF"),
            "is not an ELF file");
  EXPECT_EQ(check("#!/bin/sh\necho this is no shared object at all\n"), "is not an ELF file");
}

TEST_F(CheckFile, headers_that_are_of_another_kind_reach_behind_the_file_or_make_no_sense_are_refused) {
  const struct {
    void (*change)(ElfW(Ehdr) * header);
    const char* why;
  } headers[] = {
      {[](auto* it) { it->e_ident[EI_CLASS] = ELFCLASSNONE; }, "is of another word size than this process"},
      {[](auto* it) { it->e_ident[EI_DATA] ^= 3; }, "is of another byte order than this machine"},
      {[](auto* it) { it->e_machine = EM_68K; }, "is for machine 4, this is "},
      {[](auto* it) { it->e_type = ET_REL; }, "is an ELF file, but not a shared object"},
      {[](auto* it) { it->e_phentsize = 1; }, "has segment headers of another size"},
      {[](auto* it) { it->e_phnum = 0; }, "has no segments"},
      {[](auto* it) { it->e_phoff = ~uint64_t{0} - 7; }, "is cut off: its segment headers are not whole"},
      {[](auto* it) { it->e_phnum = 0xfff0; }, "has more segments than a linker makes"},
  };
  for (const auto& row : headers) {
    std::string bytes = Image().bytes();
    row.change(reinterpret_cast<ElfW(Ehdr)*>(bytes.data()));
    EXPECT_EQ(check(bytes).rfind(row.why, 0), 0U) << row.why;
  }
  const struct {
    uint32_t type;
    void (*change)(ElfW(Phdr) * segment);
    const char* why;
  } segments[] = {
      {PT_LOAD, [](auto* it) { it->p_offset = ~uint64_t{0} - 7; }, "is cut off: a segment reaches behind its end"},
      {PT_LOAD, [](auto* it) { it->p_filesz = ~uint64_t{0} - 7; }, "is cut off: a segment reaches behind its end"},
      {PT_LOAD, [](auto* it) { it->p_memsz = it->p_filesz - 1; }, "has a segment larger than its memory"},
      {PT_DYNAMIC, [](auto* it) { it->p_vaddr = 1U << 30; }, "has a dynamic section that is not loaded"},
      {PT_DYNAMIC, [](auto* it) { it->p_type = PT_NULL; }, "has no dynamic section"},
  };
  for (const auto& row : segments) {
    std::string bytes = Image().bytes();
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
    auto* segment = reinterpret_cast<ElfW(Phdr)*>(bytes.data() + header->e_phoff);
    while (segment->p_type != row.type) ++segment;
    row.change(segment);
    EXPECT_EQ(check(bytes), row.why);
  }
}

TEST_F(CheckFile, a_file_is_refused_at_every_length_that_is_short_of_its_segments) {
  const std::string bytes = Image().bytes();
  const size_t end = Image().mapped_end();
  std::vector<size_t> lengths = {end - 1, end, end + 1, bytes.size()};
  for (size_t length = 0; length < end; length += 512) lengths.push_back(length);
  for (const size_t length : lengths) {
    const std::string why = check(bytes.substr(0, length));
    EXPECT_EQ(why.empty(), length >= end) << length << " bytes of " << bytes.size() << ": " << why;
  }
}

TEST_F(CheckFile, no_bytes_whatever_make_it_fall) {
  const std::string bytes = Image().bytes();
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

namespace pinrail {
namespace {

// Descriptors of ours that the program closes, and numbers that are given to files of the program's.

int make_memory() { return memfd_create("ours", MFD_CLOEXEC); }
// As rings and userfaultfds, it has the inode that all files without one share.
int make_ring() { return eventfd(0, EFD_CLOEXEC); }

// As a program that closes every descriptor and then opens files of its own.
void give_number_to(int number, int file) {
  ASSERT_EQ(dup3(file, number, O_CLOEXEC), number);
  close(file);
}

// own_file/D3.
TEST(OwnFile, a_number_that_names_a_file_of_the_programs_is_neither_returned_nor_closed) {
  for (const FileKind kind : {FileKind::has_inode, FileKind::ring, FileKind::userfaultfd}) {
    const auto make = kind == FileKind::has_inode ? make_memory : make_ring;
    OwnFile file;
    ASSERT_TRUE(file.open(kind, make));
    const int number = file.number();
    ASSERT_NO_FATAL_FAILURE(give_number_to(number, make()));
    EXPECT_EQ(file.number(), -1);
    file.close();
    EXPECT_GE(fcntl(number, F_GETFD), 0);
    close(number);
  }
}

TEST(OwnFile, a_number_that_names_another_file_of_ours_is_that_ones) {
  OwnFile file, next;
  ASSERT_TRUE(file.open(FileKind::ring, make_ring));
  const int number = file.number();
  close(number);
  ASSERT_TRUE(next.open(FileKind::ring, [=] {
    const int other = make_ring();
    if (other == number) return other;
    const int moved = dup3(other, number, O_CLOEXEC);
    close(other);
    return moved;
  }));
  EXPECT_EQ(file.number(), -1);
  EXPECT_EQ(next.number(), number);
  file.close();
  EXPECT_EQ(next.number(), number);
}

// own_file/D1 and own_file/D2.
TEST(OwnFile, a_child_has_none_and_a_fork_meanwhile_is_noticed) {
  OwnFile file;
  const uint64_t forks = own_file::count_forks();
  ASSERT_TRUE(file.take(make_memory(), FileKind::has_inode, forks));
  const int number = file.number();
  test::expect_success_in_child([&] { return fcntl(number, F_GETFD) < 0 && file.number() == -1 ? 0 : 1; });
  EXPECT_EQ(file.number(), number);
  OwnFile late;
  const int opened = make_memory();
  EXPECT_FALSE(late.take(opened, FileKind::has_inode, forks));
  EXPECT_FALSE(late.is_taken());
  EXPECT_EQ(close(opened), 0) << "it is still the caller's";
}

// fork() is no cancellation point: a thread that is to be cancelled has a child that goes on.
TEST(OwnFile, a_child_goes_on_although_its_thread_is_to_be_cancelled) {
  OwnFile file;
  ASSERT_TRUE(file.open(FileKind::has_inode, make_memory));
  int status = -1;
  const auto forks = [&status] {
    pthread_cancel(pthread_self());
    const pid_t child = fork();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    if (child == 0) _exit(7);
    waitpid(child, &status, 0);
  };
  std::thread(forks).join();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

// The child finds a number of the program's where the parent's file was.
TEST(OwnFile, a_child_closes_no_file_of_the_programs) {
  OwnFile file;
  ASSERT_TRUE(file.open(FileKind::ring, make_ring));
  const int number = file.number();
  ASSERT_NO_FATAL_FAILURE(give_number_to(number, make_ring()));
  test::expect_success_in_child([=] { return fcntl(number, F_GETFD) >= 0 ? 0 : 1; });
  close(number);
}

// A daemon may have closed these, and what a program writes to its standard error, or reads from its standard input,
// would go to a file of ours or come from it.
TEST(OwnFile, none_gets_the_number_of_a_standard_stream) {
  test::expect_success_in_child([] {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
    OwnFile file;
    return file.open(FileKind::ring, make_ring) && file.number() > STDERR_FILENO && fcntl(0, F_GETFD) < 0 ? 0 : 1;
  });
}

TEST(OwnFile, what_cannot_be_identified_is_opened_once_and_the_reason_is_not_a_fork) {
  OwnFile file;
  int opened = 0;
  EXPECT_FALSE(file.open(FileKind::ring, [&opened] {
    ++opened;
    return 1 << 20;  // no such descriptor
  }));
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(opened, 1);
}

TEST(OwnFile, released_it_stays_open) {
  OwnFile file;
  ASSERT_TRUE(file.open(FileKind::ring, make_ring));
  const int number = file.number();
  EXPECT_EQ(file.release(), number);
  EXPECT_FALSE(file.is_taken());
  EXPECT_EQ(close(number), 0);
}

}  // namespace
}  // namespace pinrail
