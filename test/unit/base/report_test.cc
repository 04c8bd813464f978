// SPDX-License-Identifier: BSD-3-Clause
// report_test.cc - logs and help texts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/report/report.h"
#include "test/support/files.h"
#include "test/support/process.h"

namespace pinrail {
namespace {

using test::has;
using test::said_anew_by;
using test::times;

constexpr const char* kCatalogue =
    "\n[first topic]\nWhat happened  {what} with {other}.\nWhat follows   nothing.\nWhat to do     rest.\n\n"
    "[second topic]\nWhat happened  {what}.\n";

std::string render(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  return report::render(kCatalogue, topic, args.begin(), args.size());
}

void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args) {
  report::help("channel", kCatalogue, topic, args.begin(), args.size());
}

TEST(Report, a_topic_is_its_lines_without_the_blank_ones_at_the_end) {
  EXPECT_EQ(render("first topic", {{"what", "a"}, {"other", "b"}}),
            "What happened  a with b.\nWhat follows   nothing.\nWhat to do     rest.");
}

TEST(Report, the_last_topic_ends_with_the_catalogue) {
  EXPECT_EQ(render("second topic", {{"what", "a"}}), "What happened  a.");
}

TEST(Report, an_unknown_topic_renders_as_nothing) {
  EXPECT_EQ(render("third topic", {}), "");
  EXPECT_EQ(render("first", {}), "") << "part of a topic's name is not its name";
  EXPECT_EQ(report::render("", "first topic", nullptr, 0), "");
}

TEST(Report, a_placeholder_without_an_argument_stays_as_it_is) {
  EXPECT_EQ(render("second topic", {{"else", "a"}}), "What happened  {what}.");
}

TEST(Report, an_argument_without_a_value_is_empty) {
  EXPECT_EQ(render("second topic", {{"what", nullptr}}), "What happened  .");
}

TEST(Report, a_placeholder_in_a_value_is_not_filled) {
  EXPECT_EQ(render("first topic", {{"what", "{other}"}, {"other", "b"}}).substr(0, 31),
            "What happened  {other} with b.\n");
}

TEST(Report, a_brace_that_is_not_closed_is_text) {
  const pinrail_help_arg_t arg = {"x", "y"};
  EXPECT_EQ(report::render("[t]\na {x} {x", "t", &arg, 1), "a y {x");
}

TEST(Report, line_breaks_in_a_value_go_on_in_the_texts_column) {
  EXPECT_EQ(render("second topic", {{"what", "a\nb"}}), "What happened  a\n               b.");
}

TEST(Report, help_shows_channel_topic_and_text) {
  EXPECT_EQ(said_anew_by([] {
              help("second topic", {{"what", "it broke"}});
            }),
            "[pinrail:channel] second topic\n  What happened  it broke.\n");
}

TEST(Report, equal_texts_are_said_once) {
  const std::string said = said_anew_by([] {
    help("second topic", {{"what", "a"}});
    help("second topic", {{"what", "a"}});
    help("second topic", {{"what", "b"}});
  });
  EXPECT_EQ(times(said, "What happened  a."), 1U);
  EXPECT_EQ(times(said, "What happened  b."), 1U);
}

TEST(Report, what_was_forgotten_is_said_again) {
  const std::string said = said_anew_by([] {
    help("second topic", {{"what", "a"}});
    report::forget();
    help("second topic", {{"what", "a"}});
  });
  EXPECT_EQ(times(said, "What happened  a."), 2U);
}

TEST(Report, an_unknown_topic_is_said_with_its_arguments) {
  const std::string said = said_anew_by([] { help("no topic", {{"what", "it broke"}}); });
  EXPECT_TRUE(has(said, "no topic") && has(said, "what=it broke")) << said;
}

TEST(Report, errors_and_warnings_are_logged_at_every_verbosity) {
  const std::string said = said_anew_by([] {
    report::log("c", 0, PINRAIL_LOG_ERROR, "error");
    report::log("c", 0, PINRAIL_LOG_WARN, "warning");
    report::log("c", 0, PINRAIL_LOG_INFO, "info");
  });
  EXPECT_EQ(said, "[pinrail:c] error\n[pinrail:c] warning\n");
}

TEST(Report, the_rest_is_logged_from_its_verbosity_on) {
  const std::string said = said_anew_by([] {
    report::log("c", 9, PINRAIL_LOG_INFO, "too quiet");
    report::log("c", 10, PINRAIL_LOG_INFO, "info");
    report::log("c", 49, PINRAIL_LOG_DEBUG, "too quiet");
    report::log("c", 50, PINRAIL_LOG_DEBUG, "debug");
  });
  EXPECT_EQ(said, "[pinrail:c] info\n[pinrail:c] debug\n");
}

TEST(Report, a_log_is_one_line_that_cannot_drive_a_terminal) {
  EXPECT_EQ(said_anew_by([] { report::log("c", 0, 0, "a\nb\x1b[31m\x7f"); }), "[pinrail:c] a b?[31m?\n");
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
