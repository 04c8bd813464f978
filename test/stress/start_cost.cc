// SPDX-License-Identifier: BSD-3-Clause
// What the start costs each process of a job, in system calls of its first thread: init, a pool and the first
// registration, with the default monitors ("make soak"). A call that answers ENOENT is not counted, because the loader
// looks for libraries that are not there in as many folders as its version and the machine have. Fails if there are
// more calls than the argument says; without one, than with all components on x86-64 and glibc.
#include <linux/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "test/support/host_table.h"

namespace {

char buffer[65536];

long trace(long request, pid_t child, unsigned long address, void* data) {
  return syscall(SYS_ptrace, request, child, address, data);
}

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}

// The process that is traced. It starts the library when its parent lets it go on.
[[noreturn]] void start() {
  if (trace(PTRACE_TRACEME, 0, 0, nullptr) != 0 || raise(SIGSTOP) != 0) _exit(77);
  pinrail_mpool_t* const pool = pinrail::test::open_library_with_table({}, register_nothing);
  pinrail_handle_t handle;
  const bool well = pool != nullptr && pinrail_mpool_register(pool, buffer, sizeof(buffer), PINRAIL_ACCESS_LOCAL_WRITE,
                                                              0, &handle) == PINRAIL_SUCCESS;
  _exit(well ? 0 : 1);
}

// Lets the child go on to its next system call, or to that call's end. False: it has ended.
bool go_on(pid_t child, int* status) {
  return trace(PTRACE_SYSCALL, child, 0, nullptr) == 0 && waitpid(child, status, 0) == child && WIFSTOPPED(*status);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned long most = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 430;
  const pid_t child = fork();
  if (child == 0) start();
  int status = 0;
  waitpid(child, &status, 0);
  trace(PTRACE_SETOPTIONS, child, 0,
        reinterpret_cast<void*>(PTRACE_O_TRACESYSGOOD));  // NOLINT(performance-no-int-to-ptr)
  unsigned long calls = 0;
  while (go_on(child, &status)) {
    ptrace_syscall_info call{};
    trace(PTRACE_GET_SYSCALL_INFO, child, sizeof(call), &call);
    if (call.op == PTRACE_SYSCALL_INFO_EXIT && call.exit.rval != -ENOENT) ++calls;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::fprintf(stderr, "start_cost: the child did not start\n");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  std::printf("start_cost: %lu system calls; at most %lu\n", calls, most);
  return calls != 0 && calls <= most ? 0 : 1;
}
