// SPDX-License-Identifier: BSD-3-Clause
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "base/slots/segment.h"

namespace pinrail::slots {
namespace {

constexpr int kTries = 3;
constexpr uint32_t kReserved = 1024;  // slots that get memory at a time

}  // namespace

void name_segment(char* path, size_t room, uint32_t user, uint32_t pid, uint64_t start, uint64_t segment) {
  std::snprintf(path, room, "%s%s%u.%u.%llx.%llx", kFolder, kPrefix, user, pid, static_cast<unsigned long long>(start),
                static_cast<unsigned long long>(segment));
}

// Locked before anybody can think that nobody has it; if somebody did, under another name.
bool Exporter::open_file(const Process& self) {
  for (int tries = 0; tries < kTries; ++tries) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return false;
    segment_ = random | 1;  // never 0
    name_segment(name_, sizeof(name_), self.user, self.pid, self.start, segment_);
    file_ = ::open(name_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0) break;
    struct stat about {};
    if (flock(file_, LOCK_EX | LOCK_NB) == 0 && fstat(file_, &about) == 0 && about.st_nlink != 0) return true;
    unlink(name_);
    close(file_);
    file_ = -1;
  }
  segment_ = 0;
  return false;
}

// Memory for those slots: where it is lacking, a write to a mapping is the process's end.
bool Exporter::reserve(uint32_t first, uint32_t count) const {
  const auto words = off_t{kHeaderBytes}, holders = words + off_t{count_} * off_t{sizeof(Word)};
  const auto has_room = [&](off_t array, off_t each) {
    return posix_fallocate(file_, array + off_t{first} * each, off_t{count} * each) == 0;
  };
  return has_room(words, sizeof(Word)) && has_room(holders, sizeof(Holders));
}

bool Exporter::reserve_more() {
  const uint32_t more = std::min(kReserved, count_ - reserved_);
  if (!reserve(reserved_, more)) return false;
  reserved_ += more;
  return true;
}

Status Exporter::create(const Process& self, uint32_t slots) {
  if (!open_file(self)) return PINRAIL_ERR_NOT_SUPPORTED;
  bytes_ = bytes_for(slots);
  count_ = slots;
  std::unique_ptr<uint8_t[]> taken(new (std::nothrow) uint8_t[slots]());
  const bool has_room = ftruncate(file_, static_cast<off_t>(bytes_)) == 0 &&
                        posix_fallocate(file_, 0, off_t{kHeaderBytes}) == 0 && reserve(0, std::min(kReserved, slots));
  void* at = MAP_FAILED;
  if (has_room) at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED || taken == nullptr) {
    if (at != MAP_FAILED) munmap(at, bytes_);
    unlink(name_);
    close(file_);
    file_ = -1;
    segment_ = 0;
    return has_room ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_SUPPORTED;
  }
  Guard guard(mutex_);
  reserved_ = std::min(kReserved, slots);
  taken_ = taken.release();
  header_ = static_cast<Header*>(at);  // a new file is zeros: nobody sits anywhere
  words_ = words_of(header_);
  holders_ = holders_of(header_, slots);
  header_->magic = kMagic;
  header_->version = kVersion;
  header_->count = slots;
  header_->pid = self.pid;
  header_->start = self.start;
  header_->segment = segment_;
  return success();
}

// Orderly: importers see at once that all is gone.
Exporter::~Exporter() {
  Guard guard(mutex_);
  if (header_ != nullptr) {
    for (uint32_t i = 0; i < used_; ++i) {
      if (taken_[i] != 0) kill_hook(i);
    }
    munmap(header_, bytes_);
    if (is_own_) unlink(name_);
    if (file_ >= 0) close(file_);
  }
  delete[] taken_;
}

void Exporter::disown() {
  is_own_ = false;
  if (file_ < 0) return;
  flock(file_, LOCK_UN);  // the mapping would keep it locked
  close(file_);
  file_ = -1;
}

const std::atomic<uint64_t>* Exporter::deaths() const { return &header_->deaths; }

// First those that no importer has open; then dead ones whose importers may have crashed: their leaving does no harm,
// for it looks at the generation.
Status Exporter::take(uint32_t* slot_out, uint64_t* word_out) {
  Guard guard(mutex_);
  for (int round = 0; round < 2; ++round) {
    bool below = true;  // whether all that were passed are taken
    for (uint32_t slot = lowest_; slot < count_; ++slot) {
      if (taken_[slot] != 0) continue;
      if (slot == reserved_ && !reserve_more()) {
        if (round == 0) break;
        return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
      }
      const uint64_t before = words_[slot].load();
      if (round == 0 && importers_hook(slot) != 0) {
        below = false;
        continue;
      }
      taken_[slot] = 1;
      if (below) lowest_ = slot + 1;
      if (slot >= used_) used_ = slot + 1;
      *word_out = ((before >> kGenerationShift) + 1) << kGenerationShift;
      words_[slot].store(*word_out);
      *slot_out = slot;
      return success();
    }
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

void Exporter::give_back(uint32_t slot) {
  kill_hook(slot);
  Guard guard(mutex_);
  taken_[slot] = 0;
  lowest_ = std::min(lowest_, slot);
}

namespace {

// Removes it if nobody has it locked. The exporter may be in another namespace of pids.
bool remove_if_left(int folder, const char* name) {
  const int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool left = flock(file, LOCK_EX | LOCK_NB) == 0;
  if (left) unlinkat(folder, name, 0);
  close(file);
  return left;
}

}  // namespace

// Names that cannot be read as ours are left alone.
size_t remove_stale(uint32_t user) {
  DIR* folder = opendir(kFolder);
  if (folder == nullptr) return 0;
  size_t removed = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  while (const dirent* entry = readdir(folder)) {
    unsigned owner = 0, pid = 0;
    unsigned long long start = 0, segment = 0;
    if (std::strncmp(entry->d_name, kPrefix, sizeof(kPrefix) - 1) != 0) continue;
    // NOLINTNEXTLINE(cert-err34-c): what does not parse is not ours
    if (std::sscanf(entry->d_name + sizeof(kPrefix) - 1, "%u.%u.%llx.%llx", &owner, &pid, &start, &segment) != 4) {
      continue;
    }
    if (owner != user || is_alive(pid, start)) continue;
    if (remove_if_left(dirfd(folder), entry->d_name)) ++removed;
  }
  closedir(folder);
  return removed;
}

}  // namespace pinrail::slots
