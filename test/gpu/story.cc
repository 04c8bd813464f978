// SPDX-License-Identifier: BSD-3-Clause
// story - what the driver does when memory that a peer has open is freed and its address given out again: 32 KiB freed,
// 64 KiB allocated, the old mapping still open. Two processes; prints one JSON object. story [--double]
#include <pinrail/pinrail.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "test/gpu/driver.h"

using namespace pinrail::gpu_test;

namespace {

constexpr size_t kFirst = 32 << 10, kSecond = 64 << 10;
constexpr int kOpens = 200;

struct Told {
  CUdeviceptr base;
  CUipcMemHandle handle;
};

// The exporter: each step when the importer says so.
int tell(const Driver& driver, int socket) {
  const char* why = "";
  Told first{}, second{};
  char go = 0;
  bool well = driver.start(&why) && driver.alloc(&first.base, kFirst) == CUDA_SUCCESS &&
              driver.get_handle(&first.handle, first.base) == CUDA_SUCCESS;
  well = well && send(socket, &first, sizeof(first), 0) == sizeof(first) && recv(socket, &go, 1, 0) == 1;
  well = well && driver.free(first.base) == CUDA_SUCCESS && driver.alloc(&second.base, kSecond) == CUDA_SUCCESS &&
         driver.get_handle(&second.handle, second.base) == CUDA_SUCCESS;
  well = well && send(socket, &second, sizeof(second), 0) == sizeof(second) && recv(socket, &go, 1, 0) == 1;
  return well ? 0 : 1;
}

double open_and_close_ns(const Driver& driver, const CUipcMemHandle& handle) {
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < kOpens; ++i) {
    CUdeviceptr at = 0;
    if (driver.open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return -1;
    if (driver.close(at) != CUDA_SUCCESS) return -1;
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - before;
  return spent.count() / kOpens;
}

int listen(const Driver& driver, int socket) {
  const char* why = "";
  Told first{}, second{};
  CUdeviceptr old_one = 0, again = 0, new_one = 0;
  const char go = 'g';
  if (!driver.start(&why) || recv(socket, &first, sizeof(first), MSG_WAITALL) != sizeof(first)) return 77;
  const double cost = open_and_close_ns(driver, first.handle);
  const CUresult opened = driver.open(&old_one, first.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const CUresult opened_again = driver.open(&again, first.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (opened_again == CUDA_SUCCESS) driver.close(again);
  if (send(socket, &go, 1, 0) != 1 || recv(socket, &second, sizeof(second), MSG_WAITALL) != sizeof(second)) return 1;
  const CUresult stale = driver.open(&new_one, second.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (stale == CUDA_SUCCESS) driver.close(new_one);
  const CUresult closed = driver.close(old_one);
  const CUresult after = driver.open(&new_one, second.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (after == CUDA_SUCCESS) driver.close(new_one);
  const CUresult dead = driver.open(&again, first.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (dead == CUDA_SUCCESS) driver.close(again);
  std::printf(
      "{\"open\": %d, \"open_again\": %d, \"open_again_same_address\": %s, \"second_has_the_same_base\": %s, "
      "\"open_second_while_first_is_open\": %d, \"close_first\": %d, \"open_second_then\": %d, "
      "\"open_first_then\": %d, \"open_and_close_ns\": %.0f}\n",
      opened, opened_again, again == old_one ? "true" : "false", first.base == second.base ? "true" : "false", stale,
      closed, after, dead, cost);
  return send(socket, &go, 1, 0) == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Driver driver;
  const char* why = "";
  const bool is_double = argc == 2 && std::strcmp(argv[1], "--double") == 0;
  if (argc > 1 && !is_double) {
    std::fprintf(stderr, "usage: story [--double]\n");
    return 2;
  }
  if (!driver.load(is_double, &why)) {
    std::fprintf(stderr, "story: no CUDA driver here: %s\n", why);
    return 77;
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  const pid_t child = fork();  // before the driver is started
  if (child == 0) return tell(driver, sockets[1]);
  close(sockets[1]);
  const int code = listen(driver, sockets[0]);
  close(sockets[0]);
  int status = -1;
  waitpid(child, &status, 0);
  return code != 0 ? code : (status == 0 ? 0 : 1);
}
