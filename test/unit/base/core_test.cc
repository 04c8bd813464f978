// SPDX-License-Identifier: BSD-3-Clause
// core_test.cc - the machine's shape, PageCounts against a plain array of counts, logs and help texts.
#include "base/core/machine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/core/page_counts.h"
#include "base/report/report.h"
#include "config.h"
#include "test/support/cases.h"
#include "test/support/files.h"

namespace pinrail {
namespace {

uint64_t mem_total_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  uint64_t kibibytes = 0;
  while (meminfo >> word) {
    if (word == "MemTotal:" && meminfo >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

// The number in the name of each entry of the folder that has such a name.
template <typename Take>
void for_each_number(const char* folder, const char* pattern, Take take) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    unsigned long long number = 0;
    if (std::sscanf(entry.path().filename().c_str(), pattern, &number) == 1) take(number);
  }
}

void expect_sound(const pinrail_machine_t& machine) {
  EXPECT_EQ(machine.page_size, static_cast<uint64_t>(getpagesize()));
  EXPECT_GT(machine.memory, uint64_t{16} << 20);
  EXPECT_LE(machine.memory, mem_total_bytes() + machine.page_size);
  EXPECT_GE(machine.numa_nodes, 1u);
  uint64_t before = machine.page_size;
  for (const uint64_t bytes : machine.hugepage_sizes) {
    if (bytes == 0) break;
    EXPECT_GT(bytes, before) << "sizes rise";
    EXPECT_EQ(bytes & (bytes - 1), 0u);
    before = bytes;
  }
}

TEST(Machine, the_system_alone_gives_page_memory_and_one_node) {
  const pinrail_machine_t machine = read_machine_of_system();
  expect_sound(machine);
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
}

TEST(Machine, hwloc_is_asked_where_it_is_built_in) {
  const pinrail_machine_t machine = read_machine();
  expect_sound(machine);
#ifdef HAVE_HWLOC
  EXPECT_STREQ(machine.source, "hwloc");
  unsigned nodes = 0;
  for_each_number("/sys/devices/system/node", "node%llu", [&](auto) { ++nodes; });
  EXPECT_TRUE(nodes == 0 || machine.numa_nodes <= nodes);
#else
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
#endif
  const auto& sizes = machine.hugepage_sizes;
  std::ptrdiff_t listed = 0;
  for_each_number("/sys/kernel/mm/hugepages", "hugepages-%llukB", [&](auto kibibytes) {
    ++listed;
    EXPECT_NE(std::find(std::begin(sizes), std::end(sizes), kibibytes * 1024), std::end(sizes)) << kibibytes;
  });
  EXPECT_EQ(std::count_if(std::begin(sizes), std::end(sizes), [](uint64_t bytes) { return bytes != 0; }), listed);
}

// On a thread of its own, because it stays so.
TEST(Machine, a_thread_is_bound_to_a_node_that_there_is) {
  bool is_first = false, is_none = true, is_farther_than_all = true;
  std::thread([&] {
    is_first = bind_near(0);
    is_none = bind_near(-1);
    is_farther_than_all = bind_near(1 << 20);
  }).join();
#ifdef HAVE_HWLOC
  constexpr const char* kNodes = "/sys/devices/system/node";
  EXPECT_EQ(is_first, access(kNodes, F_OK) != 0 || access((std::string(kNodes) + "/node0").c_str(), F_OK) == 0);
#else
  EXPECT_FALSE(is_first);
#endif
  EXPECT_FALSE(is_none);
  EXPECT_FALSE(is_farther_than_all);
}

TEST(Machine, the_public_view_shows_the_same_before_init_too_and_needs_room) {
  const pinrail_machine_t machine = read_machine();
  pinrail_machine_t view{};
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM);
  view.size = sizeof(view.size) - 1;
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM) << "not even the size has room";
  view.size = sizeof(view);
  ASSERT_EQ(pinrail_machine_read(&view), PINRAIL_SUCCESS);
  EXPECT_EQ(view.size, sizeof(view));
  EXPECT_STREQ(view.source, machine.source);
  EXPECT_EQ(view.page_size, machine.page_size);
  EXPECT_EQ(view.memory, machine.memory);
  EXPECT_EQ(view.numa_nodes, machine.numa_nodes);
  EXPECT_EQ(view.hugepage_sizes[0], machine.hugepage_sizes[0]);
}

}  // namespace
}  // namespace pinrail

