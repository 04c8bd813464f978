// SPDX-License-Identifier: BSD-3-Clause
// driver.h - the CUDA driver, real or the double, for programs that are two processes, and what these
// programs share.
//
// Threads  one.
#ifndef PINRAIL_TEST_GPU_DRIVER_H
#define PINRAIL_TEST_GPU_DRIVER_H

#include <pinrail/pinrail.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "test/fake/cuda/cuda_for_tests.h"

namespace pinrail::gpu_test {

struct Driver {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&::cuCtxPushCurrent) push = nullptr;
  decltype(&::cuMemAlloc) alloc = nullptr;
  decltype(&::cuMemFree) free = nullptr;
  decltype(&::cuMemGetInfo) info = nullptr;
  decltype(&::cuMemcpyDtoH) read = nullptr;
  decltype(&::cuMemcpyHtoD) write = nullptr;  // returns before the bytes are there; see put()
  decltype(&::cuCtxSynchronize) synchronise = nullptr;
  decltype(&::cuIpcGetMemHandle) get_handle = nullptr;
  decltype(&::cuIpcOpenMemHandle) open = nullptr;
  decltype(&::cuIpcCloseMemHandle) close = nullptr;
  // Of drivers that are not too old; NULL: not there.
  decltype(&::cuCtxPopCurrent) pop = nullptr;
  decltype(&::cuPointerGetAttributes) attributes = nullptr;
  decltype(&::cuPointerGetAttribute) attribute = nullptr;
  decltype(&::cuMemGetAddressRange) range = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) give_back = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemPoolCreate) create_pool = nullptr;
  decltype(&::cuMemPoolDestroy) destroy_pool = nullptr;
  decltype(&::cuMemAllocFromPoolAsync) alloc_from_pool = nullptr;
  decltype(&::cuMemFreeAsync) free_async = nullptr;
  decltype(&::cuStreamSynchronize) wait = nullptr;
  bool has_kinds = false;  // all of those
  decltype(&::cuEventCreate) create_event = nullptr;
  decltype(&::cuEventDestroy) destroy_event = nullptr;
  decltype(&::cuEventRecord) record = nullptr;
  decltype(&::cuStreamWaitEvent) wait_for = nullptr;
  decltype(&::cuIpcGetEventHandle) get_event_handle = nullptr;
  decltype(&::cuIpcOpenEventHandle) open_event = nullptr;
  bool has_events = false;  // all six
  decltype(&::cuDevicePrimaryCtxReset) reset = nullptr;
  decltype(&::cuCtxGetCurrent) current = nullptr;
  bool has_reset = false;              // both, and attributes()
  size_t (*open_handles)() = nullptr;  // the double's alone

  // The double is loaded by its path; later dlopens of "libcuda.so.1" get it. False: there is no driver, which it has
  // said in the program's name.
  bool load(const char* program, bool is_double);
  // In this process: started, with the first GPU's context current.
  bool start(const char** why_out) const;
  // Writes, and waits until the bytes are where another process may read them.
  bool put(CUdeviceptr at, const void* bytes, size_t length) const;

 private:
  bool look_up_all(bool is_double, const char** why_out);
};

// The command line of a program that takes --double and nothing else. False: it has said how it is used.
bool read_double(int argc, char** argv, const char* program, bool* is_double_out);

// GPU memory of the kinds that can be exported, by the driver, real or the double.
//
// Threads  one. The driver is started, with a context current.

enum class Kind { ipc, vmm, pool };

class Memory {
 public:
  Memory(const Driver& driver, Kind kind) : driver_(driver), kind_(kind) {}
  // False: the driver has no memory of that kind.
  bool start();
  bool stop();
  // Lengths are multiples of this; 1: any.
  size_t unit() const { return unit_; }
  bool allocate(size_t bytes, CUdeviceptr* at_out) const;
  bool free(CUdeviceptr at, size_t bytes) const;

 private:
  bool map(size_t bytes, CUdeviceptr at) const;

  const Driver& driver_;
  const Kind kind_;
  size_t unit_ = 1;
  CUmemAllocationProp physical_{};
  CUmemoryPool pool_ = nullptr;
};

// What stands in an allocation of that round: every 8 bytes are another number in every other round.

inline uint64_t word_of(uint64_t round, size_t index) { return (round << 32 | index) * 0x9E3779B97F4A7C15u; }

// bytes is a multiple of 8.
inline void fill(std::vector<uint64_t>* words, uint64_t round, size_t bytes) {
  words->resize(bytes / sizeof(uint64_t));
  for (size_t i = 0; i < words->size(); ++i) (*words)[i] = word_of(round, i);
}

// How many of the words, which begin at that index of the allocation, are not that round's.
inline size_t strangers(const std::vector<uint64_t>& words, uint64_t round, size_t first) {
  size_t count = 0;
  for (size_t i = 0; i < words.size(); ++i) count += words[i] != word_of(round, first + i) ? 1 : 0;
  return count;
}

// What the programs that are two processes have in common: the socket between them, a library, a pool.
//
// Threads  one.

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
