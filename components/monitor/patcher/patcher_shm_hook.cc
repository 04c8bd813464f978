// SPDX-License-Identifier: BSD-3-Clause
// Hook context: System V shared memory.
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

// shmdt() unmaps every mapping of the segment that lies where it would lie if the segment began at this address. The
// first page is always reported, as the trial of this function expects.
void report_attached_hook(const Layer& layer, uintptr_t begin) {
  report_hook(layer, begin, kPage);
  if (may_show_files_hook(layer)) report_file_hook(layer, {0, 0, UINT64_MAX, begin});
}

// A caller that may attach a segment may also ask for its size. Otherwise the kernel will refuse the call, and one page
// is reported.
size_t segment_length_hook(long id) {
  shmid_ds about{};
  const long status = patch::system_call_hook(SYS_shmctl, id, IPC_STAT, reinterpret_cast<long>(&about));
  if (status != 0) return kPage;
  return (about.shm_segsz + kPage - 1) / kPage * kPage;
}

}  // namespace

long shmdt_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  if (!is_active_hook(layer)) return call_original_hook(layer, SYS_shmdt, args);
  const auto begin = static_cast<uintptr_t>(args[0]);
  report_attached_hook(layer, begin);
  const long result = call_original_hook(layer, SYS_shmdt, args);
  report_attached_hook(layer, begin);
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
  // A segment on huge pages is mapped up to the end of the last one, and the kernel does not say that it has huge
  // pages.
  const auto at = static_cast<uintptr_t>(result);
  report_hook(layer, at, lays_over ? length + rounded_up_by_hook(at, length) : length);
  return result;
}

}  // namespace pinrail::patcher

#endif
