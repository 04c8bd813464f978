// SPDX-License-Identifier: BSD-3-Clause
// device_test.cc - parts of registrar/verbs over doubles of a device: a transfer addresses a region at its iova, which
// need not be its address in this process; the trial of a device with memory on demand; forked children.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "components/registrar/verbs/verbs.h"
#include "test/support/cases.h"

namespace pinrail::verbs {

// Of verbs_component.cc. Nothing is to be reported here.
void report(const Registrar&, const char* topic, size_t, int) { ADD_FAILURE() << topic; }
void log_reason(const pinrail_host_t*, const char* what, const char* why) { ADD_FAILURE() << what << ": " << why; }

namespace {

constexpr uint64_t kIova = 0x7000000;
constexpr size_t kPage = 4096;

std::vector<uint64_t> remotes;  // of the operations that were posted
uint64_t last_operation = 0;

int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  remotes.push_back(request->wr.rdma.remote_addr);
  last_operation = request->wr_id;
  return 0;
}
int poll_cq(ibv_cq*, int, ibv_wc* completion) {
  completion->wr_id = last_operation;
  completion->status = IBV_WC_SUCCESS;
  return 1;
}

ibv_mr region{};
ibv_mr* reg_mr_iova2(ibv_pd*, void*, size_t, uint64_t, unsigned) { return &region; }
ibv_mr* reg_mr(ibv_pd*, void*, size_t, int) { return &region; }

class DeviceAddress : public testing::Test {
 protected:
  void SetUp() override {
    remotes.clear();
    registrar_.limits.granularity = kPage;
    registrar_.limits.kinds = PINRAIL_KIND_HOST;
    registrar_.library.reg_mr_iova2 = reg_mr_iova2;
    registrar_.library.reg_mr = reg_mr;
    context_.ops.post_send = post_send;
    context_.ops.poll_cq = poll_cq;
    qp_.context = cq_.context = &context_;
    Guard guard(registrar_.transfer);
    registrar_.loopback.qp = &qp_;
    registrar_.loopback.cq = &cq_;
    registrar_.loopback.mr = &region;
    registrar_.loopback.bounce = bounce_.data();
  }
  // Registers two pages at that address of the device; 0: at their own.
  void make(uint64_t iova) {
    pinrail_register_request_t request{};
    request.size = sizeof(request);
    request.kind = PINRAIL_KIND_HOST;
    request.addr = memory_;
    request.length = 2 * kPage;
    request.iova = iova;
    own_.reg.base = memory_;
    own_.reg.length = 2 * kPage;
    own_.reg.rights = PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(register_mem(&registrar_, &request, &own_.reg), PINRAIL_SUCCESS);
  }

  Registrar registrar_{nullptr, Settings{}};
  ibv_context context_{};
  ibv_qp qp_{};
  ibv_cq cq_{};
  std::vector<char> bounce_ = std::vector<char>(kBounceBytes);
  alignas(kPage) char memory_[2 * kPage] = {};
  struct alignas(64) {
    pinrail_registration_t reg;
    Tail tail;
  } own_ = {};
};

// A library may refuse without an errno.
TEST(Refusal, without_an_errno_is_an_error_and_said) {
  static int said;
  pinrail_host_t host{};
  host.help = [](const pinrail_host_t*, const char*, const pinrail_help_arg_t*, size_t) { ++said; };
  EXPECT_TRUE(status_of_refusal(&host, 4096, 0).is(PINRAIL_ERR_ERROR));
  EXPECT_EQ(said, 1);
}

TEST_F(DeviceAddress, is_the_iova_of_a_registration_that_has_one_and_the_address_of_others) {
  for (const uint64_t iova : {kIova, uint64_t{0}}) {
    remotes.clear();
    make(iova);
    const uint64_t base = iova != 0 ? iova : reinterpret_cast<uintptr_t>(memory_);
    char bytes[8] = {};
    EXPECT_EQ(device_write(&registrar_, &own_.reg, 100, bytes, sizeof(bytes)), PINRAIL_SUCCESS);
    EXPECT_EQ(device_read(&registrar_, &own_.reg, kPage, bytes, sizeof(bytes)), PINRAIL_SUCCESS);
    EXPECT_EQ(remotes, (std::vector<uint64_t>{base + 100, base + kPage}));
  }
}

}  // namespace
}  // namespace pinrail::verbs

namespace {

// The trial of a device with memory on demand (verbs/V4), beside threads that map memory of their own. The device is a
// double that copies bytes at once.

constexpr size_t kTrialBytes = 8 * 4096;
std::vector<unsigned char*> neighbours;  // what another thread has mapped where the trial had unmapped its memory
bool is_watching = false, has_unmapped_neighbour = false;

}  // namespace

// In place of the C library's. As if another thread came at once: the kernel gives it the addresses that are free now.
extern "C" int munmap(void* at, size_t length) {
  const bool is_neighbour = std::find(neighbours.begin(), neighbours.end(), at) != neighbours.end();
  has_unmapped_neighbour = has_unmapped_neighbour || is_neighbour;
  const int result = is_neighbour ? 0 : static_cast<int>(syscall(SYS_munmap, at, length));
  if (!is_watching || is_neighbour || length != kTrialBytes) return result;
  void* const there =
      mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (there != at) return result;
  std::memset(there, 0x5a, length);
  neighbours.push_back(static_cast<unsigned char*>(there));
  return result;
}

