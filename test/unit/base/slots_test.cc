// SPDX-License-Identifier: BSD-3-Clause
// Validity slots: a word that dies stays dead, other processes see it, and crashes leave nothing; no process can take a
// segment away from under those who have it mapped.
#include "base/slots/slots.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/slots/segment.h"
#include "test/support/cases.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace {
std::atomic<int64_t> room_left{INT64_MAX};  // bytes that files of this program may still get
std::atomic<int> interruptions{0};          // how many tries to get some a signal will interrupt
}  // namespace

extern "C" __attribute__((visibility("default"))) int posix_fallocate(int file, off_t from, off_t bytes) {
  if (interruptions.load() != 0) {
    --interruptions;
    return EINTR;
  }
  if (room_left.fetch_sub(bytes) < bytes) return ENOSPC;
  return fallocate(file, 0, from, bytes) == 0 ? 0 : errno;
}

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
  struct Taken {
    uint32_t slot = 0;
    uint64_t life = 0;
  };
  static Taken take(Exporter* exporter) {
    Taken taken;
    EXPECT_TRUE(exporter->take(&taken.slot, &taken.life).ok());
    return taken;
  }
  Taken take() { return take(&exporter_); }
  Status open(Importer* importer) const {
    return importer->open(process_.user, process_.pid, process_.start, exporter_.segment());
  }
  const Process process_ = self();
  Exporter exporter_;
};

// As older kernels do it with files in memory.
TEST_F(Slots, a_signal_that_interrupts_an_allocation_changes_nothing) {
  Exporter other;
  interruptions = 3;
  EXPECT_TRUE(other.create(process_, 8).ok());
  EXPECT_EQ(interruptions.load(), 0);
}

TEST_F(Slots, an_importer_sees_the_death_of_the_one_slot_and_of_no_other) {
  const auto [first, first_life] = take();
  const auto [second, second_life] = take();
  Importer importer;
  ASSERT_TRUE(open(&importer).ok());
  const uint64_t deaths = importer.deaths()->load();
  EXPECT_TRUE(slots::is_alive(importer.word(first), first_life));
  exporter_.kill_hook(first);
  EXPECT_FALSE(slots::is_alive(importer.word(first), first_life));
  EXPECT_TRUE(slots::is_alive(importer.word(second), second_life));
  EXPECT_EQ(importer.deaths()->load(), deaths + 1);
  exporter_.kill_hook(first, first_life);
  EXPECT_EQ(importer.deaths()->load(), deaths + 1) << "it dies once";
  exporter_.give_back(first);
  const auto [again, new_life] = take();
  EXPECT_EQ(again, first);
  EXPECT_NE(new_life, first_life) << "it is another life";
  exporter_.kill_hook(first, first_life);
  EXPECT_TRUE(slots::is_alive(importer.word(first), new_life)) << "an event of the life before ends no later one";
  EXPECT_FALSE(slots::is_alive(exporter_.word(first), first_life));
  EXPECT_FALSE(slots::enter(exporter_.word(first), first_life));
  exporter_.kill_hook(first, new_life);
  EXPECT_FALSE(slots::is_alive(importer.word(first), new_life));
}

TEST_F(Slots, importers_are_counted_also_when_they_leave_after_the_death) {
  const auto [slot, life] = take();
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  exporter_.kill_hook(slot);
  EXPECT_FALSE(slots::enter(exporter_.word(slot), life)) << "no new importer";
  EXPECT_EQ(exporter_.importers_hook(slot), 2u);
  slots::leave(exporter_.word(slot), life);
  slots::leave(exporter_.word(slot), life);
  slots::leave(exporter_.word(slot), life);  // one too many does no harm
  EXPECT_EQ(exporter_.importers_hook(slot), 0u);
}

TEST_F(Slots, a_slot_of_a_crashed_importer_is_used_last_and_its_end_harms_no_other) {
  const auto [slot, life] = take();
  ASSERT_TRUE(slots::enter(exporter_.word(slot), life));
  exporter_.give_back(slot);
  for (int i = 0; i < 7; ++i) EXPECT_NE(take().slot, slot);
  Taken last = take();
  EXPECT_EQ(last.slot, slot);
  ASSERT_TRUE(slots::enter(exporter_.word(slot), last.life));
  slots::leave(exporter_.word(slot), life);
  EXPECT_EQ(exporter_.importers_hook(slot), 1u);
  EXPECT_TRUE(exporter_.take(&last.slot, &last.life).is(PINRAIL_ERR_OUT_OF_RESOURCE));
}

