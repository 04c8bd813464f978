// SPDX-License-Identifier: BSD-3-Clause
// Descriptors for other processes: the right one or none, to the same user alone, whatever peers and servers do.
#include "base/descriptors/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include "base/core/kernel.h"
#include "base/descriptors/wire.h"
#include "test/support/cases.h"
#include "test/support/process.h"

namespace {
std::atomic<bool> is_memory_shared_out{false};  // no file gets memory any more
}

extern "C" __attribute__((visibility("default"))) int posix_fallocate(int file, off_t from, off_t bytes) {
  if (is_memory_shared_out) return ENOSPC;
  return fallocate(file, 0, from, bytes) == 0 ? 0 : errno;
}

namespace pinrail::test {
namespace {

using descriptors::fetch;
using descriptors::Server;
using descriptors::Ticket;
using descriptors::Way;

constexpr uint32_t kLongMs = 20000, kShortMs = 50;

slots::Process self() {
  slots::Process process;
  EXPECT_TRUE(slots::this_process(&process).ok());
  return process;
}

// A file that holds that number.
int make_file(uint64_t content) {
  const int file = memfd_create("descriptors-test", MFD_CLOEXEC);
  EXPECT_EQ(pwrite(file, &content, sizeof(content), 0), ssize_t{sizeof(content)});
  return file;
}

uint64_t content_of(int file) {
  uint64_t content = 0;
  EXPECT_EQ(pread(file, &content, sizeof(content), 0), ssize_t{sizeof(content)});
  return content;
}

class Descriptors : public ::testing::Test {
 protected:
  void TearDown() override {
    server_.reset();
    EXPECT_EQ(open_descriptors(), before_);
  }
  Ticket put(uint64_t content) {
    Ticket ticket;
    EXPECT_TRUE(server_->put(process_, make_file(content), FileKind::has_inode, own_file::count_forks(), &ticket).ok());
    return ticket;
  }
  Status try_fetch(const Ticket& ticket, Way way, uint64_t* content_out = nullptr, uint32_t timeout = kLongMs) const {
    int number = -1;
    const Status status = fetch(process_, ticket, way, timeout, &number);
    const Descriptor file(status.ok() ? number : -1);
    if (status.ok() && content_out != nullptr) *content_out = content_of(file.get());
    return status;
  }
  void expect_content(const Ticket& ticket, uint64_t content) const {
    for (const Way way : {Way::any, Way::socket, Way::pidfd}) {
      uint64_t seen = 0;
      EXPECT_EQ(try_fetch(ticket, way, &seen).code(), PINRAIL_SUCCESS) << int{static_cast<uint8_t>(way)};
      EXPECT_EQ(seen, content);
    }
  }
  void expect_status(const Ticket& ticket, pinrail_status_t status) const {
    for (const Way way : {Way::any, Way::socket, Way::pidfd}) EXPECT_EQ(try_fetch(ticket, way).code(), status);
  }
  // A socket to the server, as a peer of any manners has it.
  int connect_to(const Ticket& ticket) const {
    constexpr int kYes = 1;
    const descriptors::Address server(process_, ticket.server);
    const int peer = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(setsockopt(peer, SOL_SOCKET, SO_PASSCRED, &kYes, sizeof(kYes)), 0);
    EXPECT_EQ(connect(peer, reinterpret_cast<const sockaddr*>(&server.name), server.length), 0);
    return peer;
  }
  // Sends the bytes with a socket for the answer, and returns the other end of that.
  static int ask(int peer, const void* bytes, size_t length) {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const Descriptor servers(pair[1]);
    while (!descriptors::send_message(peer, nullptr, bytes, length, servers.get())) EXPECT_EQ(errno, EAGAIN);
    return pair[0];
  }
  // How many bytes the answer has; 0: there is none.
  static ssize_t length_of_answer(int answers) {
    char byte = 0;
    pollfd entry{answers, POLLIN, 0};
    return poll(&entry, 1, int{kLongMs}) == 1 ? recv(answers, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) : -1;
  }
  static descriptors::Question question_of(const Ticket& ticket) {
    descriptors::Question question;
    question.server = ticket.server;
    question.number = ticket.number;
    question.place = ticket.place;
    return question;
  }

