// SPDX-License-Identifier: BSD-3-Clause
// The exporter's functions in API context. reserve_more_locked() is called with the exporter's lock held; take(),
// give_back(), create() and the destructor take it.
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>

#include "base/core/calling_thread.h"
#include "base/core/files.h"
#include "base/slots/segment.h"

namespace pinrail::slots {

// Processes of the same user may open the file; the seals keep them from changing its length (slots/V5).
bool Exporter::make_file() {
  uint64_t random = 0;
  if (!may_make_file(bytes_) || getrandom(&random, sizeof(random), 0) != sizeof(random)) return false;
  const auto make = [] { return memfd_create("pinrail-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING); };
  if (!file_.open(FileKind::has_inode, make)) return false;
  const int file = file_.number();
  segment_ = (random | 1) << kFileBits | static_cast<uint64_t>(file);  // never 0
  return file_of(segment_) == file && ftruncate(file, static_cast<off_t>(bytes_)) == 0 &&
         fcntl(file, F_ADD_SEALS, kFileSeals) == 0;
}

// Allocates the next slots' memory. False: there is no shared memory left.
bool Exporter::reserve_more_locked() {
  constexpr uint32_t kReserved = 1024;  // slots that get memory in one step
  const NoCancel no_cancel;
  const uint32_t first = reserved_, more = std::min(kReserved, count_ - first);
  const auto words = off_t{kHeaderBytes}, holders = words + off_t{count_} * off_t{sizeof(Word)};
  const auto has_room = [&](off_t array, off_t each) {
    return allocate_in_file(file_.number(), array + off_t{first} * each, off_t{more} * each);
  };
  if (!has_room(words, sizeof(Word)) || !has_room(holders, sizeof(Holders))) return false;
  reserved_ += more;
  return true;
}

// Makes and maps the segment. NOT_SUPPORTED: there is no shared memory. OUT_OF_RESOURCE: it cannot be mapped, or there
// is no memory.
Status Exporter::create(const Process& self, uint32_t slots) {
  const NoCancel no_cancel;
  bytes_ = bytes_for(slots);
  count_ = slots;
  Guard guard(mutex_);
  taken_.reset(new (std::nothrow) uint8_t[slots]());
  const bool has_room =
      make_file() && allocate_in_file(file_.number(), 0, off_t{kHeaderBytes}) && reserve_more_locked();
  void* at = MAP_FAILED;
  if (has_room) at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (at == MAP_FAILED || taken_ == nullptr) {
    if (at != MAP_FAILED) munmap(at, bytes_);
    file_.close();
    segment_ = 0;
    return has_room ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_SUPPORTED;
  }
  header_ = static_cast<Header*>(at);  // a new file contains zeros, so all importer entries are free
  words_ = words_of(header_);
  holders_ = holders_of(header_, slots);
  header_->magic = kMagic;
  header_->version = kVersion;
  header_->count = slots;
  header_->pid = self.pid;
  header_->start = self.start;
  header_->segment = segment_;
  // If it returns false, importers notice the exporter's end only when they ask the system.
  end_mark_.start(end_of(header_));
  return success();
}

// At an orderly end importers learn at once that all exported memory is gone.
Exporter::~Exporter() {
  const NoCancel no_cancel;
  Guard guard(mutex_);
  if (header_ != nullptr) {
    for (uint32_t i = 0; i < used_; ++i) kill_hook(i);
    end_mark_.stop();
    munmap(header_, bytes_);
    file_.close();
  }
}

// After a restart from an image: the segment belongs to the process that was checkpointed.
void Exporter::disown() {
  const NoCancel no_cancel;
  is_own_ = false;
  end_mark_.stop();
  file_.close();
}

// An importer that crashed while it had nothing open left only its entry, which no waiting exporter looks at.
void Exporter::forget_one_dead() {
  if (!is_own_ || header_ == nullptr) return;
  for (uint32_t looks = 0; looks < kImporterEntries; ++looks) {
    const uint32_t number = next_entry_.fetch_add(1) % kImporterEntries;
    if (header_->importers[number].load() == 0) continue;
    free_entry_of_dead_hook(number);
    return;
  }
}

const std::atomic<uint64_t>* Exporter::deaths() const { return &header_->deaths; }

// The first round takes slots that no importer has open. The second round also takes dead ones whose importers may have
// crashed; a late leave() does no harm, because it compares the generation.
Status Exporter::take(uint32_t* slot_out, uint64_t* word_out) {
  Guard guard(mutex_);
  for (int round = 0; round < 2; ++round) {
    bool below = true;  // true while all slots passed so far are taken
    for (uint32_t slot = lowest_; slot < count_; ++slot) {
      if (taken_[slot] != 0) continue;
      if (slot == reserved_ && !reserve_more_locked()) {
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

// Marks the slot dead and frees it. Takes the exporter's lock.
void Exporter::give_back(uint32_t slot) {
  kill_hook(slot);
  Guard guard(mutex_);
  taken_[slot] = 0;
  lowest_ = std::min(lowest_, slot);
}

// The exporter's functions that a free may call: they take no lock and allocate nothing.

// Marks the slot dead: its memory is gone. Does nothing if the segment belongs to another process.
void Exporter::kill_hook(uint32_t slot, uint64_t incarnation) {
  uint64_t now = words_[slot].load();
  do {
    if (!is_own_ || (now & kIncarnationMask) != incarnation || (now & kDead) != 0) return;
  } while (!words_[slot].compare_exchange_weak(now, now | kDead));
  // seq_cst: the word changes before the count, which importers read first.
  header_->deaths.fetch_add(1);
}

// Returns how many importers have the slot's memory open, or had it open when they crashed.
uint64_t Exporter::importers_hook(uint32_t slot) const {
  uint64_t entered = 0;
  for (const Word& word : holders_[slot].words) entered += static_cast<uint64_t>(__builtin_popcountll(word.load()));
  return entered + (words_[slot].load() & kImporters);
}

// Only the exporter clears a crashed importer's bits and frees its importer entry. So an importer entry is not taken
// again before the previous importer's bits are cleared.
void Exporter::forget_dead_hook(uint32_t slot) {
  if (!is_own_) return;
  for (uint32_t i = 0; i < kImporterEntries; ++i) {
    if ((holders_[slot].of(i).load() & bit_of(i)) != 0) free_entry_of_dead_hook(i);
  }
}

// Frees the importer entry and clears its bits, unless its importer is alive.
void Exporter::free_entry_of_dead_hook(uint32_t number) {
  ImporterEntry& entry = header_->importers[number];
  uint64_t importer = entry.load();
  if (importer == kBeingCleared) return;
  if (importer != 0 && is_alive_hook(pid_of(importer), importer >> kPidBits)) return;
  if (!entry.compare_exchange_strong(importer, kBeingCleared)) return;
  for (uint32_t each = 0; each < used_; ++each) holders_[each].of(number).fetch_and(~bit_of(number));
  entry.store(0);
}

// The importer's side of a segment. API context. leave_locked() is called with the importer's lock held.

namespace {

void name_file(const Source& source, char* path, size_t room) {
  std::snprintf(path, room, "/proc/%u/fd/%d", source.pid, source.file);
}

// The status of an open() that failed.
pinrail_status_t status_of_open(int error) {
  if (error == EACCES || error == EPERM) return PINRAIL_ERR_PERM;
  return is_lack(error) ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_FOUND;
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
  const Status status = check_file(file.get(), user, &source_);
  if (!status.ok()) return status;
  const off_t bytes = lseek(file.get(), 0, SEEK_END);
  if (bytes <= off_t{kHeaderBytes}) return PINRAIL_ERR_ERROR;
  void* const at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return PINRAIL_ERR_ERROR;
  header_ = static_cast<Header*>(at);
  bytes_ = static_cast<size_t>(bytes);
  if (!is_segment(*header_, source_, segment)) return PINRAIL_ERR_NOT_FOUND;
  // Read once: every process that has the file mapped may change the value.
  const uint32_t count = *const_cast<const volatile uint32_t*>(&header_->count);
  if (count == 0 || bytes_for(count) > bytes_) return PINRAIL_ERR_ERROR;
  count_ = count;
  words_ = words_of(header_);
  holders_ = holders_of(header_, count_);
  return success();
}

// The destructor gives back the importer entry only in the process that took it. After a fork or a restart from an
// image the importer entry belongs to the other process.
Importer::~Importer() {
  if (header_ == nullptr) return;
  uint64_t importer_word = importer_word_;
  if (importer_entry_ != nullptr && pid_of(importer_word) == static_cast<uint32_t>(getpid()))
    importer_entry_->compare_exchange_strong(importer_word, 0);
  munmap(header_, bytes_);
}

// Takes a free importer entry for this process. Without a free importer entry the importer is only counted in the
// words.
void Importer::register_importer(const Process& self) {
  if (self.pid >> kPidBits != 0) return;
  Guard guard(mutex_);
  entered_.reset(static_cast<uint32_t*>(std::calloc(count_, sizeof(uint32_t))));
  if (entered_ == nullptr) return;
  for (uint32_t i = 0; i < kImporterEntries; ++i) {
    uint64_t free_entry = 0;
    importer_word_ = importer_word_of(self.pid, self.start);
    if (!header_->importers[i].compare_exchange_strong(free_entry, importer_word_)) continue;
    importer_entry_ = &header_->importers[i];
    importer_index_ = i;
    return;
  }
}

// Sets the bit, then loads the word; the exporter kills the word, then loads the bits: one of the two sees the other's
// store (seq_cst).
bool Importer::enter(uint32_t slot, uint64_t incarnation) {
  if (importer_entry_ == nullptr) return slots::enter(&words_[slot], incarnation);
  Guard guard(mutex_);
  if (entered_[slot]++ == 0) holders_[slot].of(importer_index_).fetch_or(bit_of(importer_index_));
  if ((words_[slot].load() & kIncarnationMask) == incarnation) return true;
  leave_locked(slot);
  return false;
}

// Undoes one enter(). Takes the importer's lock.
void Importer::leave(uint32_t slot, uint64_t incarnation) {
  if (importer_entry_ == nullptr) return slots::leave(&words_[slot], incarnation);
  Guard guard(mutex_);
  leave_locked(slot);
}

// The importer's lock is held. Clears the bit after the last leave() of the slot.
void Importer::leave_locked(uint32_t slot) {
  if (--entered_[slot] == 0) holders_[slot].of(importer_index_).fetch_and(~bit_of(importer_index_));
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
