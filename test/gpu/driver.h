// SPDX-License-Identifier: BSD-3-Clause
// driver.h - the CUDA driver, real or the double, for programs that are two processes, and what these
// programs share.
//
// Threads  one.
#ifndef PINRAIL_TEST_GPU_DRIVER_H
#define PINRAIL_TEST_GPU_DRIVER_H

#include <dlfcn.h>
#include <pinrail/pinrail.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "config.h"
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

#define PINRAIL_NAME(name) #name
#define PINRAIL_LOOK_UP(field, name) \
  ((field) = reinterpret_cast<decltype(field)>(dlsym(library, PINRAIL_NAME(name)))) != nullptr

inline bool Driver::load(const char* program, bool is_double) {
  const char* why = "";
  const bool loaded = look_up_all(is_double, &why);
  if (!loaded) std::fprintf(stderr, "%s: no CUDA driver here: %s\n", program, why);
  return loaded;
}

inline bool Driver::look_up_all(bool is_double, const char** why_out) {
  void* library =
      dlopen(is_double ? PINRAIL_TEST_BUILD "/test/fake/.libs/libcuda.so.1" : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why_out = dlerror();
    return false;
  }
  const bool all = PINRAIL_LOOK_UP(init, cuInit) && PINRAIL_LOOK_UP(retain, cuDevicePrimaryCtxRetain) &&
                   PINRAIL_LOOK_UP(push, cuCtxPushCurrent) && PINRAIL_LOOK_UP(alloc, cuMemAlloc) &&
                   PINRAIL_LOOK_UP(free, cuMemFree) && PINRAIL_LOOK_UP(info, cuMemGetInfo) &&
                   PINRAIL_LOOK_UP(read, cuMemcpyDtoH) && PINRAIL_LOOK_UP(write, cuMemcpyHtoD) &&
                   PINRAIL_LOOK_UP(synchronise, cuCtxSynchronize) && PINRAIL_LOOK_UP(get_handle, cuIpcGetMemHandle) &&
                   PINRAIL_LOOK_UP(open, cuIpcOpenMemHandle) && PINRAIL_LOOK_UP(close, cuIpcCloseMemHandle);
  has_kinds = PINRAIL_LOOK_UP(granularity, cuMemGetAllocationGranularity) && PINRAIL_LOOK_UP(create, cuMemCreate) &&
              PINRAIL_LOOK_UP(release, cuMemRelease) && PINRAIL_LOOK_UP(reserve, cuMemAddressReserve) &&
              PINRAIL_LOOK_UP(give_back, cuMemAddressFree) && PINRAIL_LOOK_UP(map, cuMemMap) &&
              PINRAIL_LOOK_UP(unmap, cuMemUnmap) && PINRAIL_LOOK_UP(set_access, cuMemSetAccess) &&
              PINRAIL_LOOK_UP(create_pool, cuMemPoolCreate) && PINRAIL_LOOK_UP(destroy_pool, cuMemPoolDestroy) &&
              PINRAIL_LOOK_UP(alloc_from_pool, cuMemAllocFromPoolAsync) &&
              PINRAIL_LOOK_UP(free_async, cuMemFreeAsync) && PINRAIL_LOOK_UP(wait, cuStreamSynchronize) &&
              PINRAIL_LOOK_UP(pop, cuCtxPopCurrent) && PINRAIL_LOOK_UP(attributes, cuPointerGetAttributes) &&
              PINRAIL_LOOK_UP(attribute, cuPointerGetAttribute) && PINRAIL_LOOK_UP(range, cuMemGetAddressRange);
  has_events = PINRAIL_LOOK_UP(create_event, cuEventCreate) && PINRAIL_LOOK_UP(destroy_event, cuEventDestroy) &&
               PINRAIL_LOOK_UP(record, cuEventRecord) && PINRAIL_LOOK_UP(wait_for, cuStreamWaitEvent) &&
               PINRAIL_LOOK_UP(get_event_handle, cuIpcGetEventHandle) &&
               PINRAIL_LOOK_UP(open_event, cuIpcOpenEventHandle);
  has_reset = PINRAIL_LOOK_UP(reset, cuDevicePrimaryCtxReset) && PINRAIL_LOOK_UP(current, cuCtxGetCurrent) &&
              attributes != nullptr;
  open_handles = reinterpret_cast<size_t (*)()>(dlsym(library, "cuda_double_open_handles"));
  if (!all) *why_out = "the driver lacks a function";
  return all;
}

inline bool Driver::start(const char** why_out) const {
  CUcontext context = nullptr;
  *why_out = "the driver does not start, or there is no GPU";
  return init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS && push(context) == CUDA_SUCCESS;
}

// The driver's copy from pageable memory returns when the bytes are staged, and the GPU may not have them yet.
inline bool Driver::put(CUdeviceptr at, const void* bytes, size_t length) const {
  return write(at, bytes, length) == CUDA_SUCCESS && synchronise() == CUDA_SUCCESS;
}

inline bool read_double(int argc, char** argv, const char* program, bool* is_double_out) {
  *is_double_out = argc == 2 && std::strcmp(argv[1], "--double") == 0;
  if (argc == 1 || *is_double_out) return true;
  std::fprintf(stderr, "usage: %s [--double]\n", program);
  return false;
}

inline CUmemLocation first_gpu() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return location;
}

inline bool Memory::start() {
  if (kind_ == Kind::ipc) return true;
  if (!driver_.has_kinds) return false;
  physical_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical_.location = first_gpu();
  physical_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (kind_ == Kind::vmm) {
    return driver_.granularity(&unit_, &physical_, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
  }
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = first_gpu();
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return driver_.create_pool(&pool_, &wanted) == CUDA_SUCCESS;
}

inline bool Memory::stop() { return pool_ == nullptr || driver_.destroy_pool(pool_) == CUDA_SUCCESS; }

inline bool Memory::allocate(size_t bytes, CUdeviceptr* at_out) const {
  switch (kind_) {
    case Kind::ipc: return driver_.alloc(at_out, bytes) == CUDA_SUCCESS;
    case Kind::pool:
      return driver_.alloc_from_pool(at_out, bytes, pool_, nullptr) == CUDA_SUCCESS &&
             driver_.wait(nullptr) == CUDA_SUCCESS;
    case Kind::vmm: break;
  }
  return driver_.reserve(at_out, bytes, 0, 0, 0) == CUDA_SUCCESS && map(bytes, *at_out);
}

// The mapping keeps the memory: its handle is released at once.
inline bool Memory::map(size_t bytes, CUdeviceptr at) const {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{};
  access.location = first_gpu();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (driver_.create(&handle, bytes, &physical_, 0) != CUDA_SUCCESS) return false;
  const bool mapped =
      driver_.map(at, bytes, 0, handle, 0) == CUDA_SUCCESS && driver_.set_access(at, bytes, &access, 1) == CUDA_SUCCESS;
  return driver_.release(handle) == CUDA_SUCCESS && mapped;
}

inline bool Memory::free(CUdeviceptr at, size_t bytes) const {
  switch (kind_) {
    case Kind::ipc: return driver_.free(at) == CUDA_SUCCESS;
    case Kind::pool: return driver_.free_async(at, nullptr) == CUDA_SUCCESS && driver_.wait(nullptr) == CUDA_SUCCESS;
    case Kind::vmm: break;
  }
  return driver_.unmap(at, bytes) == CUDA_SUCCESS && driver_.give_back(at, bytes) == CUDA_SUCCESS;
}

}  // namespace pinrail::gpu_test

#endif
