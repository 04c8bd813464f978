// SPDX-License-Identifier: BSD-3-Clause
// Hook context: System V shared memory.
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "base/patch/maps_hook.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

// shmdt() takes every mapping of the segment that lies where it would if the segment began at this address.
struct Attached {
  const Layer* layer;
  uintptr_t begin;
  bool found;
  uint64_t inode;
};

bool report_attached_hook(void* arg, const patch::Mapping& mapping) {
  auto* attached = static_cast<Attached*>(arg);
  const bool in_place = mapping.base >= attached->begin && mapping.base - attached->begin == mapping.offset;
  if (!in_place || (attached->found && mapping.inode != attached->inode)) return true;
  attached->found = true;
  attached->inode = mapping.inode;
  report_hook(*attached->layer, mapping.base, mapping.end - mapping.base);
  return true;
}

// Who may attach a segment may also ask for its size; otherwise a page stands for what the kernel will refuse.
size_t segment_length_hook(const Layer& layer, long id) {
  shmid_ds about{};
  const long status = patch::system_call_hook(SYS_shmctl, id, IPC_STAT, reinterpret_cast<long>(&about));
  if (status != 0) return kPage;
  const size_t unit = (about.shm_perm.mode & SHM_HUGETLB) != 0 ? context_of_hook(layer).huge_page : kPage;
  return (about.shm_segsz + unit - 1) / unit * unit;
}

}  // namespace

long shmdt_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  if (is_active_hook(layer)) {
    Attached attached{&layer, static_cast<uintptr_t>(args[0]), false, 0};
    if (!patch::for_each_mapping_hook(report_attached_hook, &attached)) report_hook(layer, 0, UINTPTR_MAX);
  }
  return go_on_hook(layer, SYS_shmdt, args);
}

long shmat_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  if (!is_active_hook(layer)) return go_on_hook(layer, SYS_shmat, args);
  const size_t length = segment_length_hook(layer, args[0]);
  if ((args[2] & SHM_REMAP) != 0) report_hook(layer, static_cast<uintptr_t>(args[1]), length);
  const long result = go_on_hook(layer, SYS_shmat, args);
  if (result != -1) report_hook(layer, static_cast<uintptr_t>(result), length);
  return result;
}

}  // namespace pinrail::patcher

#endif