// slots/V5. Two processes would end by SIGBUS: the exporter at its next free, the importer at its next look.
TEST_F(Slots, no_process_of_that_user_can_shorten_a_segment_that_is_mapped) {
  const auto [slot, life] = take();
  Importer importer;
  ASSERT_TRUE(open(&importer).ok());
  const std::string path =
      "/proc/" + std::to_string(process_.pid) + "/fd/" + std::to_string(slots::file_of(exporter_.segment()));
  const ChildAnswer answer = answer_of([&] {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return ChildAnswer{0};
    const bool shortened = ftruncate(file, 0) == 0, truncated = ::truncate(path.c_str(), 0) == 0;
    return ChildAnswer{1, shortened || truncated};
  });
  ASSERT_EQ(answer[0], 1);
  EXPECT_EQ(answer[1], 0);
  EXPECT_TRUE(slots::is_alive(importer.word(slot), life));
  exporter_.kill_hook(slot);
  EXPECT_FALSE(slots::is_alive(importer.word(slot), life));
}

// A file of this process that begins as a segment, and its number.
struct Forged {
  Forged(const Process& of, uint32_t count, int seals) {
    file = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    slots::Header header{};
    header.magic = slots::kMagic;
    header.version = slots::kVersion;
    header.count = count;
    header.pid = of.pid;
    header.start = of.start;
    header.segment = segment = uint64_t{1} << slots::kFileBits | static_cast<uint64_t>(file);
    EXPECT_EQ(pwrite(file, &header, sizeof(header), 0), ssize_t{sizeof(header)});
    EXPECT_EQ(ftruncate(file, slots::bytes_for(8)), 0);
    EXPECT_EQ(fcntl(file, F_ADD_SEALS, seals), 0);
  }
  ~Forged() { close(file); }
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;
  int file = -1;
  uint64_t segment = 0;
};

TEST_F(Slots, a_segment_that_can_be_shortened_or_is_shorter_than_it_says_is_refused) {
  const auto open_forged = [&](uint32_t count, int seals) {
    const Forged forged(process_, count, seals);
    Importer importer;
    return importer.open(process_.user, process_.pid, process_.start, forged.segment).code();
  };
  EXPECT_EQ(open_forged(8, slots::kFileSeals), PINRAIL_SUCCESS);
  EXPECT_EQ(open_forged(8, F_SEAL_GROW | F_SEAL_SEAL), PINRAIL_ERR_PERM);
  EXPECT_EQ(open_forged(8, F_SEAL_SHRINK | F_SEAL_GROW), PINRAIL_SUCCESS) << "what cannot be rolled back is enough";
  EXPECT_EQ(open_forged(0, slots::kFileSeals), PINRAIL_ERR_ERROR);
  EXPECT_EQ(open_forged(9, slots::kFileSeals), PINRAIL_ERR_ERROR);
  EXPECT_EQ(open_forged(UINT32_MAX, slots::kFileSeals), PINRAIL_ERR_ERROR);
}

