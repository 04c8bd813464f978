// SPDX-License-Identifier: BSD-3-Clause
// Start, devices and contexts.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/toolkit/cuda.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

namespace {

size_t number_of(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): at start-up
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

// "function:n:error" or "function:n:error:every"
void read_order(State* in) {
  const char* text = std::getenv("CUDA_DOUBLE_FAIL");  // NOLINT(concurrency-mt-unsafe): at start-up
  if (text == nullptr) return;
  const std::string order = text;
  const size_t first = order.find(':'), second = order.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return;
  in->orders[order.substr(0, first)] = {std::strtoull(order.c_str() + first + 1, nullptr, 10),
                                        static_cast<CUresult>(std::atoi(order.c_str() + second + 1)),
                                        order.find(":every", second) != std::string::npos};
}

constexpr int kVersion = 13000;  // 13.0

bool is_device(CUdevice device) { return device >= 0 && device < state().devices; }

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  State& in = state();
  Lock lock(in.mutex);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (in.initialised) return CUDA_SUCCESS;
  in.devices = static_cast<int>(number_of("CUDA_DOUBLE_DEVICES", 1));
  in.limit = number_of("CUDA_DOUBLE_MEMORY", SIZE_MAX);
  in.has_ipc = std::getenv("CUDA_DOUBLE_NO_IPC") == nullptr;  // NOLINT(concurrency-mt-unsafe): at start-up
  in.granularity = number_of("CUDA_DOUBLE_GRANULARITY", kGranularity);
  in.has_fabric = std::getenv("CUDA_DOUBLE_FABRIC") != nullptr;     // NOLINT(concurrency-mt-unsafe): at start-up
  in.has_dmabuf = std::getenv("CUDA_DOUBLE_NO_DMABUF") == nullptr;  // NOLINT(concurrency-mt-unsafe): at start-up
  if (in.devices <= 0 || in.devices > kMaxDevices) return CUDA_ERROR_NO_DEVICE;
  for (int i = 0; i < in.devices; ++i) in.primary[i].device = i;
  read_order(&in);
  in.initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](State& in) {
    *count = in.devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call("cuDeviceGet", [&](State&) {
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid", [&](State&) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(uuid->bytes, 0x40 + device, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return call("cuDeviceGetAttribute", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
      case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: *value = in.has_ipc ? 1 : 0; break;
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = in.has_fabric ? 1 : 0; break;
      case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = in.has_dmabuf ? 1 : 0; break;
      default: *value = 0; break;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return call("cuDevicePrimaryCtxRetain", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    ++in.primary[device].references;
    if (!std::exchange(in.primary[device].is_active, true)) in.primary[device].id = in.next_id++;
    *context = &in.primary[device];
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return call("cuDevicePrimaryCtxRelease", [&](State& in) {
    if (!is_device(device) || in.primary[device].references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--in.primary[device].references == 0) in.end_context(device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = in.primary[device].is_active ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

// cuDevicePrimaryCtxReset and cuCtxDestroy, see below. Who retained the context has it retained still.
HIDDEN CUresult cuda_double_reset(CUdevice device) {
  return call("cuDevicePrimaryCtxReset", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    in.end_context(device);
    return CUDA_SUCCESS;
  });
}

// Primary ones are all that there are, and they are not destroyed so.
HIDDEN CUresult cuda_double_ctx_destroy(CUcontext) {
  return call("cuCtxDestroy", [](State&) { return CUDA_ERROR_INVALID_CONTEXT; });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return call("cuCtxPushCurrent", [&](State&) {
    if (context == nullptr || context->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    contexts().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return call("cuCtxPopCurrent", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = contexts().back();
    contexts().pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return call("cuCtxSetCurrent", [&](State&) {
    if (!no_context()) contexts().pop_back();
    if (context != nullptr) contexts().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return call("cuCtxGetCurrent", [&](State&) {
    *context = no_context() ? nullptr : contexts().back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  return call("cuCtxGetId", [&](State&) {
    if (context == nullptr && no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context == nullptr) context = contexts().back();
    if (!context->is_active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return call("cuCtxGetDevice", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = contexts().back()->device;
    return CUDA_SUCCESS;
  });
}

void cuda_double_fail(const char* function, uint64_t nth, CUresult error, int every) {
  Lock lock(state().mutex);
  state().orders[function] = {nth, error, every != 0};
}

uint64_t cuda_double_calls(const char* function) {
  Lock lock(state().mutex);
  return state().calls[function];
}

void cuda_double_forget(void) {
  Lock lock(state().mutex);
  state().calls.clear();
  state().orders.clear();
}

size_t cuda_double_context_depth(void) { return contexts().size(); }

size_t cuda_double_used(void) {
  Lock lock(state().mutex);
  return state().used;
}

// As in the driver, what this gives may be another function than the symbol of that name, and cuInit need not come
// first.
CUresult cuGetProcAddress(const char* name, void** function_out, int, uint64_t) {
  *function_out = std::strcmp(name, "cuMemFree") == 0 ? reinterpret_cast<void*>(&cuda_double_free_by_table) : nullptr;
  return *function_out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

PATCHABLE("cuDevicePrimaryCtxReset_v2", "cuda_double_reset");
PATCHABLE("cuCtxDestroy_v2", "cuda_double_ctx_destroy");

// Events and streams: what one process records, another one's streams wait for.

namespace {

constexpr unsigned kShareable = unsigned{CU_EVENT_INTERPROCESS} | unsigned{CU_EVENT_DISABLE_TIMING};

std::shared_ptr<SharedEvent> map_event(int descriptor) {
  void* at = mmap(nullptr, sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<SharedEvent*>(at), [](SharedEvent* mapped) { munmap(mapped, sizeof(*mapped)); }};
}

bool is_event(const State& in, CUevent event) { return in.events.count(event) != 0; }

// What an event of others may not be used for any more.
CUresult check_event(const State& in, CUevent event) {
  if (!is_event(in, event)) return CUDA_ERROR_INVALID_HANDLE;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return event->shared->is_destroyed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult create(State* in, CUevent* event_out, unsigned flags) {
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const bool shared = (flags & unsigned{CU_EVENT_INTERPROCESS}) != 0;
  if (shared && (flags & kShareable) != kShareable) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t id = in->next_id++;
  const int descriptor = make_memory(id, sizeof(SharedEvent));
  if (descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = map_event(descriptor);
  if (memory == nullptr) {
    close(descriptor);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *event_out = in->add({std::move(memory), contexts().back()->device, flags, id, descriptor});
  return CUDA_SUCCESS;
}

CUresult open_handle(State* in, const Wire& wire, CUevent* event_out) {
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (wire.magic != kEventMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (wire.owner == this_owner()) return CUDA_ERROR_INVALID_CONTEXT;
  const int descriptor = fetch(wire);
  if (descriptor < 0) return CUDA_ERROR_INVALID_HANDLE;
  auto memory = map_event(descriptor);
  close(descriptor);
  if (memory == nullptr) return CUDA_ERROR_MAP_FAILED;
  *event_out = in->add({std::move(memory), contexts().back()->device, kShareable, wire.id, -1});
  return CUDA_SUCCESS;
}

void finish(const Mark& mark) {
  uint64_t done = mark.event->done;
  while (done < mark.number && !mark.event->done.compare_exchange_weak(done, mark.number)) {
  }
}

bool is_done(const Mark& mark) { return mark.event->done >= mark.number; }

bool is_done(Stream* stream) {
  auto& marks = stream->waits_for;
  marks.erase(std::remove_if(marks.begin(), marks.end(), [](const Mark& mark) { return is_done(mark); }), marks.end());
  return !stream->works && marks.empty();
}

const void* first_or(CUstream stream) {
  return stream != nullptr ? static_cast<const void*>(stream) : &state().primary[0];
}

}  // namespace

namespace pinrail::cuda_double {

const void* stream_name(CUstream stream) {
  return stream != nullptr ? static_cast<const void*>(stream) : contexts().back();
}

// Another process may end it, so it is looked at again and again; for a minute at most, as at a gate.
void await(State* in, CUstream stream) {
  const void* const name = stream_name(stream);
  for (int i = 0; i < 60000 && !is_done(&in->streams[name]); ++i) {
    in->mutex.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    in->mutex.lock();
  }
}

}  // namespace pinrail::cuda_double

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return call("cuEventCreate", [&](State& in) { return create(&in, event, flags); });
}

CUresult cuEventDestroy(CUevent event) {
  return call("cuEventDestroy", [&](State& in) {
    const auto found = in.events.find(event);
    if (found == in.events.end()) return CUDA_ERROR_INVALID_HANDLE;
    in.end(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent event) {
  return call("cuEventQuery", [&](State& in) {
    const CUresult checked = check_event(in, event);
    if (checked != CUDA_SUCCESS) return checked;
    return is_done(Mark{event->shared, event->shared->recorded}) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return call("cuEventRecord", [&](State& in) {
    const CUresult checked = check_event(in, event);
    if (checked != CUDA_SUCCESS) return checked;
    if (stream == nullptr && contexts().back()->device != event->device) return CUDA_ERROR_INVALID_HANDLE;
    const Mark mark = {event->shared, ++event->shared->recorded};
    Stream& on = in.streams[stream_name(stream)];
    if (on.works) {
      on.recorded.push_back(mark);
    } else {
      await(&in, stream);
      finish(mark);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return call("cuStreamWaitEvent", [&](State& in) {
    const CUresult checked = check_event(in, event);
    if (checked != CUDA_SUCCESS) return checked;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    in.streams[stream_name(stream)].waits_for.push_back({event->shared, event->shared->recorded});
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  return call("cuStreamSynchronize", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    await(&in, stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return call("cuStreamCreate", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = new CUstream_st{contexts().back()->device};
    in.made_streams.insert(*stream);
    return CUDA_SUCCESS;
  });
}

// The driver returns at once and lets the work end; here the caller waits for it.
CUresult cuStreamDestroy(CUstream stream) {
  return call("cuStreamDestroy", [&](State& in) {
    if (in.made_streams.count(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    await(&in, stream);
    in.streams.erase(stream);
    in.made_streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return call("cuIpcGetEventHandle", [&](State& in) {
    if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
    const bool shareable = is_event(in, event) && event->flags == kShareable && event->descriptor >= 0;
    if (!shareable) return CUDA_ERROR_INVALID_HANDLE;
    send_by(handle, wire_of(kEventMagic, event->descriptor, event->id, 0, sizeof(SharedEvent)));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  return call("cuIpcOpenEventHandle", [&](State& in) {
    if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
    return open_handle(&in, received_by(handle), event);
  });
}

size_t cuda_double_open_events(void) {
  const Lock lock(state().mutex);
  return state().events.size();
}

void cuda_double_begin_work(CUstream stream) {
  const Lock lock(state().mutex);
  state().streams[first_or(stream)].works = true;
}

void cuda_double_end_work(CUstream stream) {
  const Lock lock(state().mutex);
  Stream& ended = state().streams[first_or(stream)];
  ended.works = false;
  for (const Mark& mark : ended.recorded) finish(mark);
  ended.recorded.clear();
}

}  // extern "C"