namespace {

// PageCounts against a plain array of counts.

using pinrail::PageCounts;
using pinrail::Span;
using pinrail::test::with_nth_allocation_failing;

constexpr size_t kPage = 4096;
Span pages(size_t first, size_t count) { return Span::of(first * kPage, count * kPage); }

std::vector<Span> removed(PageCounts* counts, Span span) {
  std::vector<Span> spans;
  EXPECT_TRUE(counts->remove(span, [&](Span piece) { spans.push_back(piece); }).ok());
  return spans;
}

std::vector<Span> unheld(const PageCounts& counts, Span span) {
  std::vector<Span> spans;
  counts.for_each_unheld(span, [&](Span piece) { spans.push_back(piece); });
  return spans;
}

void expect_spans(const std::vector<Span>& got, const std::vector<Span>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].base, want[i].base) << i;
    EXPECT_EQ(got[i].end, want[i].end) << i;
  }
}

// Of the first 256 pages: bytes with at least one holder.
size_t held_bytes(const PageCounts& counts) {
  size_t bytes = 256 * kPage;
  for (const Span& piece : unheld(counts, pages(0, 256))) bytes -= piece.length();
  return bytes;
}

TEST(PageCounts, a_span_that_is_empty_or_not_held_is_refused_and_changes_nothing) {
  PageCounts counts;
  const auto refused = [&](Span span) {
    return counts.remove(span, [](Span) { FAIL() << "it is held"; }).is(PINRAIL_ERR_BAD_PARAM);
  };
  EXPECT_TRUE(counts.add(pages(4, 0)).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(refused(pages(1, 1)));
  for (const Span span : {pages(0, 4), pages(0, 2), pages(5, 1)}) ASSERT_TRUE(counts.add(span).ok());
  EXPECT_TRUE(refused(pages(2, 2))) << "others begin or end there";
  EXPECT_TRUE(refused(pages(0, 6)));
  EXPECT_TRUE(counts.check_invariants());
  EXPECT_EQ(held_bytes(counts), 5 * kPage);
  EXPECT_TRUE(removed(&counts, pages(0, 2)).empty());
  expect_spans(removed(&counts, pages(0, 4)), {pages(0, 4)});
}

TEST(PageCounts, an_add_without_memory_changes_nothing) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(10, 10)).ok());
  const auto add = [&](Span span, long failing) {
    pinrail::Status status = pinrail::success();
    with_nth_allocation_failing(failing, [&] { status = counts.add(span); });
    return status;
  };
  for (const Span span : {pages(0, 5), pages(5, 8), pages(12, 3), pages(15, 9), pages(0, 40)}) {
    for (const long failing : {1, 2}) {
      EXPECT_TRUE(add(span, failing).is(PINRAIL_ERR_OUT_OF_RESOURCE));
      EXPECT_EQ(counts.nodes(), 2u);
      EXPECT_EQ(held_bytes(counts), 10 * kPage);
      EXPECT_TRUE(counts.check_invariants());
    }
    EXPECT_TRUE(add(span, 3).ok());
    EXPECT_TRUE(counts.remove(span, [](Span) {}).ok());
  }
  EXPECT_TRUE(add(pages(10, 10), 1).ok()) << "its edges are there";
  EXPECT_TRUE(add(pages(12, 8), 2).ok()) << "one of them is";
}

TEST(PageCounts, a_removal_never_needs_memory) {
  PageCounts counts;
  for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(counts.add(pages(i, 100 - 2 * i)).ok());
  EXPECT_FALSE(with_nth_allocation_failing(1, [&] {
    for (size_t i = 0; i < 50; ++i) EXPECT_TRUE(counts.remove(pages(i, 100 - 2 * i), [](Span) {}).ok());
  }));
  EXPECT_EQ(counts.nodes(), 0u);
}

