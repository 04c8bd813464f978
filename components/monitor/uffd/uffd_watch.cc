// SPDX-License-Identifier: BSD-3-Clause
// The descriptor, and the ranges that it watches. Start-up or API context, no lock; unwatch_all() also runs in the
// reader thread.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "base/core/errno_text.h"
#include "base/core/ioctl.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
constexpr uint64_t kWriteProtect = uint64_t{1} << 0;   // UFFD_FEATURE_PAGEFAULT_FLAG_WP, since Linux 5.7
constexpr uint64_t kSharedMemory = uint64_t{1} << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM, since Linux 5.19
constexpr int kUserModeOnly = 1;                       // UFFD_USER_MODE_ONLY, since Linux 5.11: needs no privilege

bool ask_for(Context* context, uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (ioctl_of(context->watch.number(), UFFDIO_API, &api) != 0) return false;
  context->features = features;
  return true;
}

Status refused(const Context& context, const char* what) {
  const std::string why = std::string(what) + ": " + ErrnoText(errno).c_str();
  context.host->log(context.host, PINRAIL_LOG_INFO, why.c_str());
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Parses the first two numbers of each line of /proc/self/maps as it is read. Nothing is allocated: when the reader has
// given up, it must not wait for a thread that holds a lock of malloc.
class Lines {
 public:
  // True if the character ended a line's range.
  bool feed(char c) {
    if (c == '\n') begin();
    if (done_ || c == '\n') return false;
    if (c == '-') {
      number_ = &span_.end;
    } else if (c == ' ') {
      done_ = true;
    } else {
      *number_ = *number_ * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return done_;
  }
  const Span& span() const { return span_; }

  Lines() = default;
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

 private:
  void begin() {
    span_ = {};
    number_ = &span_.base;
    done_ = false;
  }

  Span span_;
  uintptr_t* number_ = &span_.base;
  bool done_ = false;
};

// Moves the descriptor to a high number, which a program that closes all descriptors and opens files of its own does
// not soon reach.
int moved_to_high_number(int descriptor) {
  constexpr int kOutOfTheWay = 500;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, kOutOfTheWay);
  if (moved < 0) return descriptor;  // the process may not have so many descriptors
  close(descriptor);
  return moved;
}

template <typename Visit>
bool for_each_range(Visit visit) {
  const int list = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (list < 0) return false;
  char bytes[4096];
  Lines lines;
  ssize_t got;
  while ((got = read(list, bytes, sizeof(bytes))) > 0) {
    for (ssize_t i = 0; i < got; ++i) {
      if (lines.feed(bytes[i])) visit(lines.span());
    }
  }
  close(list);
  return got == 0;
}

// Returns a new userfaultfd, or -1 and an errno.
int open_userfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  auto opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags | kUserModeOnly));
  if (opened < 0 && errno == EINVAL) opened = static_cast<int>(syscall(SYS_userfaultfd, kFlags));
  return opened < 0 ? -1 : moved_to_high_number(opened);
}

}  // namespace

// NOT_AVAILABLE if the kernel refuses it or forks come between again and again. Kernels before 5.19 watch anonymous
// memory only.
Status open_watch(Context* context) {
  if (!context->watch.open(FileKind::userfaultfd, open_userfaultfd)) {
    return refused(*context, "userfaultfd is refused");
  }
  const bool granted =
      ask_for(context, kEvents | kWriteProtect | kSharedMemory) || ask_for(context, kEvents | kWriteProtect);
  return granted ? success() : refused(*context, "this kernel's userfaultfd has no write-protect mode");
}

bool watch_range(const Context& context, const Span& span) {
  uffdio_register range{};
  range.range = {span.base, span.length()};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl_of(context.watch.number(), UFFDIO_REGISTER, &range) == 0;
}

// The kernel looks at the count of events before it looks at the range, which is empty: EINVAL. After another error the
// descriptor is lost, and the reader or check() finds that out.
int is_quiet(void* context_pointer) {
  const auto* const context = static_cast<const Context*>(context_pointer);
  uffdio_writeprotect nothing{};
  const long status = kernel_hook(SYS_ioctl, context->watch.number(), UFFDIO_WRITEPROTECT, &nothing);
  return status == -EAGAIN ? 0 : 1;
}

// Returns whether another descriptor watches the mapping: the kernel refuses to register that. Only its beginning is
// tried, up to where no transparent huge page is split, because registering and unregistering take time for each page.
// The kernel refuses a part of a page of hugetlbfs.
static bool is_watched_by_another(const Context& context, const Span& mapping) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const Span beginning{mapping.base, std::min(mapping.end, (mapping.base / kHugePage + 1) * kHugePage)};
  if (watch_range(context, beginning)) return false;
  return errno == EBUSY || (errno == EINVAL && !watch_range(context, mapping) && errno == EBUSY);
}

// Unregisters range by range: the kernel refuses a range with a mapping of a kind that it cannot watch. Kernels before
// 6.17 also unregister what another descriptor watches: one of another copy of the library, or the program's own.
void unwatch_all(const Context& context) {
  if (!context.watch.is_open()) return;
  for_each_range([&](const Span& span) {
    if (is_watched_by_another(context, span)) return;
    uffdio_range range{span.base, span.length()};
    ioctl_of(context.watch.number(), UFFDIO_UNREGISTER, &range);
  });
}

uint64_t count_mappings() {
  uint64_t count = 0;
  return for_each_range([&](const Span&) { ++count; }) ? count : UINT64_MAX;
}

uint64_t most_mappings_of_process() {
  constexpr uint64_t kUsual = 65530;
  uint64_t most = kUsual;
  if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(file, "%" SCNu64, &most) != 1) most = kUsual;  // NOLINT(cert-err34-c): the kernel wrote the text
    std::fclose(file);
  }
  return most;
}

}  // namespace pinrail::uffd