namespace pinrail::verbs {

namespace {

int copy_bytes(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  auto* const local = reinterpret_cast<void*>(request->sg_list->addr);         // NOLINT(performance-no-int-to-ptr)
  auto* const remote = reinterpret_cast<void*>(request->wr.rdma.remote_addr);  // NOLINT(performance-no-int-to-ptr)
  const bool is_write = request->opcode == IBV_WR_RDMA_WRITE;
  std::memcpy(is_write ? remote : local, is_write ? local : remote, request->sg_list->length);
  last_operation = request->wr_id;
  return 0;
}
int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes, size_t) {
  attributes->odp_caps.general_caps = IBV_ODP_SUPPORT;
  attributes->odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  return 0;
}

int dereg_mr(ibv_mr*) { return 0; }

TEST(OdpTrial, leaves_memory_alone_that_others_map_meanwhile) {
  verbs_context extended{};
  extended.sz = sizeof(extended);
  extended.query_device_ex = query_device_ex;
  extended.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  extended.context.ops.post_send = copy_bytes;
  extended.context.ops.poll_cq = poll_cq;
  ibv_qp qp{};
  ibv_cq cq{};
  qp.context = cq.context = &extended.context;
  Settings settings{};
  settings.odp = Odp::automatic;
  Registrar registrar(nullptr, settings);
  registrar.limits.granularity = kTrialBytes / 8;
  registrar.context = &extended.context;
  registrar.library.reg_mr = reg_mr;
  registrar.library.dereg_mr = dereg_mr;
  {
    Guard guard(registrar.transfer);
    registrar.loopback.qp = &qp;
    registrar.loopback.cq = &cq;
  }
  is_watching = true;
  EXPECT_TRUE(choose_odp(&registrar).ok());
  is_watching = false;
  EXPECT_EQ(registrar.limits.on_demand, PINRAIL_ON_DEMAND_EXPLICIT);
  ASSERT_FALSE(neighbours.empty());
  EXPECT_FALSE(has_unmapped_neighbour);
  const std::vector<unsigned char> expected(kTrialBytes, 0x5a);
  for (const unsigned char* each : neighbours) EXPECT_EQ(std::memcmp(each, expected.data(), kTrialBytes), 0);
}

}  // namespace

// F1: a forked child does not have the device that the registrar has opened, because the device's descriptor keeps
// pinned what the parent has registered, also when the parent has ended. The device is a double; its descriptor is
// /dev/null's.

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
  context->async_fd = eventfd(0, EFD_CLOEXEC);  // as the kernel's, of the inode that all such files have
  // As another thread of the program.
  if (forks_wanted-- > 0) waitpid(fork_and_leave(), nullptr, 0);
  return context;
}
int close_device_double(ibv_context* context) {
  close(context->cmd_fd);
  close(context->async_fd);
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

namespace {

class DeviceFork : public testing::Test {
 protected:
  DeviceFork() { opened = forks_wanted = 0; }
  static bool is_open_in_child(int number) {
    return test::exit_status_of([=] { return fcntl(number, F_GETFD) >= 0 ? 1 : 0; }) == 1;
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

// What a daemon writes to its standard error would be a command to the device.
TEST_F(DeviceFork, it_takes_no_number_of_standard_streams_that_the_program_closed) {
  const int status = test::exit_status_of([this] {
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(number);
    if (!open_device(&registrar_, nullptr, &max_length_).ok()) return 1;
    return registrar_.context->cmd_fd > STDERR_FILENO && registrar_.context->async_fd > STDERR_FILENO ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
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

TEST_F(DeviceFork, a_number_that_the_program_has_given_to_an_event_of_its_own_is_left_open) {
  ASSERT_TRUE(open_device(&registrar_, nullptr, &max_length_).ok());
  const int number = registrar_.context->async_fd, own = eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(dup3(own, number, O_CLOEXEC), number);
  close(own);
  EXPECT_TRUE(is_open_in_child(number));
  close_device(&registrar_);
  EXPECT_EQ(close(number), 0);
}

// Nor does it write to that number, as it does to destroy a queue pair.
TEST_F(DeviceFork, a_number_that_the_program_has_given_to_its_own_file_is_not_written_to) {
  static int written_to;
  written_to = -2;
  ASSERT_TRUE(open_device(&registrar_, nullptr, &max_length_).ok());
  ibv_qp qp{};
  qp.context = registrar_.context;
  registrar_.library.destroy_qp = [](ibv_qp* of) {
    written_to = of->context->cmd_fd;
    return 0;
  };
  {
    Guard guard(registrar_.transfer);
    registrar_.loopback.qp = &qp;
  }
  const int number = registrar_.context->cmd_fd, own = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup3(own, number, O_CLOEXEC), number);
  close(own);
  close_device(&registrar_);
  EXPECT_EQ(written_to, -1);
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