TEST_F(Slots, another_start_another_segment_and_any_other_file_of_the_exporters_are_not_found) {
  Importer importer;
  const auto open_as = [&](uint64_t start, uint64_t segment) {
    return importer.open(process_.user, process_.pid, start, segment).code();
  };
  EXPECT_EQ(open_as(process_.start + 1, exporter_.segment()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(open_as(process_.start, exporter_.segment() + 2), PINRAIL_ERR_NOT_FOUND);
  for (const char* path : {"/dev/null", "/proc/self/stat", "/"}) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    const uint64_t number = uint64_t{7} << slots::kFileBits | static_cast<uint64_t>(file);
    EXPECT_EQ(open_as(process_.start, number), PINRAIL_ERR_NOT_FOUND) << path;
    close(file);
  }
}

// In a child that ends without a word, as in a crash: opens the segment, takes an importer entry, and enters those
// slots.
bool crash_in(const Process& of, const Exporter& exporter, const std::vector<std::pair<uint32_t, uint64_t>>& entered) {
  ChildAnswer answer{};
  const bool answered = in_child(
      [&] {
        auto* importer = new Importer;  // never destroyed
        bool well = importer->open(of.user, of.pid, of.start, exporter.segment()).ok();
        if (well) importer->register_importer(self());
        for (const auto& [slot, life] : entered) well = well && importer->enter(slot, life);
        return ChildAnswer{well ? 1 : 0};
      },
      &answer);
  return answered && answer[0] == 1;
}

TEST_F(Slots, an_orderly_end_kills_what_was_exported_and_what_is_disowned_is_not_written) {
  for (const bool is_disowned : {false, true}) {
    auto other = std::make_unique<Exporter>();
    ASSERT_TRUE(other->create(process_, 4).ok());
    const auto [slot, life] = take(other.get());
    const auto [other_slot, other_life] = take(other.get());
    Importer importer;
    ASSERT_TRUE(importer.open(process_.user, process_.pid, process_.start, other->segment()).ok());
    const uint64_t deaths = importer.deaths()->load();
    if (is_disowned) {
      ASSERT_TRUE(crash_in(process_, *other, {{slot, life}}));
      other->disown();
      other->forget_dead_hook(slot);
      EXPECT_EQ(other->importers_hook(slot), 1u) << "its own exporter asks which of its importers have crashed";
      other->kill_hook(slot);
      other->give_back(slot);
      EXPECT_TRUE(slots::is_alive(other->word(slot), life)) << "it may still be read";
      EXPECT_FALSE(importer.source().is_alive()) << "this process is not the exporter any more";
    }
    other.reset();
    EXPECT_EQ(slots::is_alive(importer.word(slot), life), is_disowned);
    EXPECT_EQ(slots::is_alive(importer.word(other_slot), other_life), is_disowned);
    EXPECT_EQ(importer.deaths()->load() == deaths, is_disowned);
  }
}

struct Name {
  Process process;
  uint64_t segment;
};

int leash = -1;  // in such a process: can be read when the test is over

// A process that makes an exporter, and then does that; it never ends it.
class Other {
 public:
  explicit Other(void (*then)()) {
    int ends[2], held[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(held, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      leash = held[0];
      close(held[1]);
      Exporter exporter;
      const Process own = self();
      const bool made = exporter.create(own, 4).ok();
      const Name name{own, exporter.segment()};
      if (made && write(ends[1], &name, sizeof(name)) == ssize_t{sizeof(name)}) {
        raise(SIGSTOP);
        then();
      }
      _exit(1);
    }
    close(ends[1]);
    close(held[0]);
    leash_ = held[1];
    EXPECT_EQ(read(ends[0], &name_, sizeof(name_)), ssize_t{sizeof(name_)});
    close(ends[0]);
    EXPECT_EQ(waitpid(child_, nullptr, WUNTRACED), child_);
  }
  ~Other() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    close(leash_);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  void go_on() const { kill(child_, SIGCONT); }
  Status open(Importer* importer) const {
    return importer->open(name_.process.user, name_.process.pid, name_.process.start, name_.segment);
  }
  bool is_process() const { return slots::is_alive(name_.process.pid, name_.process.start); }

 private:
  Name name_{};
  pid_t child_ = -1;
  int leash_ = -1;
};

TEST(SlotsSource, an_exporter_that_ended_or_lost_its_descriptor_is_gone) {
  const struct {
    void (*then)();
    bool is_marked, is_process;
  } rows[] = {
      {[] { _exit(0); }, true, false},
      {[] { raise(SIGKILL); }, true, false},
      // The pid and the start stay, and the mark comes before the descriptors go.
      {[] { execl("/bin/sleep", "sleep", "600", nullptr); }, true, true},
      {[] {
         close_range(3, ~0u, 0);
         for (int i = 0; i < 64; ++i) ::open("/dev/null", O_RDONLY | O_CLOEXEC);
         pause();
       },
       false, true},
      {[] {
         char nothing = 0;
         if (fork() == 0) _exit(static_cast<int>(read(leash, &nothing, 1)));  // lives until the test is over
         kill(getpid(), SIGKILL);
       },
       true, false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(&row - rows);
    const Other exporter(row.then);
    Importer before, after;
    ASSERT_TRUE(exporter.open(&before).ok());
    EXPECT_TRUE(before.source().is_alive());
    EXPECT_FALSE(before.has_ended());
    exporter.go_on();
    EXPECT_TRUE(comes_true([&] { return !before.source().is_alive(); }));
    EXPECT_TRUE(comes_true([&] { return exporter.is_process() == row.is_process; }));
    EXPECT_EQ(before.has_ended(), row.is_marked);
    EXPECT_TRUE(exporter.open(&after).is(PINRAIL_ERR_NOT_FOUND));
  }
}

TEST(SlotsSource, an_exporter_that_ends_in_order_marks_nothing_and_a_forked_child_neither) {
  const Process own = self();
  Importer importer;
  {
    Exporter exporter;
    ASSERT_TRUE(exporter.create(own, 4).ok());
    ASSERT_TRUE(importer.open(own.user, own.pid, own.start, exporter.segment()).ok());
    const pid_t child = fork();
    if (child == 0) _exit(0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(importer.has_ended());
  }
  EXPECT_FALSE(importer.has_ended());
}

TEST(SlotsSource, an_exporter_whose_number_has_another_file_allocates_nothing_in_it_and_leaves_it_open) {
  const Process own = self();
  auto exporter = std::make_unique<Exporter>();
  const std::set<int> ours = numbers_opened_by([&] { ASSERT_TRUE(exporter->create(own, 4096).ok()); });
  ASSERT_EQ(ours.size(), 1u);
  ASSERT_TRUE(take_over(ours, make_memory_file));
  Status status = success();
  uint32_t slot = 0;
  uint64_t word = 0;
  for (int i = 0; i < 4096 && status.ok(); ++i) status = exporter->take(&slot, &word);
  EXPECT_FALSE(status.ok()) << "without its file it gets no memory for further slots";
  exporter.reset();
  EXPECT_TRUE(are_untouched(ours));
  close(*ours.begin());
}

TEST_F(Slots, importers_that_crashed_are_forgotten_in_all_slots_and_others_are_not) {
  uint32_t slot[3];
  uint64_t life[3];
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(exporter_.take(&slot[i], &life[i]).ok());
  Importer living;
  ASSERT_TRUE(open(&living).ok());
  living.register_importer(process_);
  ASSERT_TRUE(living.enter(slot[0], life[0]));
  ASSERT_TRUE(crash_in(process_, exporter_, {{slot[0], life[0]}, {slot[1], life[1]}, {slot[1], life[1]}}));
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 2u);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 1u);
  exporter_.forget_dead_hook(slot[2]);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 1u) << "no crashed importer had that one";
  exporter_.forget_dead_hook(slot[0]);
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 1u);
  EXPECT_EQ(exporter_.importers_hook(slot[1]), 0u);
  living.leave(slot[0], life[0]);
  EXPECT_EQ(exporter_.importers_hook(slot[0]), 0u);
}