  const slots::Process process_ = self();
  const size_t before_ = open_descriptors();
  std::unique_ptr<Server> server_ = std::make_unique<Server>();
};

TEST_F(Descriptors, another_process_gets_it_too) {
  const Ticket ticket = put(33);
  const ChildAnswer answer = answer_of([&] {
    uint64_t by_socket = 0, by_pidfd = 0;
    try_fetch(ticket, Way::socket, &by_socket).ignore();
    try_fetch(ticket, Way::pidfd, &by_pidfd).ignore();
    return ChildAnswer{static_cast<int64_t>(by_socket), static_cast<int64_t>(by_pidfd)};
  });
  EXPECT_EQ(answer, (ChildAnswer{33, 33}));
}

TEST_F(Descriptors, a_process_that_has_no_descriptor_left_does_not_take_it_for_gone) {
  const Ticket ticket = put(33);
  for (const rlim_t left : {0, 1, 2}) {
    const ChildAnswer answer = answer_of([&] {
      const FewDescriptors few(left);
      const Status by_pidfd = try_fetch(ticket, Way::pidfd);
      return ChildAnswer{by_pidfd.code(), left < 2 ? try_fetch(ticket, Way::socket).code() : 0};
    });
    EXPECT_EQ(answer[0], PINRAIL_ERR_OUT_OF_RESOURCE);
    EXPECT_EQ(answer[1], left < 2 ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS);
  }
}

TEST_F(Descriptors, what_was_removed_is_gone_although_its_place_and_its_number_serve_again) {
  const Ticket old_one = put(1);
  server_->remove(old_one);
  Ticket new_one;
  EXPECT_TRUE(
      server_->put(process_, -1, FileKind::has_inode, own_file::count_forks(), &new_one).is(PINRAIL_ERR_BAD_PARAM));
  new_one = put(2);
  EXPECT_EQ(new_one.place, old_one.place) << "the lowest free place";
  expect_status(old_one, PINRAIL_ERR_NOT_FOUND);
  expect_content(new_one, 2);
  server_->remove(old_one);  // again: ignored
  expect_content(new_one, 2);
}

// Such a peer may be between its look at the table and its copy of the descriptor.
TEST_F(Descriptors, a_server_that_ends_clears_the_table_that_a_peer_has_mapped) {
  const Ticket ticket = put(11);
  void* const mapped =
      mmap(nullptr, sizeof(descriptors::Table), PROT_READ, MAP_SHARED, static_cast<int>(ticket.directory), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto& table = *static_cast<const descriptors::Table*>(mapped);
  const auto taken = [&table] {
    return std::count_if(std::begin(table.entries), std::end(table.entries),
                         [](const auto& entry) { return entry.number.load() != 0; });
  };
  EXPECT_EQ(taken(), 1);
  server_.reset();
  EXPECT_EQ(taken(), 0);
  munmap(mapped, sizeof(descriptors::Table));
  server_ = std::make_unique<Server>();
  const Ticket next = put(2);
  EXPECT_NE(next.server, ticket.server) << "it does not answer for the one before";
  expect_status(ticket, PINRAIL_ERR_NOT_FOUND);
  expect_content(next, 2);
}

TEST_F(Descriptors, a_forged_ticket_brings_nothing) {
  const Ticket right = put(1);
  Ticket wrong = right;
  wrong.number ^= 1u << 20;
  expect_status(wrong, PINRAIL_ERR_NOT_FOUND);
  wrong = right;
  wrong.place = 77;
  expect_status(wrong, PINRAIL_ERR_NOT_FOUND);
  wrong.place = Server::kMost;
  expect_status(wrong, PINRAIL_ERR_NOT_FOUND);
  wrong = right;
  wrong.server ^= uint64_t{1} << 60;
  expect_status(wrong, PINRAIL_ERR_NOT_FOUND);
  wrong.server = right.server ^ (1u << 20);  // the same name
  EXPECT_TRUE(try_fetch(wrong, Way::socket).is(PINRAIL_ERR_NOT_AVAILABLE));
  EXPECT_TRUE(try_fetch(wrong, Way::pidfd).is(PINRAIL_ERR_NOT_FOUND));
  wrong = right;
  wrong.directory = 0;  // standard input
  EXPECT_TRUE(try_fetch(wrong, Way::pidfd).is(PINRAIL_ERR_NOT_FOUND));
  wrong.directory = 1000000;
  EXPECT_TRUE(try_fetch(wrong, Way::pidfd).is(PINRAIL_ERR_NOT_FOUND));
  expect_status(Ticket{}, PINRAIL_ERR_NOT_FOUND);
}

TEST_F(Descriptors, an_exporter_that_is_dead_whose_pid_is_anothers_by_now_or_of_another_user_is_not_asked) {
  const Ticket ticket = put(1);
  slots::Process other = process_, gone = process_, stranger = process_;
  other.start ^= 1;
  stranger.user += 1;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  gone.pid = static_cast<uint32_t>(child);
  waitpid(child, nullptr, 0);
  int number = -1;
  for (const Way way : {Way::socket, Way::pidfd}) {
    EXPECT_TRUE(fetch(other, ticket, way, kLongMs, &number).is(PINRAIL_ERR_NOT_FOUND));
    EXPECT_TRUE(fetch(gone, ticket, way, kLongMs, &number).is(PINRAIL_ERR_NOT_FOUND));
  }
  EXPECT_TRUE(fetch(stranger, ticket, Way::any, kLongMs, &number).is(PINRAIL_ERR_PERM));
}

TEST_F(Descriptors, another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Ticket ticket = put(1);
  const ChildAnswer answer = answer_of([&] {
    if (setresuid(65534, 65534, 65534) != 0) return ChildAnswer{1};
    const Descriptor stranger(connect_to(ticket));
    const descriptors::Question question = question_of(ticket);
    return ChildAnswer{0, length_of_answer(Descriptor(ask(stranger.get(), &question, sizeof(question))).get())};
  });
  EXPECT_EQ(answer[0], 0);
  EXPECT_EQ(answer[1], 0) << "there was an answer";
  expect_content(ticket, 1);
}

// descriptors/D3: the name is all that another user knows. In a queue of the server's the pipe would be open for some
// microseconds, until its thread runs, which then would wait as long as the last to close a connection does.
TEST_F(Descriptors, what_a_stranger_sends_is_closed_in_the_strangers_own_call) {
  const Ticket ticket = put(1);
  const Descriptor stranger(connect_to(ticket));
  descriptors::Question question = question_of(ticket);
  question.server &= ~uint64_t{0} << descriptors::kHiddenBits;
  for (int i = 0; i < 100; ++i) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const Descriptor reading(ends[0]);
    EXPECT_TRUE(descriptors::send_message(stranger.get(), nullptr, &question, sizeof(question), ends[1]));
    close(ends[1]);
    pollfd entry{reading.get(), 0, 0};
    ASSERT_EQ(poll(&entry, 1, 0), 1) << i;
  }
}

// More than what the kernel keeps unread of one sender.
TEST_F(Descriptors, peers_that_do_not_read_their_answers_delay_no_other_peer) {
  const Ticket ticket = put(7);
  const descriptors::Question question = question_of(ticket);
  const Descriptor peer(connect_to(ticket));
  std::vector<int> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(ask(peer.get(), &question, sizeof(question)));
  expect_content(ticket, 7);
  for (const int answers : silent) close(answers);
}

// A name is anybody's when the peer that had it has closed its socket.
TEST_F(Descriptors, no_answer_is_sent_to_a_name) {
  const Ticket ticket = put(7);
  const descriptors::Question question = question_of(ticket);
  const Descriptor peer(connect_to(ticket));
  ASSERT_TRUE(descriptors::send_message(peer.get(), nullptr, &question, sizeof(question), -1));
  expect_content(ticket, 7);  // so the server has read it
  char byte = 0;
  EXPECT_EQ(recv(peer.get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST_F(Descriptors, peers_that_talk_nonsense_get_no_answer) {
  const Ticket ticket = put(8);
  const descriptors::Question question = question_of(ticket);
  descriptors::Question strange = question, other_version = question;
  strange.magic ^= 1;
  other_version.version ^= 1;
  std::vector<char> much(10000, 'x');
  const std::pair<const void*, size_t> words[] = {{&question, sizeof(question) - 1},
                                                  {&strange, sizeof(strange)},
                                                  {&other_version, sizeof(other_version)},
                                                  {much.data(), much.size()},
                                                  {much.data(), 0}};
  const Descriptor peer(connect_to(ticket));
  for (const auto& [bytes, length] : words) {
    EXPECT_EQ(length_of_answer(Descriptor(ask(peer.get(), bytes, length)).get()), 0) << length;
  }
  const Descriptor answers(ask(peer.get(), &question, sizeof(question)));
  EXPECT_EQ(length_of_answer(answers.get()), ssize_t{sizeof(descriptors::kAnswer)}) << "of a question that is right";
  close(ask(peer.get(), &question, sizeof(question)));  // asks, and does not wait for its answer
  ASSERT_TRUE(descriptors::send_message(peer.get(), nullptr, &question, sizeof(question), 0)) << "with standard input";
  expect_content(ticket, 8);
}

// A server of the test's own manners, under the name of a ticket.
class Impostor {
 public:
  using Manners = std::function<void(int socket, Descriptor* answers)>;

  Impostor(const slots::Process& process, const Ticket& ticket, Manners manners) : manners_(std::move(manners)) {
    constexpr int kYes = 1;
    const descriptors::Address own(process, ticket.server);
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_PASSCRED, &kYes, sizeof(kYes)), 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&own.name), own.length), 0);
    thread_ = std::thread([this] {
      descriptors::Question question;
      descriptors::Message asked(socket_, &question, sizeof(question), 0);
      answers_.reset(asked.descriptor.release());
      if (asked.length > 0) manners_(socket_, &answers_);
    });
  }
  ~Impostor() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }

