// SPDX-License-Identifier: BSD-3-Clause
// The importer's side of a segment. API context. leave_locked() is called with the importer's lock held.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "base/core/calling_thread.h"
#include "base/core/files.h"
#include "base/slots/segment.h"

namespace pinrail::slots {
namespace {

void name_file(const Source& source, char* path, size_t room) {
  std::snprintf(path, room, "/proc/%u/fd/%d", source.pid, source.file);
}

// The status of an open() that failed.
pinrail_status_t status_of_open(int error) {
  switch (error) {
    case EACCES:
    case EPERM: return PINRAIL_ERR_PERM;
    case EMFILE:
    case ENFILE:
    case ENOMEM: return PINRAIL_ERR_OUT_OF_RESOURCE;
    default: return PINRAIL_ERR_NOT_FOUND;
  }
}

// Returns whether the mapped segment is the one that the number names. Checks all fields except the count.
bool is_segment(const Header& header, const Source& source, uint64_t segment) {
  return header.magic == kMagic && header.version == kVersion && header.pid == source.pid &&
         header.start == source.start && header.segment == segment;
}

// The descriptor number may name another file of the exporter's by now, and the block may contain any number.
Status check_file(int file, uint32_t user, Source* source) {
  struct stat about {};
  if (fstat(file, &about) != 0) return PINRAIL_ERR_ERROR;
  const int seals = fcntl(file, F_GET_SEALS);
  if (!S_ISREG(about.st_mode) || seals < 0) return PINRAIL_ERR_NOT_FOUND;  // no memfd
  if (about.st_uid != user || (seals & F_SEAL_SHRINK) == 0) return PINRAIL_ERR_PERM;
  source->device = about.st_dev;
  source->inode = about.st_ino;
  return success();
}

}  // namespace

// Returns whether the exporter runs and still has the same file open at its descriptor (slots/V3).
bool Source::is_alive() const {
  if (!slots::is_alive(pid, start)) return false;
  if (file < 0) return true;
  char path[64];
  struct stat about {};
  name_file(*this, path, sizeof(path));
  return stat(path, &about) == 0 && about.st_dev == device && about.st_ino == inode;
}

// Maps the segment of the process with this user, pid and start time. NOT_FOUND: it is gone. PERM: it belongs to
// another user, may not be opened or is not sealed. OUT_OF_RESOURCE: there is no descriptor. ERROR: it is malformed.
Status Importer::open(uint32_t user, uint32_t pid, uint64_t start, uint64_t segment) {
  const NoCancel no_cancel;
  source_.pid = pid;
  source_.start = start;
  source_.file = file_of(segment);
  char path[64];
  name_file(source_, path, sizeof(path));
  const Descriptor file(::open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.is_open()) return status_of_open(errno);
  Status status = check_file(file.get(), user, &source_);
  if (status.ok()) status = map(file.get());
  if (!status.ok()) return status;
  if (!is_segment(*header_, source_, segment)) return PINRAIL_ERR_NOT_FOUND;
  // Read once: every process that has the file mapped may change the value.
  const uint32_t count = *const_cast<const volatile uint32_t*>(&header_->count);
  if (count == 0 || bytes_for(count) > bytes_) return PINRAIL_ERR_ERROR;
  count_ = count;
  words_ = words_of(header_);
  holders_ = holders_of(header_, count_);
  return success();
}

// Maps the whole file. ERROR if it is too short or cannot be mapped.
Status Importer::map(int file) {
  const off_t bytes = lseek(file, 0, SEEK_END);
  if (bytes <= off_t{kHeaderBytes}) return PINRAIL_ERR_ERROR;
  void* const at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return PINRAIL_ERR_ERROR;
  header_ = static_cast<Header*>(at);
  bytes_ = static_cast<size_t>(bytes);
  return success();
}

// The destructor gives back the importer entry only in the process that took it. After a fork or a restart from an
// image the importer entry belongs to the other process.
Importer::~Importer() {
  if (header_ == nullptr) return;
  uint64_t importer_word = importer_word_;
  if (importer_entry_ != nullptr && pid_ == static_cast<uint32_t>(getpid()))
    importer_entry_->compare_exchange_strong(importer_word, 0);
  munmap(header_, bytes_);
}

// Takes a free importer entry for this process. Without a free importer entry the importer is only counted in the
// words.
void Importer::register_importer(const Process& self) {
  if (self.pid >> kPidBits != 0) return;
  for (uint32_t i = 0; i < kImporterEntries; ++i) {
    uint64_t free_entry = 0;
    importer_word_ = importer_word_of(self.pid, self.start);
    if (!header_->importers[i].compare_exchange_strong(free_entry, importer_word_)) continue;
    importer_entry_ = &header_->importers[i];
    importer_index_ = i;
    pid_ = self.pid;
    return;
  }
}

// Sets the bit, then loads the word; the exporter kills the word, then loads the bits: one of the two sees the other's
// store (seq_cst). If there is no memory to record the bit, the importer is counted in the word instead.
bool Importer::enter(uint32_t slot, uint64_t incarnation) {
  if (importer_entry_ == nullptr) return slots::enter(&words_[slot], incarnation);
  Guard guard(mutex_);
  uint32_t* times = nullptr;
  try {
    times = &entered_[slot];
  } catch (const std::bad_alloc&) {
    return slots::enter(&words_[slot], incarnation);
  }
  if ((*times)++ == 0) holders_[slot].of(importer_index_).fetch_or(bit_of(importer_index_));
  if ((words_[slot].load() & kIncarnationMask) == incarnation) return true;
  leave_locked(slot);
  return false;
}

// Undoes one enter(). Takes the importer's lock.
void Importer::leave(uint32_t slot, uint64_t incarnation) {
  Guard guard(mutex_);
  if (entered_.count(slot) == 0) return slots::leave(&words_[slot], incarnation);
  leave_locked(slot);
}

// The importer's lock is held. Clears the bit after the last leave() of the slot.
void Importer::leave_locked(uint32_t slot) {
  const auto found = entered_.find(slot);
  if (--found->second != 0) return;
  entered_.erase(found);
  holders_[slot].of(importer_index_).fetch_and(~bit_of(importer_index_));
}

// acquire: as in is_alive(). The kernel sets the mark.
bool Importer::has_ended() const { return (end_of(header_)->load(std::memory_order_acquire) & EndMark::kEnded) != 0; }

const std::atomic<uint64_t>* Importer::deaths() const { return &header_->deaths; }

// Counts an importer without an importer entry in the word. False: another incarnation, or the count is full.
bool enter(Word* word, uint64_t incarnation) {
  uint64_t now = word->load();
  do {
    if ((now & kIncarnationMask) != incarnation || (now & kImporters) == kImporters) return false;
  } while (!word->compare_exchange_weak(now, now + 1));
  return true;
}

// Works for a dead slot as well. Does nothing if the slot has a later generation.
void leave(Word* word, uint64_t incarnation) {
  uint64_t now = word->load();
  do {
    if ((now >> kGenerationShift) != (incarnation >> kGenerationShift) || (now & kImporters) == 0) return;
  } while (!word->compare_exchange_weak(now, now - 1));
}

}  // namespace pinrail::slots
