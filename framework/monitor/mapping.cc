// SPDX-License-Identifier: BSD-3-Clause
// Reads mappings from /proc/self/maps, by ioctl or as text, and judges their files. API context; takes no lock.
#include "framework/monitor/mapping.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <string_view>

#include "base/core/files.h"
#include "base/core/kernel.h"
#include "base/patch/maps.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/own_file.h"

namespace pinrail::monitor {
namespace {

// The kernel's struct procmap_query (since 6.11), for builds with older headers.
struct Query {
  uint64_t size, flags, address;  // in
  uint64_t start, end, vma_flags, page_size, offset, inode;
  uint32_t device_major, device_minor;
  uint32_t name_size, build_id_size;  // in and out
  uint64_t name, build_id;            // in
};
static_assert(sizeof(Query) == 104, "as the kernel has it");
constexpr unsigned long kAsk = _IOWR('f', 17, Query);
constexpr uint64_t kThisOrNext = 0x10;
constexpr uint64_t kReadable = 0x01, kWritable = 0x02, kShared = 0x08;

// They stay open from start-up on, because to open one takes longer than to ask it. The program may close them.
Forever<OwnFile> list_file, page_map;

int open_list() { return ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC); }
int open_page_map() { return ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC); }

// What may not be accessed is no memory of the process: where a driver has reserved the addresses of a GPU's, no event
// of the mapping tells what becomes of that.
pinrail_mapping_t judged(const patch::Mapping& found) {
  const bool is_memory = (found.protection & (PROT_READ | PROT_WRITE)) != 0;
  const pinrail_mapping_kind_t kind =
      is_memory ? kind_of(found.path, found.is_shared, found.device, found.inode) : PINRAIL_MAPPING_NONE;
  const uint32_t writable = (found.protection & PROT_WRITE) != 0 ? 1 : 0;
  return {sizeof(pinrail_mapping_t), found.base, found.end, found.offset, found.device, found.inode, kind, writable};
}

// Asks the kernel by ioctl (since 6.11) for the mapping at the address or the next one. False, and errno: ENOENT: there
// is none; else the kernel or a filter refuses, or the path is too long. Out of line, so that what it has on the stack
// is gone when the list is read.
__attribute__((noinline)) bool ask_kernel(int file, uintptr_t at, pinrail_mapping_t* mapping_out) {
  patch::Mapping found;
  Query query{};
  query.size = sizeof(query);
  query.flags = kThisOrNext;
  query.address = at;
  query.name_size = sizeof(found.path);
  query.name = reinterpret_cast<uintptr_t>(found.path);
  if (ioctl_of(file, kAsk, &query) != 0) return false;
  found.base = query.start;
  found.end = query.end;
  found.offset = query.offset;
  found.device = makedev(query.device_major, query.device_minor);
  found.inode = query.inode;
  found.protection = ((query.vma_flags & kReadable) != 0 ? PROT_READ : PROT_NONE) |
                     ((query.vma_flags & kWritable) != 0 ? PROT_WRITE : PROT_NONE);
  found.is_shared = (query.vma_flags & kShared) != 0;
  if (query.name_size == 0) found.path[0] = 0;
  *mapping_out = judged(found);
  return true;
}

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

pinrail_mapping_kind_t anonymous(bool is_shared) {
  return is_shared ? PINRAIL_MAPPING_SHARED_ANONYMOUS : PINRAIL_MAPPING_ANONYMOUS;
}

// Of sizes of huge pages; 0: small pages.
constexpr unsigned kPowers[] = {0, 16, 21, 25, 29, 30, 34};

// The device of the kernel's own mount for pages of each size. 0: the kernel lacks the size, or there was no
// descriptor.
std::atomic<uint64_t> internal_devices[std::size(kPowers)];

uint64_t device_of_memfd(unsigned power) {
  constexpr unsigned kHuge = 4;  // MFD_HUGETLB
  const unsigned flags = power == 0 ? 0 : kHuge | power << 26;
  const Descriptor file(memfd_create("pinrail-kind", MFD_CLOEXEC | flags));
  struct stat about {};
  return file.is_open() && fstat(file.get(), &about) == 0 ? about.st_dev : 0;
}