 private:
  const int socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const Manners manners_;
  Descriptor answers_;
  std::thread thread_;
};

void send_files(int answers, size_t count) {
  uint32_t answer = descriptors::kAnswer;
  iovec bytes{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  if (count != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    const int zeros[8] = {};
    std::memcpy(CMSG_DATA(header), zeros, count * sizeof(int));
  }
  EXPECT_GT(sendmsg(answers, &message, MSG_NOSIGNAL), 0);
}

void send_words(int answers) { EXPECT_TRUE(descriptors::send_message(answers, nullptr, "hello", 5, 0)); }

TEST_F(Descriptors, a_server_of_any_manners_ends_in_time_and_leaves_nothing_open) {
  const Ticket ticket{0x1234567, 1, 0, 0};
  const struct {
    Impostor::Manners manners;
    pinrail_status_t status;
    uint32_t patience_ms = kLongMs;
  } rows[] = {
      // The exporter is out of descriptors, and lives.
      {[](int, Descriptor* answers) { answers->reset(); }, PINRAIL_ERR_NOT_AVAILABLE},
      // It never answers.
      {[](int, Descriptor*) {}, PINRAIL_ERR_NOT_AVAILABLE, kShortMs},
      {[](int, Descriptor* answers) { send_files(answers->get(), 2); }, PINRAIL_ERR_ERROR},
      {[](int, Descriptor* answers) { send_files(answers->get(), 7); }, PINRAIL_ERR_ERROR},
      {[](int, Descriptor* answers) { send_words(answers->get()); }, PINRAIL_ERR_ERROR},
      {[](int, Descriptor* answers) { send_files(answers->get(), 0); }, PINRAIL_ERR_NOT_FOUND},
      // It ends before it answers.
      {[](int socket, Descriptor* answers) {
         const Descriptor other(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
         EXPECT_EQ(dup3(other.get(), socket, O_CLOEXEC), socket);
         answers->reset();
       },
       PINRAIL_ERR_NOT_FOUND},
  };
  for (const auto& row : rows) {
    const Impostor impostor(process_, ticket, row.manners);
    EXPECT_EQ(try_fetch(ticket, Way::socket, nullptr, row.patience_ms).code(), row.status) << &row - rows;
  }
}

TEST_F(Descriptors, another_process_under_the_exporters_name_is_not_believed) {
  const Ticket ticket{0x7654321, 1, 0, 0};
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const Descriptor reading(ready[0]), writing(ready[1]);
  const pid_t child = fork();
  if (child == 0) {
    const Impostor impostor(process_, ticket, [](int, Descriptor* answers) { send_files(answers->get(), 1); });
    if (write(writing.get(), "r", 1) == 1) pause();
    _exit(0);
  }
  char byte = 0;
  EXPECT_EQ(read(reading.get(), &byte, 1), 1);
  EXPECT_EQ(try_fetch(ticket, Way::socket).code(), PINRAIL_ERR_PERM);
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(Descriptors, where_the_kernel_bars_the_one_way_the_other_is_taken) {
  const Ticket ticket = put(5);
  const ChildAnswer answer = answer_of([&] {
    uint64_t seen = 0;
    if (!refuse_system_call(SYS_pidfd_getfd, EPERM)) return ChildAnswer{1};
    const Status barred = try_fetch(ticket, Way::pidfd);
    const Status other = try_fetch(ticket, Way::any, &seen);
    return ChildAnswer{0, barred.code(), other.code(), static_cast<int64_t>(seen)};
  });
  if (answer[0] != 0) GTEST_SKIP() << "system calls cannot be refused here";
  EXPECT_EQ(answer[1], PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer[2], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[3], 5);
}

// F1, descriptors/D5: otherwise the child would keep the memory behind it alive.
TEST_F(Descriptors, a_forked_child_has_no_copy_of_what_was_put_in) {
  const int file = make_file(7), other = make_file(8);
  Ticket ticket, of_other;
  const uint64_t forks = own_file::count_forks();
  ASSERT_TRUE(server_->put(process_, file, FileKind::has_inode, forks, &ticket).ok());
  ASSERT_TRUE(server_->put(process_, other, FileKind::has_inode, forks, &of_other).ok());
  const int mine = make_file(9);
  ASSERT_EQ(dup3(mine, other, O_CLOEXEC), other) << "as a program does that closes what it did not open";
  close(mine);
  const ChildAnswer answer = answer_of([&] {
    return ChildAnswer{fcntl(file, F_GETFD), static_cast<int64_t>(content_of(other))};
  });
  EXPECT_EQ(answer[0], -1);
  EXPECT_EQ(answer[1], 9);
  expect_content(ticket, 7);
  const int late = make_file(1);
  EXPECT_TRUE(server_->put(process_, late, FileKind::has_inode, forks, &of_other).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
  server_.reset();
  EXPECT_EQ(content_of(other), 9u) << "the number is the program's";
  close(other);
}

TEST_F(Descriptors, what_is_put_in_does_not_stay_where_standard_input_was) {
  const ChildAnswer answer = answer_of([&] {
    close(STDIN_FILENO);
    const int file = make_file(7);
    Server server;
    Ticket ticket;
    const Status put = server.put(self(), file, FileKind::has_inode, own_file::count_forks(), &ticket);
    return ChildAnswer{file, put.code(), fcntl(STDIN_FILENO, F_GETFD)};
  });
  EXPECT_EQ(answer, (ChildAnswer{STDIN_FILENO, PINRAIL_SUCCESS, -1}));
}

// The table in the file has the mark by which a file that no inode tells apart is known.
TEST_F(Descriptors, a_file_of_the_programs_own_under_the_number_of_a_marked_one_is_not_taken_for_it) {
  const int file = memfd_create("marked", MFD_CLOEXEC), other = make_file(8);
  Ticket ticket;
  ASSERT_TRUE(server_->put(process_, file, FileKind::gpu_memory, own_file::count_forks(), &ticket).ok());
  int fetched = -1;
  ASSERT_TRUE(fetch(process_, ticket, Way::pidfd, kLongMs, &fetched).ok());
  close(fetched);
  ASSERT_EQ(dup3(other, file, O_CLOEXEC), file);
  close(other);
  expect_status(ticket, PINRAIL_ERR_NOT_FOUND);
  server_.reset();
  EXPECT_EQ(content_of(file), 8u) << "the number is the program's";
  close(file);
}

// As a daemon whose own files have the numbers.
TEST_F(Descriptors, where_the_program_has_closed_the_servers_the_next_put_starts_another_one) {
  const ChildAnswer answer = answer_of([this] {
    Ticket ticket, next;
    const std::set<int> ours = numbers_opened_by([&] { ticket = put(7); });
    const bool taken = ours.size() == 3 && take_over(ours, make_memory_file);
    const bool is_gone = !try_fetch(ticket, Way::socket).ok();
    const slots::Process child = self();
    const uint64_t forks = own_file::count_forks();
    const Status made = server_->put(child, make_file(8), FileKind::has_inode, forks, &next);
    int number = -1;
    const Status fetched = made.ok() ? fetch(child, next, Way::any, kLongMs, &number) : made;
    const uint64_t content = fetched.ok() ? content_of(number) : 0;
    server_->remove(ticket);
    const uint32_t losses = server_->losses();
    server_.reset();
    return ChildAnswer{taken, is_gone, fetched.code(), static_cast<int64_t>(content), losses, are_untouched(ours)};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 1, PINRAIL_SUCCESS, 8, 1, 1}));
}

TEST_F(Descriptors, a_server_without_its_socket_ends) {
  const ChildAnswer answer = answer_of([this] {
    const std::set<int> ours = numbers_opened_by([this] { put(7); });
    const bool taken = take_over(ours, make_silent_pipe);
    server_.reset();
    return ChildAnswer{taken, are_untouched(ours)};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 1}));
}

// The child drops all that it has of the parent's; the parent serves on.
TEST_F(Descriptors, a_forked_child_disowns_and_the_parent_serves_on) {
  const Ticket ticket = put(6);
  const ChildAnswer answer = answer_of([&] {
    server_->disown();
    server_.reset();
    return ChildAnswer{1};
  });
  EXPECT_EQ(answer[0], 1);
  expect_content(ticket, 6);
}

// A write to a file's mapping would end the process then.
TEST_F(Descriptors, without_memory_for_the_table_nothing_is_put_in) {
  Ticket ticket;
  is_memory_shared_out = true;
  const Status status = server_->put(process_, make_file(1), FileKind::has_inode, own_file::count_forks(), &ticket);
  is_memory_shared_out = false;
  EXPECT_TRUE(status.is(PINRAIL_ERR_OUT_OF_RESOURCE));
  EXPECT_EQ(open_descriptors(), before_);
  expect_content(put(2), 2);
}

// descriptors/D1, while places and numbers are used again and again.
TEST_F(Descriptors, what_is_fetched_while_others_come_and_go_is_the_right_one_or_none) {
  constexpr int kRounds = 3000;
  std::atomic<uint64_t> serial{1};
  struct Shared {
    std::mutex mutex;
    Ticket ticket;
    uint64_t content = 0;
  } shared;
  shared.content = serial++;
  shared.ticket = put(shared.content);
  std::atomic<bool> stopping{false};
  std::thread changer([&] {
    while (!stopping.load()) {
      const uint64_t content = serial++;
      Ticket fresh;
      ASSERT_TRUE(
          server_->put(process_, make_file(content), FileKind::has_inode, own_file::count_forks(), &fresh).ok());
      Ticket old_one;
      {
        const std::lock_guard<std::mutex> lock(shared.mutex);
        old_one = shared.ticket;
        shared.ticket = fresh;
        shared.content = content;
      }
      server_->remove(old_one);
    }
  });
  int right = 0;
  for (int i = 0; i < kRounds; ++i) {
    Ticket ticket;
    uint64_t content = 0, seen = 0;
    {
      const std::lock_guard<std::mutex> lock(shared.mutex);
      ticket = shared.ticket;
      content = shared.content;
    }
    const Status status = try_fetch(ticket, i % 2 == 0 ? Way::pidfd : Way::socket, &seen);
    ASSERT_TRUE(status.ok() || status.is(PINRAIL_ERR_NOT_FOUND)) << status.code();
    if (!status.ok()) continue;
    ++right;
    ASSERT_EQ(seen, content);
  }
  stopping.store(true);
  changer.join();
  EXPECT_GT(right, 0);
}

}  // namespace
}  // namespace pinrail::test