// Counts of an array, changed in step with the map.
class Model {
 public:
  void change(Span span, int by) {
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) counts_[page] += by;
  }
  std::vector<Span> zero_pieces(Span span) const {
    std::vector<Span> spans;
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) {
      if (counts_[page] != 0) continue;
      if (!spans.empty() && spans.back().end == page * kPage) {
        spans.back().end += kPage;
      } else {
        spans.push_back(pages(page, 1));
      }
    }
    return spans;
  }
  size_t held_bytes() const {
    size_t bytes = 0;
    for (const int count : counts_) bytes += count != 0 ? kPage : 0;
    return bytes;
  }

 private:
  std::vector<int> counts_ = std::vector<int>(256);
};

TEST(PageCounts, agrees_with_an_array_of_counts_in_20000_random_steps) {
  std::mt19937 random(20240607);
  PageCounts counts;
  Model model;
  std::vector<Span> held;
  for (int step = 0; step < 20000; ++step) {
    if (held.size() < 2 || random() % 100 < 52) {
      const size_t first = random() % 200;
      held.push_back(pages(first, 1 + random() % (random() % 4 == 0 ? 56 : 4)));
      ASSERT_TRUE(counts.add(held.back()).ok());
      model.change(held.back(), 1);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const Span span = held.back();
      held.pop_back();
      model.change(span, -1);
      expect_spans(removed(&counts, span), model.zero_pieces(span));
    }
    const Span window = pages(random() % 100, 1 + random() % 100);
    expect_spans(unheld(counts, window), model.zero_pieces(window));
    ASSERT_TRUE(counts.check_invariants());
    ASSERT_LE(counts.nodes(), 2 * held.size());
    ASSERT_EQ(held_bytes(counts), model.held_bytes());
  }
}

}  // namespace

