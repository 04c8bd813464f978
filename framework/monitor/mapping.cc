// SPDX-License-Identifier: BSD-3-Clause
// Reads mappings from /proc/self/maps, by ioctl or as text. API context; takes no lock.
#include "framework/monitor/mapping.h"

#include <linux/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/core/ioctl.h"
#include "framework/monitor/proc_file.h"

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
constexpr uint64_t kWritable = 0x02, kShared = 0x08;

enum class ListingResult : uint8_t { yes, unmapped, unavailable };

ProcFile list_file(kList);

// Asks the kernel by ioctl (since 6.11) for the mapping at the address or the next one. unavailable: the kernel or a
// filter refuses.
ListingResult ask_kernel(int file, uintptr_t at, pinrail_mapping_t* mapping_out) {
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
  if (result != ListingResult::yes) return result;
  const std::string path(name, query.name_size == 0 ? 0 : strnlen(name, sizeof(name)));
  const uint64_t device = makedev(query.device_major, query.device_minor);
  *mapping_out = {sizeof(pinrail_mapping_t),
                  query.start,
                  query.end,
                  query.offset,
                  device,
                  query.inode,
                  kind_of(path, (query.vma_flags & kShared) != 0, device, query.inode),
                  (query.vma_flags & kWritable) != 0 ? 1u : 0u};
  return result;
}

// The same by a list that is open for this question only: before start-up, in a forked child, and where the program has
// closed ours.
ListingResult open_and_ask_kernel(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const int file = list_file.open_another();
  if (file < 0) return ListingResult::unavailable;
  const ListingResult result = ask_kernel(file, at, mapping_out);
  ::close(file);
  return result;
}

// The end of the range at the beginning of a line of /proc/self/maps; 0: it is malformed.
uintptr_t end_of_line(const char* line) {
  uint64_t base = 0, end = 0;
  // NOLINTNEXTLINE(cert-err34-c): the kernel wrote it
  return std::sscanf(line, "%" SCNx64 "-%" SCNx64, &base, &end) == 2 ? end : 0;
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
  std::string path(line + path_at);
  if (!path.empty() && path.back() == '\n') path.pop_back();
  const uint64_t device = makedev(device_major, device_minor);
  *mapping_out = {
      sizeof(pinrail_mapping_t), base, end, offset, device, inode, kind_of(path, rights[3] == 's', device, inode),
      rights[1] == 'w' ? 1u : 0u};
  return true;
}

}  // namespace

const char* kind_name(pinrail_mapping_kind_t kind) {
  constexpr const char* kNames[] = {"nothing mapped", "anonymous",    "heap",        "stack",       "shared anonymous",
                                    "System V",       "private file", "shared file", "device file", "file on disk"};
  return kNames[kind];
}

bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const auto close_file = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close_file)> list(std::fopen(kList, "re"), close_file);
  char line[512];
  bool is_start = true;  // of a line: the rest of a long path must not be parsed
  while (list != nullptr && std::fgets(line, sizeof(line), list.get()) != nullptr) {
    pinrail_mapping_t mapping{};
    const bool found = is_start && end_of_line(line) > at && parse_line(line, &mapping);
    is_start = std::strchr(line, '\n') != nullptr;
    if (!found) continue;
    *mapping_out = mapping;
    return true;
  }
  return false;
}

void open_mappings() { list_file.open(); }
void close_mappings() { list_file.close(); }
void fork_reinit_mappings() { list_file.fork_reinit(); }

bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out) {
  const int file = list_file.number();
  const ListingResult result = file >= 0 ? ask_kernel(file, at, mapping_out) : open_and_ask_kernel(at, mapping_out);
  return result == ListingResult::yes ||
         (result == ListingResult::unavailable && find_mapping_in_list(at, mapping_out));
}

}  // namespace pinrail::monitor
