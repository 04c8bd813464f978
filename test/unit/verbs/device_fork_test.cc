// SPDX-License-Identifier: BSD-3-Clause
// F1: a forked child does not have the device that the registrar has opened, because the device's descriptor keeps
// pinned what the parent has registered, also when the parent has ended. The device is a double; its descriptor is
// /dev/null's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {

// Of verbs_component.cc. Nothing is to be reported here.
void report(const Registrar&, const char* topic, size_t, int) { ADD_FAILURE() << topic; }
void log_reason(const pinrail_host_t*, const char* what, const char* why) { ADD_FAILURE() << what << ": " << why; }

namespace {

int opened = 0, forks_wanted = 0;

pid_t fork_and_leave() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  return child;
}

ibv_device device{};
ibv_device* list[] = {&device, nullptr};
ibv_device** get_device_list(int* count) {
  *count = 1;
  return list;
}
void free_device_list(ibv_device**) {}
const char* get_device_name(ibv_device*) { return "double"; }
ibv_context* open_device_double(ibv_device*) {
  ++opened;
  auto* context = new ibv_context{};
  context->cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  // As another thread of the program.
  if (forks_wanted-- > 0) waitpid(fork_and_leave(), nullptr, 0);
  return context;
}
int close_device_double(ibv_context* context) {
  close(context->cmd_fd);
  delete context;
  return 0;
}
int query_device(ibv_context*, ibv_device_attr*) { return 0; }
ibv_pd* alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }
int dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

}  // namespace

// In place of verbs_component.cc's.
Status Library::open(const char**) {
  get_device_list = verbs::get_device_list;
  free_device_list = verbs::free_device_list;
  get_device_name = verbs::get_device_name;
  open_device = open_device_double;
  close_device = close_device_double;
  query_device = verbs::query_device;
  alloc_pd = verbs::alloc_pd;
  dealloc_pd = verbs::dealloc_pd;
  return success();
}
void Library::close() {}

namespace {

class DeviceFork : public testing::Test {
 protected:
  DeviceFork() { opened = forks_wanted = 0; }
  static bool is_open_in_child(int number) {
    const pid_t child = fork();
    if (child == 0) _exit(fcntl(number, F_GETFD) >= 0 ? 1 : 0);
    int how = 0;
    EXPECT_EQ(waitpid(child, &how, 0), child);
    return WEXITSTATUS(how) != 0;
  }
  static Settings named() {
    Settings settings{};
    settings.device = "double";
    return settings;
  }

  Registrar registrar_{nullptr, named()};
  size_t max_length_ = 0;
};

TEST_F(DeviceFork, a_child_does_not_have_the_device) {
  ASSERT_TRUE(open_device(&registrar_, nullptr, &max_length_).ok());
  const int number = registrar_.context->cmd_fd;
  EXPECT_FALSE(is_open_in_child(number));
  EXPECT_GE(fcntl(number, F_GETFD), 0);
  close_device(&registrar_);
  const int own = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(own, number);
  EXPECT_TRUE(is_open_in_child(own)) << "the number is the program's now";
  close(own);
}

TEST_F(DeviceFork, a_fork_meanwhile_opens_it_again) {
  forks_wanted = 2;
  ASSERT_TRUE(open_device(&registrar_, nullptr, &max_length_).ok());
  EXPECT_EQ(opened, 3);
  EXPECT_FALSE(is_open_in_child(registrar_.context->cmd_fd));
  close_device(&registrar_);
}

// libibverbs closes the number that it has.
TEST_F(DeviceFork, a_number_that_the_program_has_given_to_its_own_file_is_left_open) {
  ASSERT_TRUE(open_device(&registrar_, nullptr, &max_length_).ok());
  const int number = registrar_.context->cmd_fd, own = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup3(own, number, O_CLOEXEC), number);
  close(own);
  EXPECT_FALSE(registrar_.commands.is_open());
  close_device(&registrar_);
  EXPECT_EQ(close(number), 0);
}

// verbs/V2.
TEST_F(DeviceFork, what_was_lent_is_left_to_children) {
  ibv_context context{};
  context.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  ibv_pd pd{&context, 0};
  ASSERT_TRUE(open_device(&registrar_, &pd, &max_length_).ok());
  EXPECT_TRUE(is_open_in_child(context.cmd_fd));
  close_device(&registrar_);
  EXPECT_EQ(close(context.cmd_fd), 0);
}

}  // namespace
}  // namespace pinrail::verbs
