// SPDX-License-Identifier: BSD-3-Clause
// Descriptors of ours that the program closes, and numbers that are given to files of the program's.
#include "base/sync/own_file.h"

#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace pinrail {
namespace {

int make_memory() { return memfd_create("ours", MFD_CLOEXEC); }
// As rings and userfaultfds, it has the inode that all files without one share.
int make_ring() { return eventfd(0, EFD_CLOEXEC); }

// As a program that closes every descriptor and then opens files of its own.
void give_number_to(int number, int file) {
  ASSERT_EQ(dup3(file, number, O_CLOEXEC), number);
  close(file);
}

TEST(OwnFile, has_its_number_until_it_is_closed) {
  OwnFile file;
  EXPECT_FALSE(file.is_taken());
  EXPECT_EQ(file.number(), -1);
  ASSERT_TRUE(file.open(FileKind::has_inode, make_memory));
  const int number = file.number();
  EXPECT_GE(number, 0);
  file.close();
  EXPECT_FALSE(file.is_taken());
  EXPECT_LT(fcntl(number, F_GETFD), 0);
}

TEST(OwnFile, what_the_program_closes_has_no_number) {
  OwnFile file;
  ASSERT_TRUE(file.open(FileKind::has_inode, make_memory));
  close(file.number());
  EXPECT_TRUE(file.is_taken());
  EXPECT_EQ(file.number(), -1);
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
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(number, F_GETFD) < 0 && file.number() == -1 ? 0 : 1);
  int how = -1;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_EQ(file.number(), number);
  OwnFile late;
  const int opened = make_memory();
  EXPECT_FALSE(late.take(opened, FileKind::has_inode, forks));
  EXPECT_FALSE(late.is_taken());
  EXPECT_EQ(close(opened), 0) << "it is still the caller's";
}

// The child finds a number of the program's where the parent's file was.
TEST(OwnFile, a_child_closes_no_file_of_the_programs) {
  OwnFile file;
  ASSERT_TRUE(file.open(FileKind::ring, make_ring));
  const int number = file.number();
  ASSERT_NO_FATAL_FAILURE(give_number_to(number, make_ring()));
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(number, F_GETFD) >= 0 ? 0 : 1);
  int how = -1;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  close(number);
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
