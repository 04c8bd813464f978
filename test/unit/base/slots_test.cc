// SPDX-License-Identifier: BSD-3-Clause
// Validity slots: a word that dies stays dead, other processes see it, and crashes leave nothing.
#include "base/slots/slots.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/slots/segment.h"
#include "test/support/child.h"

namespace pinrail::test {
namespace {

using slots::Exporter;
using slots::Importer;
using slots::Process;

Process self() {
  Process process;
  EXPECT_TRUE(slots::this_process(&process).ok());
  return process;
}

class Slots : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(exporter_.create(process_, 8).ok()); }
  Status open(Importer* importer) const {
    return importer->open(process_.user, process_.pid, process_.start, exporter_.segment());
  }
  const Process process_ = self();
  Exporter exporter_;
};

TEST_F(Slots, an_importer_sees_the_death_of_the_one_slot_and_of_no_other) {
  uint32_t first = 0, second = 0;
  uint64_t first_life = 0, second_life = 0;
  ASSERT_TRUE(exporter_.take(&first, &first_life).ok());
  ASSERT_TRUE(exporter_.take(&second, &second_life).ok());
  Importer importer;
  ASSERT_TRUE(open(&importer).ok());
  const uint64_t deaths = importer.deaths()->load();
  EXPECT_TRUE(slots::is_alive(importer.word(first), first_life));
  exporter_.kill_hook(first);
  EXPECT_FALSE(slots::is_alive(importer.word(first), first_life));
  EXPECT_TRUE(slots::is_alive(importer.word(second), second_life));
  EXPECT_EQ(importer.deaths()->load(), deaths + 1);
}

TEST_F(Slots, a_slot_that_is_taken_again_is_another_life) {
  uint32_t slot = 0, again = 0;
  uint64_t life = 0, new_life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  exporter_.give_back(slot);
  ASSERT_TRUE(exporter_.take(&again, &new_life).ok());
  EXPECT_EQ(again, slot);
  EXPECT_NE(new_life, life);
  EXPECT_FALSE(slots::is_alive(exporter_.word(slot), life));
  EXPECT_FALSE(slots::enter(exporter_.word(slot), life));
}

TEST_F(Slots, importers_are_counted_also_when_they_leave_after_the_death) {
  uint32_t slot = 0;
  uint64_t life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  exporter_.kill_hook(slot);
  EXPECT_FALSE(slots::enter(exporter_.word(slot), life)) << "nobody new";
  EXPECT_EQ(exporter_.importers_hook(slot), 2u);
  slots::leave(exporter_.word(slot), life);
  slots::leave(exporter_.word(slot), life);
  slots::leave(exporter_.word(slot), life);  // one too many does no harm
  EXPECT_EQ(exporter_.importers_hook(slot), 0u);
}

TEST_F(Slots, a_slot_that_a_crashed_importer_holds_is_used_last_and_its_leaving_harms_nobody) {
  uint32_t slot = 0, other = 0;
  uint64_t life = 0, other_life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  exporter_.give_back(slot);
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(exporter_.take(&other, &other_life).ok());
    EXPECT_NE(other, slot);
  }
  ASSERT_TRUE(exporter_.take(&other, &other_life).ok());
  EXPECT_EQ(other, slot);
  ASSERT_TRUE(slots::enter(exporter_.word(slot), other_life));
  slots::leave(exporter_.word(slot), life);
  EXPECT_EQ(exporter_.importers_hook(slot), 1u);
  EXPECT_TRUE(exporter_.take(&other, &other_life).is(PINRAIL_ERR_OUT_OF_RESOURCE));
}

