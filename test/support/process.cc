// SPDX-License-Identifier: BSD-3-Clause
#include "test/support/process.h"

#include <dirent.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pinrail::test {
namespace {

constexpr unsigned kPatienceSeconds = 300;
constexpr uid_t kFirstOwnUser = 100000;

[[noreturn]] void answer_and_leave(const std::function<ChildAnswer()>& function, int to_parent) {
  alarm(kPatienceSeconds);  // ends this process, and with it the parent's read
  const ChildAnswer answer = function();
  const ssize_t written = write(to_parent, answer.data(), sizeof(answer));
  _exit(written == static_cast<ssize_t>(sizeof(answer)) ? 0 : 1);
}

bool drop_ipc_lock() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  const uint32_t bit = uint32_t{1} << CAP_IPC_LOCK;
  data[0].effective &= ~bit;
  data[0].permitted &= ~bit;
  data[0].inheritable &= ~bit;
  return syscall(SYS_capset, &header, data) == 0;
}

}  // namespace

bool in_child(const std::function<ChildAnswer()>& function, ChildAnswer* answer_out) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) answer_and_leave(function, ends[1]);
  close(ends[1]);
  ChildAnswer answer{};
  const bool answered = child > 0 && read(ends[0], answer.data(), sizeof(answer)) == ssize_t{sizeof(answer)};
  close(ends[0]);
  int status = 0;
  const bool left_well = child > 0 && waitpid(child, &status, 0) == child && status == 0;
  if (answered && left_well) *answer_out = answer;
  return answered && left_well;
}

bool limit_locked_memory(size_t bytes, bool own_user) {
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !drop_ipc_lock()) return false;
  if (!own_user || geteuid() != 0) return true;
  const uid_t user = kFirstOwnUser + static_cast<uid_t>(getpid());
  return setresuid(user, user, user) == 0;
}

bool refuse_system_call(long number, int error) {
  const auto wanted = static_cast<uint32_t>(number);
  const auto answer = SECCOMP_RET_ERRNO | static_cast<uint32_t>(error);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

namespace {

// The number in a line "VmPin:     1024 kB" of /proc/self/status.
uint64_t status_number(const char* key, int radix) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) std::abort();  // without it no test that asks can mean anything
  char line[256];
  uint64_t number = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, key, std::strlen(key)) == 0) number = std::strtoull(line + std::strlen(key), nullptr, radix);
  }
  std::fclose(file);
  return number;
}

}  // namespace

size_t vm_pin_bytes() { return status_number("VmPin:", 10) * 1024; }
size_t vm_lck_bytes() { return status_number("VmLck:", 10) * 1024; }

size_t open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) std::abort();
  size_t count = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder's own
}

bool may_lock(size_t bytes) {
  const uint64_t privileges = status_number("CapEff:", 16);
  rlimit limit{};
  return (privileges >> CAP_IPC_LOCK & 1) != 0 || (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur >= bytes);
}

}  // namespace pinrail::test
