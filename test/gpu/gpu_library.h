// SPDX-License-Identifier: BSD-3-Clause
// gpu_library.h - an initialised library over the driver double, memory of peers that are made up, and peers that are
// processes of their own.
#ifndef PINRAIL_TEST_GPU_GPU_LIBRARY_H
#define PINRAIL_TEST_GPU_GPU_LIBRARY_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <type_traits>

#include "base/slots/segment.h"
#include "base/slots/slots.h"
#include "framework/mpool/gpu_pool.h"
#include "test/fake/cuda/cuda_double.h"
#include "test/support/files.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {

inline slots::Process own_process() {
  slots::Process self;
  EXPECT_TRUE(slots::this_process(&self).ok());
  return self;
}

// Memory of a peer of that pid, and its block, as gpusm would make it, but without a validity slot.
class PeerMemory {
 public:
  PeerMemory(uint32_t pid, uint64_t base, size_t bytes) : pid_(pid), base_(base) { allocate(bytes); }
  ~PeerMemory() { free(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // The owner frees it, and has other memory there.
  void replace(size_t bytes) {
    free();
    allocate(bytes);
  }
  void free() {
    if (live_) {
      EXPECT_EQ(cuda_double_foreign_free(pid_, base_), CUDA_SUCCESS);
    }
    live_ = false;
  }

  pinrail_gpu_block_t block{};

 private:
  void allocate(size_t bytes) {
    const slots::Process self = own_process();
    CUipcMemHandle handle;
    block = {};
    EXPECT_EQ(cuda_double_foreign_alloc(pid_, base_, bytes, &handle, &block.buffer_id), CUDA_SUCCESS);
    block.kind = PINRAIL_GPU_IPC;
    block.pid = pid_;
    block.user = self.user;
    block.start = self.start;
    block.machine = self.machine;
    block.base = base_;
    block.length = bytes;
    std::memcpy(block.driver, &handle, sizeof(handle));
    seal_block(&block);
    live_ = true;
  }
  const uint32_t pid_;
  const uint64_t base_;
  bool live_ = false;
};

// The slots of the block's exporter, as a peer maps them.
class PeersSlots : public slots::Importer {
 public:
  explicit PeersSlots(const pinrail_gpu_block_t& block) {
    is_open = open(block.user, block.pid, block.start, block.segment).ok();
  }
  bool is_open;
};
// Whether a peer that has the block may use it.
inline bool is_alive(const pinrail_gpu_block_t& block) {
  const PeersSlots slots(block);
  return slots.is_open && slots::is_alive(slots.word(block.slot), block.slot_word);
}
// The memory's block with a slot of that process's exporter.
inline pinrail_gpu_block_t with_slot(const PeerMemory& memory, const slots::Process& of, slots::Exporter* exporter) {
  pinrail_gpu_block_t block = memory.block;
  block.start = of.start;
  block.segment = exporter->segment();
  EXPECT_TRUE(exporter->take(&block.slot, &block.slot_word).ok());
  seal_block(&block);
  return block;
}
// How often this process, whose exporter made the block's slots, has them mapped.
inline size_t times_mapped(const pinrail_gpu_block_t& block) {
  struct stat about {};
  EXPECT_EQ(fstat(slots::file_of(block.segment), &about), 0);
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long inode = 0;
    const bool is_read = std::sscanf(line.c_str(), "%*s %*s %*s %*s %lu", &inode) == 1;  // NOLINT(cert-err34-c)
    if (is_read && inode == about.st_ino && line.find("memfd:pinrail-gpu") != std::string::npos) ++count;
  }
  return count;
}

// A process that lives and does nothing, so that blocks can be of it. It has this process's descriptors, and so
// exporters that are made in its name are its own to others.
class Bystander {
 public:
  Bystander() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    child_ = static_cast<pid_t>(syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child_ == 0) obey(ends[1]);
    orders_ = ends[0];
    theirs_ = ends[1];
    process = own_process();
    process.pid = static_cast<uint32_t>(child_);
    EXPECT_TRUE(slots::read_start(process.pid, &process.start));
  }
  ~Bystander() {
    end();
    ::close(orders_);
    ::close(theirs_);
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  // An exporter in its name.
  bool make(slots::Exporter* exporter, uint32_t count) const { return exporter->create(process, count).ok(); }
  // It keeps the descriptors of now, whatever becomes of this process's.
  bool keep_descriptors() const {
    char answer = 'k';
    return send(orders_, &answer, 1, MSG_NOSIGNAL) == 1 && recv(orders_, &answer, 1, 0) == 1;
  }
  // It becomes another program. Returns when it has.
  bool exec() const {
    if (send(orders_, "e", 1, MSG_NOSIGNAL) != 1) return false;
    return comes_true([&] {
      std::string name;
      std::ifstream("/proc/" + std::to_string(process.pid) + "/comm") >> name;
      return name == "sleep";
    });
  }
  void end() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  slots::Process process;

 private:
  // The child: without the C library's calls, for it is no fork() to sanitizers.
  [[noreturn]] static void obey(int socket) {
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0L, 0L, 0L);  // a test that crashes leaves no process behind
    char order = 0;
    while (syscall(SYS_read, socket, &order, 1L) == 1) {
      const char* const sleep[] = {"/bin/sleep", "600", nullptr};
      if (order == 'e') syscall(SYS_execve, sleep[0], sleep, environ);
      if (syscall(SYS_unshare, CLONE_FILES) != 0) break;
      syscall(SYS_write, socket, &order, 1L);
    }
    for (;;) syscall(SYS_exit_group, 1);
  }
  pid_t child_ = -1;
  int orders_ = -1, theirs_ = -1;
};