// Whether the device is one of the kernel's own mounts of tmpfs and hugetlbfs, on which memory lies that has no path:
// memfds, segments, shared anonymous memory. A memfd of each kind tells, and is remembered: later the process may have
// no descriptor left. No program can mount them or open their files by name.
bool is_on_internal_mount(uint64_t device) {
  for (size_t i = 0; i < std::size(kPowers) && device != 0; ++i) {
    uint64_t known = internal_devices[i].load();
    if (known == 0) internal_devices[i].store(known = device_of_memfd(kPowers[i]));
    if (known == device) return true;
  }
  return false;
}

// The kernel names these files itself.
pinrail_mapping_kind_t kind_of_internal(const std::string& path, bool is_shared) {
  if (begins(path, "/SYSV")) return PINRAIL_MAPPING_SYSV;
  if (begins(path, "/dev/zero") || begins(path, "/anon_hugepage") || begins(path, "[anon")) return anonymous(is_shared);
  return is_shared ? PINRAIL_MAPPING_SHARED_FILE : PINRAIL_MAPPING_PRIVATE_FILE;
}

bool is_memory(const std::string& path) {
  struct statfs about {};
  if (statfs(path.c_str(), &about) != 0) return false;
  const auto type = static_cast<uint64_t>(about.f_type);
  return type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC || type == RAMFS_MAGIC;
}

// Whether the file, which has no path any more, lies on a file system in memory: that of the nearest folder on the same
// device. Where none is found it may be on disk.
bool was_in_memory(std::string path, uint64_t device) {
  while (path.size() > 1) {
    path.erase(path.rfind('/'));
    const std::string folder = path.empty() ? "/" : path;
    struct stat about {};
    if (stat(folder.c_str(), &about) == 0 && about.st_dev == device) return is_memory(folder);
    if (path.find('/') == std::string::npos) break;
  }
  return false;
}

pinrail_mapping_kind_t kind_on(bool in_memory, bool is_shared) {
  if (!is_shared) return PINRAIL_MAPPING_PRIVATE_FILE;
  return in_memory ? PINRAIL_MAPPING_SHARED_FILE : PINRAIL_MAPPING_DISK_FILE;
}

// about: of the file at the path, which is of the mapping's inode, or NULL.
pinrail_mapping_kind_t kind_of_path(const std::string& path, const struct stat* about, bool is_shared,
                                    uint64_t device) {
  const dev_t zero_device = makedev(1, 5);
  if (about != nullptr && S_ISCHR(about->st_mode)) {
    return about->st_rdev == zero_device && !is_shared ? PINRAIL_MAPPING_ANONYMOUS : PINRAIL_MAPPING_DEVICE;
  }
  const bool is_there = about != nullptr && about->st_dev == device;
  return kind_on(is_there ? S_ISREG(about->st_mode) && is_memory(path) : was_in_memory(path, device), is_shared);
}

pinrail_mapping_kind_t kind_without_file(const std::string& path, bool is_shared) {
  if (is_shared) return PINRAIL_MAPPING_SHARED_ANONYMOUS;
  if (path == "[heap]") return PINRAIL_MAPPING_HEAP;
  if (path == "[stack]") return PINRAIL_MAPPING_STACK;
  if (path.empty() || begins(path, "[anon:")) return PINRAIL_MAPPING_ANONYMOUS;
  return PINRAIL_MAPPING_DEVICE;  // [vdso] and the like
}

}  // namespace

const char* kind_name(pinrail_mapping_kind_t kind) {
  constexpr const char* kNames[] = {"nothing mapped", "anonymous",    "heap",        "stack",       "shared anonymous",
                                    "System V",       "private file", "shared file", "device file", "file on disk"};
  return kNames[kind];
}

// In small pieces, because the calling thread may have a stack of 16 KiB.
bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out) {
  constexpr size_t kPiece = 512;
  patch::Mapping found;
  const bool is_found = patch::find_mapping<kPiece>(at, &found);
  if (is_found) *mapping_out = judged(found);
  return is_found;
}

// Before start-up, in a forked child, and where the program has closed our list, another one is open for this question.
bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const int kept = list_file->number();
  const Descriptor another(kept < 0 ? open_list() : -1);
  const int file = another.is_open() ? another.get() : kept;
  return ask_kernel(file, at, mapping_out) || (errno != ENOENT && find_mapping_in_list(at, mapping_out));
}

