// SPDX-License-Identifier: BSD-3-Clause
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/slots/segment.h"

namespace pinrail::slots {

void name_segment(char* path, size_t room, uint32_t user, uint32_t pid, uint64_t start, uint64_t segment) {
  std::snprintf(path, room, "%s%s%u.%u.%llx.%llx", kFolder, kPrefix, user, pid, static_cast<unsigned long long>(start),
                static_cast<unsigned long long>(segment));
}

Status Exporter::create(const Process& self, uint32_t slots) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return PINRAIL_ERR_NOT_SUPPORTED;
  random |= 1;  // never 0
  name_segment(name_, sizeof(name_), self.user, self.pid, self.start, random);
  const int file = ::open(name_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return PINRAIL_ERR_NOT_SUPPORTED;
  bytes_ = bytes_for(slots);
  void* at = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
    at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  auto* taken = new (std::nothrow) uint8_t[slots]();
  if (at == MAP_FAILED || taken == nullptr) {
    if (at != MAP_FAILED) munmap(at, bytes_);
    delete[] taken;
    unlink(name_);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  Guard guard(mutex_);
  taken_ = taken;
  header_ = new (at) Header{kMagic, kVersion, slots, self.pid, self.start, random, {0}};
  words_ = reinterpret_cast<Word*>(static_cast<char*>(at) + kHeaderBytes);
  count_ = slots;
  segment_ = random;
  return success();
}

// Orderly: importers see at once that all is gone.
Exporter::~Exporter() {
  Guard guard(mutex_);
  if (header_ != nullptr) {
    for (uint32_t i = 0; i < count_; ++i) {
      if (taken_[i] != 0) kill_hook(i);
    }
    munmap(header_, bytes_);
    if (is_own_) unlink(name_);
  }
  delete[] taken_;
}

const std::atomic<uint64_t>* Exporter::deaths() const { return &header_->deaths; }

// First those that no importer has open; then dead ones whose importers may have crashed: their leaving does no harm,
// for it looks at the generation.
Status Exporter::take(uint32_t* slot_out, uint64_t* word_out) {
  Guard guard(mutex_);
  for (int round = 0; round < 2; ++round) {
    bool below = true;  // whether all that were passed are taken
    for (uint32_t slot = lowest_; slot < count_; ++slot) {
      const uint64_t before = words_[slot].load();
      if (taken_[slot] != 0) continue;
      if (round == 0 && (before & kImporters) != 0) {
        below = false;
        continue;
      }
      taken_[slot] = 1;
      if (below) lowest_ = slot + 1;
      *word_out = ((before >> kGenerationShift) + 1) << kGenerationShift;
      words_[slot].store(*word_out);
      *slot_out = slot;
      return success();
    }
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

void Exporter::kill_hook(uint32_t slot) {
  if (!is_own_) return;
  // seq_cst: the word first, then the count, which importers look at first.
  if ((words_[slot].fetch_or(kDead) & kDead) == 0) header_->deaths.fetch_add(1);
}

void Exporter::give_back(uint32_t slot) {
  kill_hook(slot);
  Guard guard(mutex_);
  taken_[slot] = 0;
  lowest_ = std::min(lowest_, slot);
}

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
    if (unlinkat(dirfd(folder), entry->d_name, 0) == 0) ++removed;
  }
  closedir(folder);
  return removed;
}

}  // namespace pinrail::slots