// A look at every importer that crashed would take as long as they are many, inside a call of the pool.
TEST_F(Slots, of_importers_that_crashed_one_is_forgotten_in_each_call) {
  const auto [slot, life] = take();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(crash_in(process_, exporter_, {{slot, life}}));
  for (uint32_t left = 3; left > 0; --left) {
    EXPECT_EQ(exporter_.importers_hook(slot), left);
    exporter_.forget_one_dead();
  }
  EXPECT_EQ(exporter_.importers_hook(slot), 0u);
}

TEST_F(Slots, an_importer_leaves_as_often_as_it_entered_and_enters_nothing_dead) {
  const auto [slot, life] = take();
  Importer importer;
  ASSERT_TRUE(open(&importer).ok());
  importer.register_importer(process_);
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

// What a crash left is free again once it was cleared.
TEST_F(Slots, an_importer_without_a_slot_is_counted_and_slots_are_given_back_also_by_a_crash) {
  const auto [slot, life] = take();
  ASSERT_TRUE(crash_in(process_, exporter_, {{slot, life}}));
  exporter_.forget_dead_hook(slot);
  for (const uint32_t without : {0, 2, 2}) {
    std::vector<std::unique_ptr<Importer>> all;
    for (uint32_t i = 0; i < slots::kImporterEntries + without; ++i) {
      all.push_back(std::make_unique<Importer>());
      ASSERT_TRUE(open(all.back().get()).ok());
      all.back()->register_importer(process_);
      ASSERT_TRUE(all.back()->enter(slot, life));
    }
    EXPECT_EQ(exporter_.importers_hook(slot), slots::kImporterEntries + without);
    EXPECT_EQ(exporter_.word(slot)->load() & slots::kImporters, without);
    for (const auto& each : all) each->leave(slot, life);
    EXPECT_EQ(exporter_.importers_hook(slot), 0u);
  }
}

TEST_F(Slots, memory_that_runs_out_is_an_error_and_no_crash) {
  constexpr uint32_t kSlots = 65536;
  Exporter exporter, second;
  room_left = 300000;
  ASSERT_TRUE(exporter.create(process_, kSlots).ok());
  uint32_t slot = 0, taken = 0;
  uint64_t life = 0;
  Status status = exporter.take(&slot, &life);
  for (; status.ok(); ++taken) status = exporter.take(&slot, &life);
  EXPECT_TRUE(status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
  EXPECT_GE(taken, 4096u);
  EXPECT_LT(taken, kSlots);
  exporter.give_back(7);
  EXPECT_TRUE(exporter.take(&slot, &life).ok());
  EXPECT_EQ(slot, 7u) << "what was given back";
  EXPECT_TRUE(second.create(process_, kSlots).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_EQ(second.segment(), 0u);
  room_left = INT64_MAX;
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
  ASSERT_TRUE(slots::read_start(static_cast<uint32_t>(child), &start));
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

// R9: what cannot be known is not taken for dead.
TEST(SlotsProcess, it_counts_as_alive_while_there_is_no_descriptor_to_ask_the_system_with) {
  const Process own = self();
  const FewDescriptors none;
  EXPECT_TRUE(slots::is_alive(own.pid, own.start));
}

}  // namespace
}  // namespace pinrail::test