// A segment's inode is its id, which may be 0.
pinrail_mapping_kind_t kind_of(const std::string& path, bool is_shared, uint64_t device, uint64_t inode) {
  if (device == 0 && inode == 0) return kind_without_file(path, is_shared);
  const bool has_path = begins(path, "/");
  struct stat about {};
  const bool is_same = has_path && stat(path.c_str(), &about) == 0 && about.st_ino == inode;
  const bool is_there = is_same && about.st_dev == device;  // then it is not on an internal mount
  if (!is_there && is_on_internal_mount(device)) return kind_of_internal(path, is_shared);
  if (!has_path) return is_shared ? PINRAIL_MAPPING_DEVICE : PINRAIL_MAPPING_PRIVATE_FILE;  // anon_inode:...
  return kind_of_path(path, is_same ? &about : nullptr, is_shared, device);
}

// Reads /proc/self/pagemap, which every kernel since 4.2 shows without page numbers to unprivileged processes. API
// context, inside of a call, in which cancellation is disabled; takes no lock.

namespace {

constexpr uint64_t kFrame = (uint64_t{1} << 55) - 1;
constexpr uint64_t kProtected = uint64_t{1} << 57;  // by a userfaultfd of the program, since Linux 5.13
constexpr uint64_t kPresent = uint64_t{1} << 63, kOfFile = uint64_t{1} << 61, kExclusive = uint64_t{1} << 56;
// Pages that are read at first on each side, where often none counts, and then at once.
constexpr size_t kFirst = 8, kMost = 512;

// mapping/O1
bool is_own_page(uint64_t entry) {
  return (entry & (kPresent | kOfFile | kExclusive | kProtected)) == (kPresent | kExclusive);
}

// Reads the entries of so many pages from the address on; false: the kernel does not tell.
bool read_entries(int file, uintptr_t at, size_t count, uint64_t* entries_out) {
  const size_t bytes = count * sizeof(uint64_t);
  const auto offset = static_cast<off_t>(at / page_bytes() * sizeof(uint64_t));
  return ::pread(file, entries_out, bytes, offset) == static_cast<ssize_t>(bytes);
}

// The few pages next to the span on both sides, by one question: those that count, together with the span.
Span own_near(int file, const Span& span, const Span& near) {
  uint64_t entries[kMost];
  const size_t page = page_bytes(), count = near.length() / page;
  if (!read_entries(file, near.base, count, entries)) return span;
  Span own = span;
  while (own.base > near.base && is_own_page(entries[(own.base - near.base) / page - 1])) own.base -= page;
  while (own.end < near.end && is_own_page(entries[(own.end - near.base) / page])) own.end += page;
  return own;
}

// Goes from `at` towards the limit, which is above or below, as long as the pages count.
uintptr_t end_of_own(int file, uintptr_t at, uintptr_t limit) {
  for (size_t step = 1, passed = 1; at != limit && passed == step;) {
    step = std::min(kMost * page_bytes(), limit > at ? limit - at : at - limit);
    const Span own = own_near(file, {at, at}, limit > at ? Span{at, at + step} : Span{at - step, at});
    passed = own.length();
    at = limit > at ? own.end : own.base;
  }
  return at;
}

}  // namespace

Span own_pages_around(const Span& span, const Span& most) {
  const bool is_whole = ((span.base | span.end) & (page_bytes() - 1)) == 0;
  const int file = is_whole ? page_map->number() : -1;
  if (file < 0) return span;
  const size_t first = kFirst * page_bytes();
  const Span near{span.base - std::min(span.base - most.base, first), span.end + std::min(most.end - span.end, first)};
  const bool is_short = near.length() / page_bytes() <= kMost;
  const Span own = is_short ? own_near(file, span, near) : span;
  return {is_short && own.base != near.base ? own.base : end_of_own(file, own.base, most.base),
          is_short && own.end != near.end ? own.end : end_of_own(file, own.end, most.end)};
}

bool read_frames(const Span& pages, uint64_t* frames_out) {
  const int file = page_map->number();
  const size_t count = pages.length() / page_bytes();
  if (file < 0 || !read_entries(file, pages.base, count, frames_out)) return false;
  for (size_t i = 0; i < count; ++i) frames_out[i] = (frames_out[i] & kPresent) != 0 ? frames_out[i] & kFrame : 0;
  return true;
}

void open_proc_files() {
  if (!list_file->is_taken()) list_file->open(FileKind::proc, open_list);
  if (!page_map->is_taken()) page_map->open(FileKind::proc, open_page_map);
}
void close_proc_files() {
  list_file->close();
  page_map->close();
}

}  // namespace pinrail::monitor
