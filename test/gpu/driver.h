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
#include <type_traits>
#include <vector>

#include "config.h"
#include "test/fake/cuda/cuda_for_tests.h"

namespace pinrail::gpu_test {

// By the driver's names: what every driver has; what not too old ones have for kinds of memory and for events; a reset.
// clang-format off
#define PINRAIL_GPU_FUNCTIONS(needed, kinds, events, resets) \
  needed(init, cuInit) needed(retain, cuDevicePrimaryCtxRetain) needed(push, cuCtxPushCurrent) \
  needed(alloc, cuMemAlloc) needed(free, cuMemFree) needed(info, cuMemGetInfo) \
  needed(read, cuMemcpyDtoH) needed(write, cuMemcpyHtoD) needed(synchronise, cuCtxSynchronize) \
  needed(get_handle, cuIpcGetMemHandle) needed(open, cuIpcOpenMemHandle) needed(close, cuIpcCloseMemHandle) \
  kinds(attributes, cuPointerGetAttributes) kinds(granularity, cuMemGetAllocationGranularity) \
  kinds(create, cuMemCreate) kinds(release, cuMemRelease) kinds(reserve, cuMemAddressReserve) \
  kinds(give_back, cuMemAddressFree) kinds(map, cuMemMap) kinds(unmap, cuMemUnmap) kinds(set_access, cuMemSetAccess) \
  kinds(create_pool, cuMemPoolCreate) kinds(destroy_pool, cuMemPoolDestroy) \
  kinds(alloc_from_pool, cuMemAllocFromPoolAsync) kinds(free_async, cuMemFreeAsync) kinds(wait, cuStreamSynchronize) \
  events(create_event, cuEventCreate) events(destroy_event, cuEventDestroy) events(record, cuEventRecord) \
  events(wait_for, cuStreamWaitEvent) events(get_event_handle, cuIpcGetEventHandle) \
  events(open_event, cuIpcOpenEventHandle) \
  resets(reset, cuDevicePrimaryCtxReset) resets(current, cuCtxGetCurrent)
// clang-format on

struct Driver {
#define PINRAIL_FIELD(field, name) decltype(&::name) field = nullptr;
  PINRAIL_GPU_FUNCTIONS(PINRAIL_FIELD, PINRAIL_FIELD, PINRAIL_FIELD, PINRAIL_FIELD)
#undef PINRAIL_FIELD
  // All functions of that group are there; else those that are not are NULL.
  bool has_kinds = true, has_events = true, has_reset = true;
  size_t (*open_handles)() = nullptr;  // the double's alone

  // The double is loaded by its path; later dlopens of "libcuda.so.1" get it. False: there is no driver, which it has
  // said in the program's name.
  bool load(const char* program, bool is_double);
  // In this process: started, with the first GPU's context current.
  bool start(const char** why_out) const;
  // Writes, and waits until the bytes are where another process may read them: the driver's copy from pageable memory
  // returns when the bytes are staged, and the GPU may not have them yet.
  bool put(CUdeviceptr at, const void* bytes, size_t length) const {
    return write(at, bytes, length) == CUDA_SUCCESS && synchronise() == CUDA_SUCCESS;
  }
};

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

inline const char* text_of(bool is) { return is ? "true" : "false"; }

inline void* pointer_of(unsigned long long address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
}

inline bool Driver::load(const char* program, bool is_double) {
  void* const library =
      dlopen(is_double ? PINRAIL_TEST_BUILD "/test/fake/.libs/libcuda.so.1" : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const char* lacking = library == nullptr ? dlerror() : nullptr;  // NOLINT(concurrency-mt-unsafe): one thread
  const auto look_up = [&](auto* field_out, const char* name) {
    if (library != nullptr)
      *field_out = reinterpret_cast<std::remove_pointer_t<decltype(field_out)>>(dlsym(library, name));
    return *field_out != nullptr;
  };
#define PINRAIL_NAME(name) #name  // of a function, which the header may have given another version
#define PINRAIL_NEEDED(field, name) \
  if (!look_up(&(field), PINRAIL_NAME(name)) && lacking == nullptr) lacking = PINRAIL_NAME(name);
#define PINRAIL_OF_KINDS(field, name) has_kinds &= look_up(&(field), PINRAIL_NAME(name));
#define PINRAIL_OF_EVENTS(field, name) has_events &= look_up(&(field), PINRAIL_NAME(name));
#define PINRAIL_OF_RESETS(field, name) has_reset &= look_up(&(field), PINRAIL_NAME(name));
  PINRAIL_GPU_FUNCTIONS(PINRAIL_NEEDED, PINRAIL_OF_KINDS, PINRAIL_OF_EVENTS, PINRAIL_OF_RESETS)
  has_reset &= attributes != nullptr;
  look_up(&open_handles, "cuda_double_open_handles");
  if (lacking != nullptr) std::fprintf(stderr, "%s: no CUDA driver here: %s\n", program, lacking);
  return lacking == nullptr;
}

inline bool Driver::start(const char** why_out) const {
  CUcontext context = nullptr;
  *why_out = "the driver does not start, or there is no GPU";
  return init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS && push(context) == CUDA_SUCCESS;
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
