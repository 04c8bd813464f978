// SPDX-License-Identifier: BSD-3-Clause
// Events and streams: what one process records, another one's streams wait for.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/double_transport.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

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
  *event_out = new CUevent_st{std::move(memory), contexts().back()->device, flags, id, descriptor};
  in->events.insert(*event_out);
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
  *event_out = new CUevent_st{std::move(memory), contexts().back()->device, kShareable, wire.id, -1};
  in->events.insert(*event_out);
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
    const auto self = static_cast<uint32_t>(getpid());
    const Wire wire = {kEventMagic, self, this_owner(), event->descriptor, event->id, 0, sizeof(SharedEvent)};
    std::memset(handle, 0, sizeof(*handle));
    std::memcpy(handle, &wire, sizeof(wire));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  return call("cuIpcOpenEventHandle", [&](State& in) {
    if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
    Wire wire;
    std::memcpy(&wire, &handle, sizeof(wire));
    return open_handle(&in, wire, event);
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
