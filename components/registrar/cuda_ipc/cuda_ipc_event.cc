// SPDX-License-Identifier: BSD-3-Clause
// Events: the owner records one on a stream, and a peer's stream waits for it. API context. The registrar's mutex is
// taken for lists and fields only, never across a call of the driver.
#include <unistd.h>

#include "base/core/own_component.h"
#include "components/registrar/cuda_ipc/cuda_ipc.h"
#include "framework/registrar/request.h"

namespace pinrail::cuda_ipc {
namespace {

// Returns whether the error means that a device reset has destroyed the event.
bool is_no_event(CUresult error) { return has_ended(error) || error == CUDA_ERROR_INVALID_HANDLE; }

// While an object of this class exists, the device's context is current. Has its id, for cuda_ipc/I6.
struct EventContext {
  EventContext(Registrar* registrar, int device) : current(registrar, device), result(current.result()) {
    if (result == CUDA_SUCCESS && registrar->cuda.has_context_id) result = registrar->cuda.cuCtxGetId(nullptr, &id);
  }
  const CurrentContext current;
  CUresult result;
  unsigned long long id = 0;  // 0: the driver tells none
};

// of: the id of the context in which it was made or opened.
CUresult destroy(Registrar* registrar, int device, CUevent event, unsigned long long of) {
  const EventContext context(registrar, device);
  if (context.result != CUDA_SUCCESS) return context.result;
  return context.id == of ? registrar->cuda.cuEventDestroy(event) : CUDA_ERROR_INVALID_HANDLE;
}

// A second attempt, because an event that stays is lost for as long as this process lives.
Status destroy_with_retry(Registrar* registrar, int device, CUevent event, unsigned long long of) {
  CUresult error = destroy(registrar, device, event, of);
  if (error != CUDA_SUCCESS && !is_no_event(error)) error = destroy(registrar, device, event, of);
  return is_no_event(error) ? success() : status_of(*registrar, "cuEventDestroy", error);
}

// Takes the idle events in turn, so that events whose work is not done do not hide one whose work is. NULL: none is
// idle.
Event* take_idle(Registrar* registrar, int device) {
  Guard guard(registrar->mutex);
  Events& events = registrar->events[device];
  if (events.idle.empty()) return nullptr;
  events.used.splice(events.used.begin(), events.idle, events.idle.begin());
  return &events.used.front();
}

void put_idle(Registrar* registrar, int device, Event* event) {
  Guard guard(registrar->mutex);
  Events& events = registrar->events[device];
  events.idle.splice(events.idle.end(), events.used, event->self);
}

// Takes an idle event whose recorded work is done; NOT_FOUND if there is none. An event knows only its last record: if
// an event was recorded again for another allocation, a peer that waits for the first record would not wait for it.
Status take_done(Registrar* registrar, int device, const EventContext& context, Event** event_out) {
  Event* const event = take_idle(registrar, device);
  if (event == nullptr) return PINRAIL_ERR_NOT_FOUND;
  const bool is_there = event->context == context.id;
  const CUresult error = is_there ? registrar->cuda.cuEventQuery(event->event) : CUDA_ERROR_INVALID_HANDLE;
  if (error == CUDA_SUCCESS) {
    *event_out = event;
    return success();
  }
  if (is_no_event(error)) {
    Guard guard(registrar->mutex);
    registrar->events[device].used.erase(event->self);
    return PINRAIL_ERR_NOT_FOUND;
  }
  put_idle(registrar, device, event);
  return error == CUDA_ERROR_NOT_READY ? Status(PINRAIL_ERR_NOT_FOUND) : status_of(*registrar, "cuEventQuery", error);
}

// Creates an event with a handle.
Status create_event(Registrar* registrar, int device, const EventContext& context, Event* event_out) {
  constexpr unsigned kFlags = unsigned{CU_EVENT_DISABLE_TIMING} | unsigned{CU_EVENT_INTERPROCESS};
  event_out->context = context.id;
  CUresult error = registrar->cuda.cuEventCreate(&event_out->event, kFlags);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuEventCreate", error);
  error = registrar->cuda.cuIpcGetEventHandle(&event_out->handle, event_out->event);
  if (error == CUDA_SUCCESS) return success();
  destroy_with_retry(registrar, device, event_out->event, context.id).ignore();  // it has reported one that stays
  return status_of(*registrar, "cuIpcGetEventHandle", error);
}

// As create_event(), for one that the registrar keeps.
Status make_event(Registrar* registrar, int device, const EventContext& context, Event** event_out) {
  std::list<Event> made;
  Status status = guarded([&] { made.emplace_front(); });
  if (status.ok()) status = create_event(registrar, device, context, &made.front());
  if (!status.ok()) return status;
  Guard guard(registrar->mutex);
  std::list<Event>& used = registrar->events[device].used;
  used.splice(used.begin(), made);
  used.front().self = used.begin();
  *event_out = &used.front();
  return status;
}

Status take_or_make(Registrar* registrar, int device, Event** event_out) {
  const EventContext context(registrar, device);
  if (context.result != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", context.result);
  const Status taken = take_done(registrar, device, context, event_out);
  return taken.is(PINRAIL_ERR_NOT_FOUND) ? make_event(registrar, device, context, event_out) : taken;
}

bool has_event(const pinrail_gpu_block_t& block) {
  constexpr uint8_t kNone[sizeof(block.event)] = {};
  return std::memcmp(block.event, kNone, sizeof(kNone)) != 0;
}

// Opens the peer's event in the context of the mapping. If another thread opens it at the same time, one of the two is
// destroyed.
Status open_event(Registrar* registrar, Tail* tail, const EventContext& context, CUevent* event_out) {
  {
    Guard guard(registrar->mutex);
    if (tail->peers_context != context.id) tail->peers_event = nullptr;
    *event_out = tail->peers_event;
  }
  if (*event_out != nullptr) return success();
  CUipcEventHandle handle;
  static_assert(sizeof(handle) == sizeof(tail->block.event), "it fits");
  std::memcpy(&handle, tail->block.event, sizeof(handle));
  CUevent opened = nullptr;
  const CUresult error = registrar->cuda.cuIpcOpenEventHandle(&opened, handle);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuIpcOpenEventHandle", error);
  {
    Guard guard(registrar->mutex);
    if (tail->peers_event == nullptr) {
      std::swap(tail->peers_event, opened);
      tail->peers_context = context.id;
    }
    *event_out = tail->peers_event;
  }
  return opened == nullptr ? success() : destroy_with_retry(registrar, tail->device, opened, context.id);
}

// Translates an error of a call with the caller's stream: an invalid handle is the caller's error here.
pinrail_status_t status_of_stream(const Registrar& registrar, const char* call, CUresult error) {
  if (error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_INVALID_CONTEXT) return PINRAIL_ERR_BAD_PARAM;
  return status_of(registrar, call, error).code();
}

}  // namespace

// Takes or makes an event for the tail's device. SUCCESS without an event if none are wanted or the driver has none.
Status take_event(Registrar* registrar, Tail* tail) {
  if (!registrar->has_events) return success();
  Event* event = nullptr;
  const Status status = take_or_make(registrar, tail->device, &event);
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED)) {
    report_no_events(registrar, "it says that it supports none");
    return success();
  }
  if (!status.ok()) return status;
  tail->event = event;
  std::memcpy(tail->block.event, &event->handle, sizeof(event->handle));
  return success();
}