// A process that executes orders, one after the other, and answers each. It is forked before anything else
// is done, for the driver does not survive a fork; one for all tests of the program. An answer that did not come has
// the status ERROR.
template <typename Order, typename Answer>
class Peer : public ::testing::Environment {
 public:
  // live(socket) is its life; what that returns is its exit status, which shall be 0.
  static const Peer& for_all_tests(int (*live)(int socket)) {
    auto* const peer = new Peer(live);
    ::testing::AddGlobalTestEnvironment(peer);
    return *peer;
  }
  // The peer's part: obey(order) is its answer. False if the order is unknown.
  template <typename Obey>
  static bool serve(int socket, Obey&& obey) {
    Order order;
    while (recv(socket, &order, sizeof(order), MSG_WAITALL) == ssize_t{sizeof(order)}) {
      const Answer answer = obey(order);
      if (send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != ssize_t{sizeof(answer)}) return false;
    }
    return true;
  }

  void begin(const Order& order) const {
    EXPECT_EQ(send(socket_, &order, sizeof(order), MSG_NOSIGNAL), ssize_t{sizeof(order)});
  }
  Answer end() const {
    Answer answer{};
    answer.status = PINRAIL_ERR_ERROR;
    EXPECT_EQ(recv(socket_, &answer, sizeof(answer), MSG_WAITALL), ssize_t{sizeof(answer)});
    return answer;
  }
  Answer done(const Order& order) const {
    begin(order);
    return end();
  }
  // Looks for a while. That it has not is true however long one looks.
  bool has_answered() const {
    pollfd ready{socket_, POLLIN, 0};
    return poll(&ready, 1, 30) != 0;
  }

  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      ::close(ends[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no process behind
      _exit(live_(ends[1]));
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  void TearDown() override {
    ::close(socket_);
    int how = -1;
    EXPECT_EQ(waitpid(child_, &how, 0), child_);
    EXPECT_EQ(how, 0) << "of the peer";
  }

 private:
  static_assert(std::is_trivially_copyable_v<Order> && std::is_trivially_copyable_v<Answer>, "they go as bytes");
  explicit Peer(int (*live)(int socket)) : live_(live) {}

  int (*const live_)(int socket);
  pid_t child_ = -1;
  int socket_ = -1;
};

// Of GPU memory. Nothing may be referenced at the end.
class GpuPool : public AnyPool {
 public:
  explicit GpuPool(const char* mpool, const PoolOptions& wanted = {}) {
    pinrail_registrar_choice_t registrar{};
    registrar.name = "cuda_ipc";
    make(mpool, registrar, wanted);
  }
  GpuPool(const char* mpool, const pinrail_registrar_t& table, const PoolOptions& wanted = {}) {
    make(mpool, lend(table), wanted);
  }
  ~GpuPool() { EXPECT_EQ(close(), PINRAIL_SUCCESS); }

  pinrail_status_t open(const pinrail_gpu_block_t& block, pinrail_handle_t* handle_out, uint32_t flags = 0) const {
    return pinrail_mpool_register_remote(pool_, &block, 0, block.length, 0, flags, handle_out);
  }
  // What comes of a block that is to be refused.
  pinrail_status_t answer_to(const pinrail_gpu_block_t& block) const {
    pinrail_handle_t handle{};
    const pinrail_status_t answer = open(block, &handle);
    EXPECT_EQ(handle.reg, nullptr);
    return answer;
  }
  pinrail_handle_t must(const pinrail_gpu_block_t& block) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(open(block, &handle), PINRAIL_SUCCESS);
    return handle;
  }
  Held hold(const pinrail_gpu_block_t& block) const { return Held(must(block)); }
  void use(const pinrail_gpu_block_t& block) const { drop(must(block)); }
  // The block of local memory.
  pinrail_gpu_block_t block_of(void* at, size_t length) const {
    pinrail_gpu_block_t block{};
    size_t offset = 0;
    EXPECT_EQ(pinrail_mpool_export(pool_, at, length, &block, &offset), PINRAIL_SUCCESS);
    return block;
  }
  // How many registrations are.
  size_t referenced() const { return pool_->ops->referenced(pool_->module); }
};

// A library whose pools have no thread that looks around, so that calls of the driver can be counted.
inline Settings without_threads(const Settings& more = {}) {
  return with({{"mpool_gpusm_gc_interval", "0"}, {"mpool_rgpusm_gc_interval", "0"}}, more);
}

}  // namespace pinrail::test

#endif
