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
void report_attached_hook(const Site& site, uintptr_t begin) {
  report_hook(site, begin, kPage);
  if (may_show_files_hook(site)) report_file_hook(site, {0, 0, UINT64_MAX, begin});
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

bool shmdt_hook(const Site& site, const long* args, long* result_out) {
  const auto begin = static_cast<uintptr_t>(args[0]);
  report_attached_hook(site, begin);
  *result_out = call_original_hook(site, SYS_shmdt, args);
  report_attached_hook(site, begin);
  return true;
}

bool shmat_hook(const Site& site, const long* args, long* result_out) {
  const bool lays_over = (args[2] & SHM_REMAP) != 0;
  const size_t length = segment_length_hook(args[0]);
  if (lays_over) report_hook(site, static_cast<uintptr_t>(args[1]), length);
  const long result = call_original_hook(site, SYS_shmat, args);
  *result_out = result;
  if (patch::is_error_hook(result)) {
    if (lays_over) report_hook(site, static_cast<uintptr_t>(args[1]), length);  // it may be unmapped
    return true;
  }
  // A segment on huge pages is mapped up to the end of the last one, and the kernel does not say that it has huge
  // pages.
  const auto at = static_cast<uintptr_t>(result);
  report_hook(site, at, lays_over ? length + rounded_up_by_hook(at, length) : length);
  return true;
}

}  // namespace pinrail::patcher

#endif
