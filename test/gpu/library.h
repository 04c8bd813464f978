// SPDX-License-Identifier: BSD-3-Clause
// library.h - what the programs that are two processes have in common: the socket between them, a library, a pool.
//
// Threads  one.
#ifndef PINRAIL_TEST_GPU_HOUSE_H
#define PINRAIL_TEST_GPU_HOUSE_H

#include <pinrail/pinrail.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace pinrail::gpu_test {

// False: the other one has ended.
inline bool send_all(int socket, const void* data, size_t length) {
  return send(socket, data, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
}
inline bool receive_all(int socket, void* data, size_t length) {
  return recv(socket, data, length, MSG_WAITALL) == static_cast<ssize_t>(length);
}

// This process and a child that runs the body with its end of a socket and then ends with what that returns. Each has
// its own end alone, so that a thread that waits for a dead one notices.
class TwoProcesses {
 public:
  template <typename Body>
  explicit TwoProcesses(Body&& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      close(ends[0]);
      const int code = body(ends[1]);
      close(ends[1]);
      exit(code);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  int socket() const { return socket_; }
  // To be called once. What the two come to: 77 if the child has no driver, this one's code if that is not 0, else the
  // child's.
  int end(int code) const {
    close(socket_);
    int status = -1;
    if (child_ < 0 || waitpid(child_, &status, 0) != child_ || !WIFEXITED(status)) return code != 0 ? code : 1;
    return WEXITSTATUS(status) == 77 || code == 0 ? WEXITSTATUS(status) : code;
  }

 private:
  int socket_ = -1;
  pid_t child_ = -1;
};

inline bool initialise(const std::vector<pinrail_setting_t>& settings) {
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings.data();
  options.setting_count = settings.size();
  return pinrail_init(&options) == PINRAIL_SUCCESS;
}

// On the registrar cuda_ipc; NULL: the library has said why not.
inline pinrail_mpool_t* make_pool(const char* mpool, int64_t leave_pinned, int64_t size_limit) {
  pinrail_registrar_choice_t registrar{};
  registrar.name = "cuda_ipc";
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = leave_pinned;
  options.size_limit = size_limit;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create(mpool, &registrar, nullptr, &options, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

inline void* pointer_of(unsigned long long address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
}

}  // namespace pinrail::gpu_test

#endif