void return_event(Registrar* registrar, Tail* tail) {
  if (tail->event != nullptr) put_idle(registrar, tail->device, std::exchange(tail->event, nullptr));
}

Status close_peers_event(Registrar* registrar, Tail* tail) {
  CUevent const event = std::exchange(tail->peers_event, nullptr);
  return event == nullptr ? success() : destroy_with_retry(registrar, tail->device, event, tail->peers_context);
}

void report_no_events(Registrar* registrar, const char* why) {
  if (registrar->events_reported.test_and_set()) return;
  show(registrar->component->host, "no events", {{"why", why}});
}

void forget_events(Registrar* registrar) {
  Guard guard(registrar->mutex);
  for (Events& events : registrar->events) events.used.splice(events.used.begin(), events.idle);
}

void destroy_events(Registrar* registrar) {
  for (int device = 0; device < registrar->device_count; ++device) {
    while (const Event* event = take_idle(registrar, device)) {
      destroy_with_retry(registrar, device, event->event, event->context).ignore();
    }
  }
}

// NOT_SUPPORTED: the registration has no local event. BAD_PARAM: the event has ended, or the driver refuses the
// stream.
pinrail_status_t record(void* context, pinrail_registration_t* reg, void* stream) {
  auto* registrar = static_cast<Registrar*>(context);
  const auto* tail = static_cast<const Tail*>(registrar_tail(reg));
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  if (tail->mapped != 0 || tail->event == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  const EventContext of_device(registrar, tail->device);
  if (of_device.result != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", of_device.result).code();
  if (tail->event->context != of_device.id) return PINRAIL_ERR_BAD_PARAM;
  const CUresult error = registrar->cuda.cuEventRecord(tail->event->event, static_cast<CUstream>(stream));
  return status_of_stream(*registrar, "cuEventRecord", error);
}

// NOT_SUPPORTED: the registration is no peer's, or its block carries no event. BAD_PARAM: the driver refuses the
// stream.
pinrail_status_t wait(void* context, pinrail_registration_t* reg, void* stream) {
  auto* registrar = static_cast<Registrar*>(context);
  auto* tail = static_cast<Tail*>(registrar_tail(reg));
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  if (tail->mapped == 0 || !has_event(tail->block)) return PINRAIL_ERR_NOT_SUPPORTED;
  const EventContext of_device(registrar, tail->device);
  if (of_device.result != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", of_device.result).code();
  CUevent event = nullptr;
  const Status opened = open_event(registrar, tail, of_device, &event);
  if (!opened.ok()) return opened.code();
  const CUresult error = registrar->cuda.cuStreamWaitEvent(static_cast<CUstream>(stream), event, 0);
  return status_of_stream(*registrar, "cuStreamWaitEvent", error);
}

}  // namespace pinrail::cuda_ipc