TEST_F(Slots, the_file_is_the_users_alone_and_goes_with_the_exporter) {
  char path[96];
  slots::name_segment(path, sizeof(path), process_.user, process_.pid, process_.start, exporter_.segment());
  struct stat about {};
  ASSERT_EQ(stat(path, &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  {
    Exporter other;
    ASSERT_TRUE(other.create(process_, 4).ok());
    slots::name_segment(path, sizeof(path), process_.user, process_.pid, process_.start, other.segment());
    EXPECT_EQ(stat(path, &about), 0);
  }
  EXPECT_NE(stat(path, &about), 0);
}

TEST_F(Slots, another_start_or_another_segment_is_not_found) {
  Importer importer;
  EXPECT_TRUE(
      importer.open(process_.user, process_.pid, process_.start + 1, exporter_.segment()).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(
      importer.open(process_.user, process_.pid, process_.start, exporter_.segment() + 2).is(PINRAIL_ERR_NOT_FOUND));
}

TEST_F(Slots, a_file_that_others_may_write_is_refused) {
  char path[96];
  slots::name_segment(path, sizeof(path), process_.user, process_.pid, process_.start, exporter_.segment());
  ASSERT_EQ(chmod(path, 0666), 0);
  Importer importer;
  EXPECT_TRUE(open(&importer).is(PINRAIL_ERR_PERM));
}

TEST_F(Slots, what_is_disowned_is_not_written_and_stays) {
  uint32_t slot = 0, other_slot = 0;
  uint64_t life = 0, other_life = 0;
  auto other = std::make_unique<Exporter>();
  ASSERT_TRUE(other->create(process_, 4).ok());
  ASSERT_TRUE(other->take(&slot, &life).ok());
  ASSERT_TRUE(other->take(&other_slot, &other_life).ok());
  Importer importer;
  ASSERT_TRUE(importer.open(process_.user, process_.pid, process_.start, other->segment()).ok());
  other->disown();
  const uint64_t deaths = importer.deaths()->load();
  other->kill_hook(slot);
  other->give_back(slot);
  EXPECT_TRUE(slots::is_alive(other->word(slot), life)) << "it may still be read";
  char path[96];
  slots::name_segment(path, sizeof(path), process_.user, process_.pid, process_.start, other->segment());
  other.reset();
  EXPECT_TRUE(slots::is_alive(importer.word(slot), life));
  EXPECT_TRUE(slots::is_alive(importer.word(other_slot), other_life));
  EXPECT_EQ(importer.deaths()->load(), deaths);
  EXPECT_EQ(unlink(path), 0);
}

TEST_F(Slots, an_orderly_end_kills_what_was_exported) {
  uint32_t slot = 0;
  uint64_t life = 0;
  auto other = std::make_unique<Exporter>();
  ASSERT_TRUE(other->create(process_, 4).ok());
  ASSERT_TRUE(other->take(&slot, &life).ok());
  Importer importer;
  ASSERT_TRUE(importer.open(process_.user, process_.pid, process_.start, other->segment()).ok());
  other.reset();
  EXPECT_FALSE(slots::is_alive(importer.word(slot), life));
}

TEST_F(Slots, what_a_crash_left_is_removed_and_what_lives_is_not) {
  ChildAnswer answer{};
  ASSERT_TRUE(in_child(
      [] {
        auto* lost = new Exporter;  // never destroyed, as in a crash
        const Process own = self();
        const bool made = lost->create(own, 4).ok();
        return ChildAnswer{made ? 1 : 0, own.pid, static_cast<int64_t>(own.start),
                           static_cast<int64_t>(lost->segment())};
      },
      &answer));
  ASSERT_EQ(answer[0], 1);
  EXPECT_FALSE(slots::is_alive(static_cast<uint32_t>(answer[1]), static_cast<uint64_t>(answer[2])));
  slots::remove_stale(process_.user);  // any process that makes a pool may do it first
  char path[96];
  struct stat about {};
  slots::name_segment(path, sizeof(path), process_.user, static_cast<uint32_t>(answer[1]),
                      static_cast<uint64_t>(answer[2]), static_cast<uint64_t>(answer[3]));
  EXPECT_NE(stat(path, &about), 0);
  Importer importer;
  EXPECT_TRUE(open(&importer).ok()) << "that of a process that lives is still there";
}

// In a child that ends without a word, as in a crash: opens the segment, sits down, and enters those slots.
bool crash_in(const Process& of, const Exporter& exporter, const std::vector<std::pair<uint32_t, uint64_t>>& entered) {
  ChildAnswer answer{};
  const bool answered = in_child(
      [&] {
        auto* importer = new Importer;  // never destroyed
        bool well = importer->open(of.user, of.pid, of.start, exporter.segment()).ok();
        if (well) importer->sit(self());
        for (const auto& [slot, life] : entered) well = well && importer->enter(slot, life);
        return ChildAnswer{well ? 1 : 0};
      },
      &answer);
  return answered && answer[0] == 1;
}

TEST_F(Slots, importers_that_crashed_are_forgotten_in_all_slots_and_others_are_not) {
  uint32_t slot[3];
  uint64_t life[3];
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(exporter_.take(&slot[i], &life[i]).ok());
  Importer living;
  ASSERT_TRUE(open(&living).ok());
  living.sit(process_);
  ASSERT_TRUE(living.enter(slot[0], life[0]));
  ASSERT_TRUE(crash_in(process_, exporter_, {{slot[0], life[0]}, {slot[1], life[1]}, {slot[1], life[1]}}));
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 2u);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 1u);
  exporter_.forget_dead_hook(slot[2]);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 1u) << "nobody who crashed had that one";
  exporter_.forget_dead_hook(slot[0]);
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 1u);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 0u);
  living.leave(slot[0], life[0]);
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 0u);
}

TEST_F(Slots, an_importer_leaves_as_often_as_it_entered_and_enters_nothing_dead) {
  uint32_t slot = 0;
  uint64_t life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  Importer importer;
  ASSERT_TRUE(open(&importer).ok());
  importer.sit(process_);
  ASSERT_TRUE(importer.enter(slot, life));
  ASSERT_TRUE(importer.enter(slot, life));
  importer.leave(slot, life);
  EXPECT_EQ(exporter_.importers_hook(slot), 1u);
  exporter_.kill_hook(slot);
  EXPECT_FALSE(importer.enter(slot, life));
  EXPECT_EQ(exporter_.importers_hook(slot), 1u) << "it is still open";
  importer.leave(slot, life);
  EXPECT_EQ(exporter_.importers_hook(slot), 0u);
  EXPECT_FALSE(importer.enter(slot, life));
  EXPECT_EQ(exporter_.importers_hook(slot), 0u);
}

