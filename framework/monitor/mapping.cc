// SPDX-License-Identifier: BSD-3-Clause
// Reads mappings from /proc/self/maps, by ioctl or as text. API context; takes no lock.
#include "framework/monitor/mapping.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/core/ioctl.h"

namespace pinrail::monitor {
namespace {

constexpr char kList[] = "/proc/self/maps";

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
constexpr uint64_t kShared = 0x08;

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

enum class ListingResult : uint8_t { yes, unmapped, unavailable };

// Asks the kernel by ioctl (since 6.11) for the mapping at the address or the next one. unavailable: the kernel or a
// filter refuses.
ListingResult ask_kernel(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const int file = ::open(kList, O_RDONLY | O_CLOEXEC);
  if (file < 0) return ListingResult::unavailable;
  char name[1024] = "";  // the kernel refuses a longer path: ENAMETOOLONG
  Query query{};
  query.size = sizeof(query);
  query.flags = kThisOrNext;
  query.address = at;
  query.name_size = sizeof(name);
  query.name = reinterpret_cast<uintptr_t>(name);
  const int failed = ioctl_of(file, kAsk, &query);
  const ListingResult result = failed == 0       ? ListingResult::yes
                               : errno == ENOENT ? ListingResult::unmapped
                                                 : ListingResult::unavailable;
  ::close(file);
  if (result != ListingResult::yes) return result;
  const std::string_view path(name, query.name_size == 0 ? 0 : strnlen(name, sizeof(name)));
  *mapping_out = {sizeof(pinrail_mapping_t),
                  query.start,
                  query.end,
                  query.offset,
                  makedev(query.device_major, query.device_minor),
                  query.inode,
                  kind_of(path, (query.vma_flags & kShared) != 0, query.inode)};
  return result;
}

// Parses one line of /proc/self/maps. False: it is malformed.
bool parse_line(const char* line, pinrail_mapping_t* mapping_out) {
  uint64_t base = 0, end = 0, offset = 0, inode = 0;
  unsigned device_major = 0, device_minor = 0;
  char rights[5] = "";
  int path_at = 0;
  // NOLINTNEXTLINE(cert-err34-c): the kernel wrote it
  const int fields = std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &base, &end,
                                 rights, &offset, &device_major, &device_minor, &inode, &path_at);
  if (fields != 7 || path_at == 0) return false;
  std::string_view path(line + path_at);
  if (!path.empty() && path.back() == '\n') path.remove_suffix(1);
  *mapping_out = {sizeof(pinrail_mapping_t),
                  base,
                  end,
                  offset,
                  makedev(device_major, device_minor),
                  inode,
                  kind_of(path, rights[3] == 's', inode)};
  return true;
}

pinrail_mapping_kind_t kind_without_file(std::string_view path, bool is_shared) {
  if (is_shared) return PINRAIL_MAPPING_SHARED_ANONYMOUS;
  if (path == "[heap]") return PINRAIL_MAPPING_HEAP;
  if (path == "[stack]") return PINRAIL_MAPPING_STACK;
  if (path.empty() || begins(path, "[anon:")) return PINRAIL_MAPPING_ANONYMOUS;
  return PINRAIL_MAPPING_DEVICE;  // [vdso] and the like
}

}  // namespace

pinrail_mapping_kind_t kind_of(std::string_view path, bool is_shared, uint64_t inode) {
  if (inode == 0) return kind_without_file(path, is_shared);
  // Files of the kernel that no program can open or truncate.
  if (begins(path, "/dev/zero") || begins(path, "/anon_hugepage (deleted)") || begins(path, "[anon_shmem:")) {
    return is_shared ? PINRAIL_MAPPING_SHARED_ANONYMOUS : PINRAIL_MAPPING_ANONYMOUS;
  }
  if (begins(path, "/SYSV")) return PINRAIL_MAPPING_SYSV;
  const bool is_memory = begins(path, "/dev/shm/") || begins(path, "/dev/hugepages/") || begins(path, "/dev/mqueue/");
  if (begins(path, "/dev/") && !is_memory) return PINRAIL_MAPPING_DEVICE;
  if (!begins(path, "/")) return is_shared ? PINRAIL_MAPPING_DEVICE : PINRAIL_MAPPING_PRIVATE_FILE;  // anon_inode:...
  return is_shared ? PINRAIL_MAPPING_SHARED_FILE : PINRAIL_MAPPING_PRIVATE_FILE;
}

const char* kind_name(pinrail_mapping_kind_t kind) {
  constexpr const char* kNames[] = {"nothing mapped", "anonymous",    "heap",        "stack",      "shared anonymous",
                                    "System V",       "private file", "shared file", "device file"};
  return kNames[kind];
}

bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const auto close_file = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close_file)> list(std::fopen(kList, "re"), close_file);
  char line[512];
  bool is_start = true;  // of a line: the rest of a long path must not be parsed
  while (list != nullptr && std::fgets(line, sizeof(line), list.get()) != nullptr) {
    pinrail_mapping_t mapping{};
    const bool found = is_start && parse_line(line, &mapping) && mapping.end > at;
    is_start = std::strchr(line, '\n') != nullptr;
    if (!found) continue;
    *mapping_out = mapping;
    return true;
  }
  return false;
}

bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const ListingResult result = ask_kernel(at, mapping_out);
  return result == ListingResult::yes ||
         (result == ListingResult::unavailable && find_mapping_in_list(at, mapping_out));
}

}  // namespace pinrail::monitor