namespace pinrail {
namespace {

// Logs and help texts.

using test::has;
using test::said_anew_by;
using test::times;

constexpr const char* kCatalogue =
    "\n[first topic]\nWhat happened  {what} with {other}.\nWhat follows   nothing.\nWhat to do     rest.\n\n"
    "[second topic]\nWhat happened  {what}.\n";

void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  report::help("channel", kCatalogue, topic, args.begin(), args.size());
}

TEST(Report, a_topic_is_its_lines_with_the_values_of_its_arguments) {
  const struct {
    const char* topic;
    pinrail_help_arg_t args[2];
    const char* text;
  } rows[] = {
      {"first topic",
       {{"what", "{other}"}, {"other", "b"}},
       "What happened  {other} with b.\nWhat follows   nothing.\nWhat to do     rest."},
      {"second topic", {{"what", "a"}, {"", ""}}, "What happened  a."},
      {"second topic", {{"else", "a"}, {"", ""}}, "What happened  {what}."},
      {"second topic", {{"what", nullptr}, {"", ""}}, "What happened  ."},
      {"second topic", {{"what", "a\nb"}, {"", ""}}, "What happened  a\n               b."},
      {"third topic", {{"", ""}, {"", ""}}, ""},
      {"first", {{"", ""}, {"", ""}}, ""},  // part of a topic's name is not its name
  };
  for (const auto& row : rows) EXPECT_EQ(report::render(kCatalogue, row.topic, row.args, 2), row.text);
  EXPECT_EQ(report::render("", "first topic", nullptr, 0), "");
  const pinrail_help_arg_t arg = {"x", "y"};
  EXPECT_EQ(report::render("[t]\na {x} {x", "t", &arg, 1), "a y {x") << "a brace that is not closed is text";
  EXPECT_EQ(report::render("[t]\n[1] see u\n[u]\nb\n", "t", nullptr, 0), "[1] see u")
      << "a heading ends with its bracket";
}

TEST(Report, equal_help_texts_are_said_once_until_they_are_forgotten) {
  const std::string said = said_anew_by([] {
    for (const char* what : {"a", "a", "b"}) help("second topic", {{"what", what}});
    report::forget();
    help("second topic", {{"what", "a"}});
  });
  EXPECT_EQ(times(said, "[pinrail:channel] second topic\n  What happened  a.\n"), 2U) << said;
  EXPECT_EQ(times(said, "What happened  b."), 1U) << said;
}

TEST(Report, an_unknown_topic_is_said_with_its_arguments) {
  const std::string said = said_anew_by([] { help("no topic", {{"what", "it broke"}}); });
  EXPECT_TRUE(has(said, "no topic") && has(said, "what=it broke")) << said;
}

TEST(Report, each_level_is_logged_from_its_verbosity_on_in_one_line_that_cannot_drive_a_terminal) {
  const std::string said = said_anew_by([] {
    report::log("c", 0, PINRAIL_LOG_ERROR, "error");
    report::log("c", 0, PINRAIL_LOG_WARN, "a\nb\x1b[31m\x7f");
    report::log("c", 9, PINRAIL_LOG_INFO, "too quiet");
    report::log("c", 10, PINRAIL_LOG_INFO, "info");
    report::log("c", 49, PINRAIL_LOG_DEBUG, "too quiet");
    report::log("c", 50, PINRAIL_LOG_DEBUG, "debug");
  });
  EXPECT_EQ(said, "[pinrail:c] error\n[pinrail:c] a b?[31m?\n[pinrail:c] info\n[pinrail:c] debug\n");
}

TEST(Report, every_topic_of_the_base_has_its_three_lines) {
  const std::string_view catalogue = report::base_catalogue();
  size_t topics = 0;
  for (size_t at = catalogue.find("\n["); at != std::string_view::npos; at = catalogue.find("\n[", at + 1)) {
    const std::string_view topic = catalogue.substr(at + 2, catalogue.find("]\n", at) - at - 2);
    const std::string text = report::render(catalogue, topic, nullptr, 0);
    EXPECT_EQ(times(text, "What happened  "), 1U) << topic;
    EXPECT_EQ(times(text, "\nWhat follows   "), 1U) << topic;
    EXPECT_EQ(times(text, "\nWhat to do     "), 1U) << topic;
    ++topics;
  }
  EXPECT_GE(topics, 10U);
}

// Whether a process lives on after a message to what make_stderr() puts there, and still gets the signal of its own
// writes.
bool lives_on(int signal_of_write, void (*make_stderr)()) {
  test::ChildAnswer answer{};
  const bool lives = test::in_child(
      [=] {
        make_stderr();
        report::log("channel", 0, PINRAIL_LOG_WARN, "a line that cannot be written");
        static volatile sig_atomic_t signals = 0;
        signal(signal_of_write, [](int) { signals = signals + 1; });
        const int64_t before = signals;
        const bool refused = write(STDERR_FILENO, "own", 3) < 0;
        return test::ChildAnswer{before, refused ? 1 : 0, signals};
      },
      &answer);
  return lives && answer == test::ChildAnswer{0, 1, 1};
}

TEST(Report, the_programs_function_gets_each_message_instead_of_standard_error) {
  std::vector<std::string> got;
  const auto take = [](void* arg, int level, const char* channel, const char* text) {
    static_cast<std::vector<std::string>*>(arg)->push_back(std::to_string(level) + " " + channel + ": " + text);
  };
  report::divert(take, &got);
  EXPECT_EQ(said_anew_by([] {
              report::log("c", 0, PINRAIL_LOG_WARN, "a line");
              help("second topic", {{"what", "x"}});
            }),
            "");
  report::divert(nullptr, nullptr);
  const std::string level = std::to_string(PINRAIL_LOG_WARN);
  EXPECT_EQ(got, (std::vector<std::string>{level + " c: a line", level + " channel: second topic\nWhat happened  x."}));
  EXPECT_EQ(said_anew_by([] { report::log("c", 0, PINRAIL_LOG_WARN, "a line"); }), "[pinrail:c] a line\n");
  EXPECT_EQ(got.size(), 2U) << "it was taken back";
}

TEST(Report, what_cannot_be_written_does_not_end_the_process) {
  EXPECT_TRUE(lives_on(SIGPIPE, [] {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0) return;
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
  })) << "a pipe without a reader";
  EXPECT_TRUE(lives_on(SIGXFSZ, [] {
    const rlimit none = {0, 0};
    const int file = open("/tmp", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    dup2(file, STDERR_FILENO);
    setrlimit(RLIMIT_FSIZE, &none);
  })) << "a file at its limit";
}

}  // namespace
}  // namespace pinrail
