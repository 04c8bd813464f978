// SPDX-License-Identifier: BSD-3-Clause
// Which kinds of memory are kept. API context; the callers hold no lock, and no registration is read.
#include "framework/monitor/kept.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include "base/core/file_limit.h"
#include "framework/monitor/mapping.h"

namespace pinrail::monitor {
namespace {

constexpr size_t kPage = 4096;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

void* attach_segment() {
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  if (id < 0) return MAP_FAILED;
  void* const base = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  return base;
}

void* map_file(int file, int sharing) {
  if (file < 0) return MAP_FAILED;
  void* const base = mmap(nullptr, kPage, sharing == MAP_SHARED ? kReadWrite : PROT_READ, sharing, file, 0);
  close(file);
  return base;
}

// A memfd of one page; -1 on failure.
int memory_file() {
  if (!may_make_file(kPage)) return -1;
  const int file = memfd_create("pinrail-sample", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, kPage) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

// Maps one page of the kind; MAP_FAILED if that is not possible here.
void* map_sample(pinrail_mapping_kind_t kind) {
  switch (kind) {
    case PINRAIL_MAPPING_SYSV: return attach_segment();
    case PINRAIL_MAPPING_PRIVATE_FILE: return map_file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), MAP_PRIVATE);
    case PINRAIL_MAPPING_SHARED_FILE: return map_file(memory_file(), MAP_SHARED);
    case PINRAIL_MAPPING_DISK_FILE: return MAP_FAILED;  // none is written for this
    case PINRAIL_MAPPING_SHARED_ANONYMOUS: return mmap(nullptr, kPage, kReadWrite, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    default: return mmap(nullptr, kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
}

// One mapped page of the kind, unmapped on destruction. If the kind cannot be mapped here, the mapping is empty, and
// no monitor can watch it.
class Sample {
 public:
  Sample(pinrail_mapping_kind_t kind, Samples samples) {
    mapping_.size = sizeof(mapping_);
    mapping_.kind = kind;
    if (samples == Samples::none) return;
    void* const base = map_sample(kind);
    if (base == MAP_FAILED) return;
    mapping_.base = reinterpret_cast<uintptr_t>(base);
    mapping_.end = mapping_.base + kPage;
  }
  ~Sample() {
    if (mapping_.end == 0) return;
    void* const base = reinterpret_cast<void*>(mapping_.base);  // NOLINT(performance-no-int-to-ptr): from a pointer
    if (mapping_.kind == PINRAIL_MAPPING_SYSV) {
      shmdt(base);
    } else {
      munmap(base, kPage);
    }
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  const pinrail_mapping_t& mapping() const { return mapping_; }

 private:
  pinrail_mapping_t mapping_{};
};

}  // namespace

bool Kept::keeps_something() const {
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    if (keeps(i)) return true;
  }
  return false;
}

bool Kept::keeps_everything() const {
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    if (refused[i] || (unseen[i] & ~kSeenByNone) != 0) return false;
  }
  return true;
}

bool Kept::keeps_the_same(const Kept& other) const {
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    if (keeps(i) != other.keeps(i)) return false;
  }
  return true;
}

// Judges each kind on a sample, which is unmapped before the next one is mapped.
Kept find_kept(const Policy& policy, const std::function<uint32_t(const pinrail_mapping_t&)>& ask, Samples samples) {
  Kept kept;
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    const Sample sample(kUsualKinds[i], samples);
    kept.unseen[i] = events_of(kUsualKinds[i]) & policy.possible & ~ask(sample.mapping());
    kept.refused[i] = policy.is_strict && !is_private_memory(kUsualKinds[i]);
  }
  return kept;
}

std::string why_not(const Kept& kept, size_t index) {
  if ((kept.unseen[index] & PINRAIL_EVENT_UNMAP) != 0) return "no monitor watches such memory";
  if (kept.unseen[index] != 0) return "no monitor sees " + name_events(kept.unseen[index]);
  return kept.refused[index] ? "another process may cut it, and monitor_strict is set" : "";
}

std::string describe(const Kept& kept) {
  std::string text;
  std::array<bool, kUsualKinds.size()> is_said{};
  for (size_t i = 0; i < kUsualKinds.size(); ++i) {
    const std::string why = why_not(kept, i);
    const bool is_asked_for = (kept.unseen[i] & ~kSeenByNone) == 0 && kept.keeps_something();
    if (why.empty() || is_said[i] || is_asked_for) continue;
    std::string kinds;
    for (size_t same = i; same < kUsualKinds.size(); ++same) {
      if (why_not(kept, same) != why) continue;
      is_said[same] = true;
      kinds += (kinds.empty() ? "" : ", ") + std::string(kind_name(kUsualKinds[same]));
    }
    if (!text.empty()) text += "; ";
    text += kinds;
    text += ": ";
    text += why;
  }
  return text;
}

}  // namespace pinrail::monitor
