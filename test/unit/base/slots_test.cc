// SPDX-License-Identifier: BSD-3-Clause
// Validity slots: a word that dies stays dead, other processes see it, and crashes leave nothing.
#include "base/slots/slots.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

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

}  // namespace
}  // namespace pinrail::test
