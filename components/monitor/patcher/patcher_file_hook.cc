// SPDX-License-Identifier: BSD-3-Clause
// Hook context: bytes of a file that go away, and with them pages of its shared and private mappings.
//
// The list of mappings is read anew for each event: files are rarely truncated, and a table of cached mappings would
// have to follow every mmap. A file is identified by its inode number alone; if two file systems share a number, the
// result is a needless miss.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include <algorithm>

#include "base/patch/maps_hook.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

// The bytes that go away, and who reports them.
struct Removal {
  const Layer* layer;
  const FileId* file;
  uint64_t begin, end;  // in the file
};

// A visitor for for_each_mapping_hook(): reports the part of the mapping that shows the cut bytes.
bool report_removed_hook(void* arg, const patch::Mapping& mapping) {
  const auto* removal = static_cast<const Removal*>(arg);
  const bool may_be = mapping.inode == removal->file->inode || (removal->file->layered && mapping.inode != 0);
  const uint64_t mapped_end = mapping.offset + (mapping.end - mapping.base);
  const uint64_t begin = std::max(removal->begin, mapping.offset);
  const uint64_t end = std::min(removal->end, mapped_end);
  if (may_be && begin < end) report_hook(*removal->layer, mapping.base + (begin - mapping.offset), end - begin);
  return true;
}

// A range of memory whose pages are removed from the files that it shows.
struct RemovedPages {
  const Layer* layer;
  Span span;
};

// A visitor for for_each_mapping_hook(): reports all mappings of the pages of a file that this one shows in the range.
bool report_other_views_hook(void* arg, const patch::Mapping& mapping) {
  const auto* removed = static_cast<const RemovedPages*>(arg);
  const uintptr_t begin = std::max(removed->span.base, mapping.base);
  const uintptr_t end = std::min(removed->span.end, mapping.end);
  if (mapping.inode != 0 && begin < end) {
    const FileId file{0, mapping.inode, false};  // the same number as in the list of mappings
    file_event_hook(*removed->layer, file, mapping.offset + (begin - mapping.base), end - begin);
  }
  return mapping.end < removed->span.end;
}

struct FileState {
  bool known;
  FileId file;
  uint64_t length;
};

FileState state_of_file_hook(long stat_status, const struct stat& status, long fs_status, const struct statfs& fs) {
  const bool layered = fs_status != 0 || fs.f_type == OVERLAYFS_SUPER_MAGIC;
  return {stat_status == 0, {status.st_dev, status.st_ino, layered}, static_cast<uint64_t>(status.st_size)};
}

FileState state_of_descriptor_hook(long descriptor) {
  struct stat status {};
  struct statfs fs {};
  const long stated = patch::system_call_hook(SYS_fstat, descriptor, reinterpret_cast<long>(&status));
  const long fs_stated = patch::system_call_hook(SYS_fstatfs, descriptor, reinterpret_cast<long>(&fs));
  return state_of_file_hook(stated, status, fs_stated, fs);
}

FileState state_of_path_hook(long path) {
  struct stat status {};
  struct statfs fs {};
  const long stated = patch::system_call_hook(SYS_newfstatat, AT_FDCWD, path, reinterpret_cast<long>(&status), 0);
  const long fs_stated = patch::system_call_hook(SYS_statfs, path, reinterpret_cast<long>(&fs));
  return state_of_file_hook(stated, status, fs_stated, fs);
}

// The part of a file that a call removes.
struct RemovedRange {
  bool is_any;
  bool is_cut;  // nothing is removed unless the file grows before the call
  FileId file;
  uint64_t offset, length;
};

// Returns the part of the file that truncating it to `length` removes.
RemovedRange truncated_range_hook(const FileState& about, long length) {
  const bool is_cut = about.known && length >= 0;
  const bool is_any = is_cut && static_cast<uint64_t>(length) < about.length;
  return {is_any, is_cut, about.file, static_cast<uint64_t>(length), UINT64_MAX};
}

// Returns the part of the file that fallocate() with these arguments removes or moves.
RemovedRange punched_range_hook(const long* args) {
  const auto mode = static_cast<unsigned>(args[1]);
  // These remove or move all bytes behind the offset.
  constexpr unsigned kShifts = FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE;
  if ((mode & ~unsigned{FALLOC_FL_KEEP_SIZE}) == 0 || args[2] < 0 || args[3] <= 0) return {};
  const FileState about = state_of_descriptor_hook(args[0]);
  const uint64_t length = (mode & kShifts) != 0 ? UINT64_MAX : static_cast<uint64_t>(args[3]);
  return {about.known, false, about.file, static_cast<uint64_t>(args[2]), length};
}

// Keeps patcher/H1. If the file was not longer than the new length, another thread may make it longer and register what
// is new, before the kernel cuts it.
long report_around_call_hook(const Layer& layer, const RemovedRange& removed, long number, const long* args) {
  if (removed.is_any) file_event_hook(layer, removed.file, removed.offset, removed.length);
  const long result = call_original_hook(layer, number, args);
  if (removed.is_any || (removed.is_cut && result == 0))
    file_event_hook(layer, removed.file, removed.offset, removed.length);
  return result;
}

}  // namespace

void file_event_hook(const Layer& layer, const FileId& file, uint64_t offset, uint64_t length) {
  if (!is_active_hook(layer)) return;
  const uint64_t begin = offset & ~(kPage - 1);
  Removal removal{&layer, &file, begin, length > UINT64_MAX - offset ? UINT64_MAX : offset + length};
  if (!patch::for_each_mapping_hook(report_removed_hook, &removal)) report_hook(layer, 0, UINTPTR_MAX);
}

void removed_pages_hook(const Layer& layer, uintptr_t base, size_t length) {
  if (!is_active_hook(layer)) return;
  RemovedPages removed{&layer, {base, fits(base, length) ? base + length : UINTPTR_MAX}};
  if (!patch::for_each_mapping_hook(report_other_views_hook, &removed)) report_hook(layer, 0, UINTPTR_MAX);
}

long fallocate_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  return report_around_call_hook(layer, is_active_hook(layer) ? punched_range_hook(args) : RemovedRange{},
                                 SYS_fallocate, args);
}

long ftruncate_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  const RemovedRange removed =
      is_active_hook(layer) ? truncated_range_hook(state_of_descriptor_hook(args[0]), args[1]) : RemovedRange{};
  return report_around_call_hook(layer, removed, SYS_ftruncate, args);
}

long truncate_hook(void* layer_pointer, const long* args) {
  const Layer& layer = *static_cast<const Layer*>(layer_pointer);
  const RemovedRange removed =
      is_active_hook(layer) ? truncated_range_hook(state_of_path_hook(args[0]), args[1]) : RemovedRange{};
  return report_around_call_hook(layer, removed, SYS_truncate, args);
}

}  // namespace pinrail::patcher

#endif
