// SPDX-License-Identifier: BSD-3-Clause
// What kind of memory a mapping shows, by the type of its file and its file system: a name alone proves neither. API
// context; takes no lock.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "framework/monitor/mapping.h"

namespace pinrail::monitor {
namespace {

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

pinrail_mapping_kind_t anonymous(bool is_shared) {
  return is_shared ? PINRAIL_MAPPING_SHARED_ANONYMOUS : PINRAIL_MAPPING_ANONYMOUS;
}

// The devices of the kernel's own mounts of tmpfs and hugetlbfs, on which memory lies that has no path: memfds,
// segments, shared anonymous memory. A memfd of each kind tells. No program can mount them or open their files by name.
class InternalMounts {
 public:
  bool holds(uint64_t device) {
    if (!is_known_.load()) find();
    for (const std::atomic<uint64_t>& known : devices_) {
      if (known.load() == device) return device != 0;
    }
    return false;
  }

 private:
  // One at a time is enough, but two threads find the same.
  void find() {
    constexpr unsigned kPowers[] = {0, 16, 21, 25, 29, 30, 34};  // of sizes of huge pages; 0: small pages
    for (size_t i = 0; i < devices_.size(); ++i) devices_[i].store(device_of_memfd(kPowers[i]));
    is_known_.store(devices_[0].load() != 0);  // without a descriptor another call tries again
  }
  static uint64_t device_of_memfd(unsigned power) {
    constexpr unsigned kHuge = 4;  // MFD_HUGETLB
    const unsigned flags = power == 0 ? 0 : kHuge | power << 26;
    const int file = memfd_create("pinrail-kind", MFD_CLOEXEC | flags);
    if (file < 0) return 0;
    struct stat about {};
    const uint64_t device = fstat(file, &about) == 0 ? about.st_dev : 0;
    close(file);
    return device;
  }

  std::array<std::atomic<uint64_t>, 7> devices_{};
  std::atomic<bool> is_known_{false};
};
InternalMounts internal_mounts;

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

pinrail_mapping_kind_t kind_of_path(const std::string& path, bool is_shared, uint64_t device, uint64_t inode) {
  const dev_t zero_device = makedev(1, 5);
  struct stat about {};
  const bool found = stat(path.c_str(), &about) == 0 && about.st_ino == inode;
  if (found && S_ISCHR(about.st_mode)) {
    return about.st_rdev == zero_device && !is_shared ? PINRAIL_MAPPING_ANONYMOUS : PINRAIL_MAPPING_DEVICE;
  }
  if (found && about.st_dev == device) return kind_on(S_ISREG(about.st_mode) && is_memory(path), is_shared);
  return kind_on(was_in_memory(path, device), is_shared);
}

pinrail_mapping_kind_t kind_without_file(const std::string& path, bool is_shared) {
  if (is_shared) return PINRAIL_MAPPING_SHARED_ANONYMOUS;
  if (path == "[heap]") return PINRAIL_MAPPING_HEAP;
  if (path == "[stack]") return PINRAIL_MAPPING_STACK;
  if (path.empty() || begins(path, "[anon:")) return PINRAIL_MAPPING_ANONYMOUS;
  return PINRAIL_MAPPING_DEVICE;  // [vdso] and the like
}

}  // namespace

// A segment's inode is its id, which may be 0.
pinrail_mapping_kind_t kind_of(const std::string& path, bool is_shared, uint64_t device, uint64_t inode) {
  if (device == 0 && inode == 0) return kind_without_file(path, is_shared);
  if (internal_mounts.holds(device)) return kind_of_internal(path, is_shared);
  if (!begins(path, "/")) return is_shared ? PINRAIL_MAPPING_DEVICE : PINRAIL_MAPPING_PRIVATE_FILE;  // anon_inode:...
  return kind_of_path(path, is_shared, device, inode);
}

}  // namespace pinrail::monitor