TEST_F(Slots, who_finds_no_seat_is_counted_and_seats_are_given_back) {
  uint32_t slot = 0;
  uint64_t life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Importer>> all;
    for (uint32_t i = 0; i < slots::kSeats + 2; ++i) {
      all.push_back(std::make_unique<Importer>());
      ASSERT_TRUE(open(all.back().get()).ok());
      all.back()->sit(process_);
      ASSERT_TRUE(all.back()->enter(slot, life));
    }
    EXPECT_EQ(exporter_.importers_hook(slot), slots::kSeats + 2);
    EXPECT_EQ(exporter_.word(slot)->load() & slots::kImporters, 2u);
    for (const auto& each : all) each->leave(slot, life);
    EXPECT_EQ(exporter_.importers_hook(slot), 0u);
  }
}

TEST_F(Slots, a_seat_that_a_crash_left_is_free_again_once_it_was_cleared) {
  uint32_t slot = 0;
  uint64_t life = 0;
  ASSERT_TRUE(exporter_.take(&slot, &life).ok());
  ASSERT_TRUE(crash_in(process_, exporter_, {{slot, life}}));
  exporter_.forget_dead_hook(slot);
  std::vector<std::unique_ptr<Importer>> all;
  for (uint32_t i = 0; i < slots::kSeats; ++i) {
    all.push_back(std::make_unique<Importer>());
    ASSERT_TRUE(open(all.back().get()).ok());
    all.back()->sit(process_);
    ASSERT_TRUE(all.back()->enter(slot, life));
  }
  EXPECT_EQ(exporter_.word(slot)->load() & slots::kImporters, 0u) << "all of them sit";
  for (const auto& each : all) each->leave(slot, life);
}

TEST_F(Slots, what_somebody_has_locked_is_not_removed_whoever_it_names) {
  Process elsewhere = process_;
  elsewhere.pid = 4000000;  // no process here: one of another namespace
  Exporter other;
  ASSERT_TRUE(other.create(elsewhere, 4).ok());
  slots::remove_stale(process_.user);
  Importer importer;
  EXPECT_TRUE(importer.open(elsewhere.user, elsewhere.pid, elsewhere.start, other.segment()).ok());
}

// In a child: from here on /dev/shm is a file system of that many KiB. False: the system does not allow it.
bool with_small_folder(const char* size) {
  const std::string user = "0 " + std::to_string(geteuid()) + " 1", group = "0 " + std::to_string(getegid()) + " 1";
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/uid_map") << user;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/gid_map") << group;
  return mount("none", "/dev/shm", "tmpfs", 0, size) == 0 && geteuid() == 0;
}

TEST_F(Slots, a_full_folder_is_an_error_and_no_crash) {
  constexpr int64_t kNotAllowed = -1;
  constexpr uint32_t kSlots = 65536;
  ChildAnswer answer{};
  ASSERT_TRUE(in_child(
      [] {
        if (!with_small_folder("size=280k")) return ChildAnswer{kNotAllowed};
        Exporter exporter, second;
        const Process own = self();
        const Status made = exporter.create(own, kSlots);
        uint32_t slot = 0, taken = 0;
        uint64_t life = 0;
        if (!made.ok()) return ChildAnswer{1, made.code()};
        Status status = made;
        while (status.ok() && taken < kSlots) {
          status = exporter.take(&slot, &life);
          taken += status.ok() ? 1 : 0;
        }
        exporter.give_back(7);
        const Status again = exporter.take(&slot, &life);
        return ChildAnswer{1, made.code(), status.code(), taken, again.code(), slot, second.create(own, kSlots).code()};
      },
      &answer))
      << "it crashed";
  if (answer[0] == kNotAllowed) GTEST_SKIP() << "no namespaces here";
  EXPECT_EQ(answer[1], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[2], PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_GE(answer[3], 4096);
  EXPECT_LT(answer[3], kSlots);
  EXPECT_EQ(answer[4], PINRAIL_SUCCESS) << "what was given back";
  EXPECT_EQ(answer[5], 7);
  EXPECT_EQ(answer[6], PINRAIL_ERR_NOT_SUPPORTED);
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(") ");
  return name == std::string::npos ? '?' : line[name + 2];
}

TEST(SlotsProcess, it_is_alive_as_long_as_one_of_its_threads_is) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          pause();
          return nullptr;
        },
        nullptr);
    syscall(SYS_exit, 0);  // of this thread alone
  }
  uint64_t start = 0;
  ASSERT_TRUE(slots::read_start_hook(static_cast<uint32_t>(child), &start));
  while (state_of(child) != 'Z') usleep(1000);  // its first thread has ended
  EXPECT_TRUE(slots::is_alive(static_cast<uint32_t>(child), start));
  EXPECT_FALSE(slots::is_alive(static_cast<uint32_t>(child), start + 1));
  kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(slots::is_alive(static_cast<uint32_t>(child), start)) << "dead, and not waited for";
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(slots::is_alive(static_cast<uint32_t>(child), start));
}

}  // namespace
}  // namespace pinrail::test
