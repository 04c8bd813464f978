// SPDX-License-Identifier: BSD-3-Clause
// Hook context: System V shared memory.
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <algorithm>

#include "base/patch/maps_hook.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

// shmdt() unmaps every mapping of the segment that lies where it would lie if the segment began at this address. After
// the call these mappings are not listed any more, so they are recorded before. If there are more than kRoom,
// everything is reported. Which file is the segment is not known: its beginning may be unmapped, and another mapping
// may lie there.
struct Attached {
  static constexpr size_t kRoom = 16;
  uintptr_t begin;
  size_t count;
  Span spans[kRoom];
};

// A visitor for for_each_mapping_hook(): records the mappings that may be the segment's.
bool note_attached_hook(void* arg, const patch::Mapping& mapping) {
  auto* attached = static_cast<Attached*>(arg);
  const bool in_place = mapping.base >= attached->begin && mapping.base - attached->begin == mapping.offset;
  if (!in_place) return true;
  if (attached->count < Attached::kRoom) attached->spans[attached->count] = {mapping.base, mapping.end};
  ++attached->count;
  return true;
}

void report_attached_hook(const Layer& layer, const Attached& attached) {
  const bool fits_all = attached.count <= Attached::kRoom;
  if (!fits_all) report_hook(layer, 0, UINTPTR_MAX);
  for (size_t i = 0; fits_all && i < attached.count; ++i) {
    report_hook(layer, attached.spans[i].base, attached.spans[i].length());
  }
}

// A caller that may attach a segment may also ask for its size. Otherwise the kernel will refuse the call, and one page
// is reported.
size_t segment_length_hook(long id) {
  shmid_ds about{};
  const long status = patch::system_call_hook(SYS_shmctl, id, IPC_STAT, reinterpret_cast<long>(&about));
  if (status != 0) return kPage;
  return (about.shm_segsz + kPage - 1) / kPage * kPage;
}

struct Place {
  uintptr_t at, end;
};

bool note_end_hook(void* arg, const patch::Mapping& mapping) {
  auto* place = static_cast<Place*>(arg);
  if (mapping.base <= place->at && place->at < mapping.end) place->end = mapping.end;
  return mapping.base <= place->at;
}

// A segment on huge pages is mapped up to the end of the last huge page, and the kernel does not say that it has huge
// pages.
void report_overwritten_hook(const Layer& layer, uintptr_t at, size_t length) {
  Place place{at, at + length};
  const bool is_known = patch::for_each_mapping_hook(note_end_hook, &place);
  report_hook(layer, is_known ? at : 0, is_known ? std::max(length, place.end - at) : UINTPTR_MAX);
}

}  // namespace

long shmdt_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  if (!is_active_hook(layer)) return call_original_hook(layer, SYS_shmdt, args);
  Attached attached{};
  attached.begin = static_cast<uintptr_t>(args[0]);
  if (!patch::for_each_mapping_hook(note_attached_hook, &attached)) attached.count = Attached::kRoom + 1;
  report_attached_hook(layer, attached);
  const long result = call_original_hook(layer, SYS_shmdt, args);
  report_attached_hook(layer, attached);
  return result;
}

long shmat_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  if (!is_active_hook(layer)) return call_original_hook(layer, SYS_shmat, args);
  const bool lays_over = (args[2] & SHM_REMAP) != 0;
  const size_t length = segment_length_hook(args[0]);
  if (lays_over) report_hook(layer, static_cast<uintptr_t>(args[1]), length);
  const long result = call_original_hook(layer, SYS_shmat, args);
  if (result == -1 && lays_over) report_hook(layer, static_cast<uintptr_t>(args[1]), length);  // it may be unmapped
  if (result == -1) return result;
  if (lays_over) {
    report_overwritten_hook(layer, static_cast<uintptr_t>(result), length);
  } else {
    report_hook(layer, static_cast<uintptr_t>(result), length);
  }
  return result;
}

}  // namespace pinrail::patcher

#endif
