// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/slots/segment.h"

namespace pinrail::slots {
namespace {

// Whether what was mapped is what the name promised, whole.
bool is_segment(const Header& header, size_t bytes, uint32_t pid, uint64_t start, uint64_t segment) {
  return header.magic == kMagic && header.version == kVersion && header.pid == pid && header.start == start &&
         header.segment == segment && header.count != 0 && bytes_for(header.count) <= bytes;
}

}  // namespace

Status Importer::open(uint32_t user, uint32_t pid, uint64_t start, uint64_t segment) {
  char path[96];
  name_segment(path, sizeof(path), user, pid, start, segment);
  const int file = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return errno == EACCES ? PINRAIL_ERR_PERM : PINRAIL_ERR_NOT_FOUND;
  struct stat about {};
  const bool known = fstat(file, &about) == 0;
  const bool ours = known && about.st_uid == user && (about.st_mode & 077) == 0;
  void* at = MAP_FAILED;
  if (ours && about.st_size > off_t{kHeaderBytes}) {
    at = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (!ours) return PINRAIL_ERR_PERM;
  if (at == MAP_FAILED) return PINRAIL_ERR_ERROR;
  header_ = static_cast<Header*>(at);
  bytes_ = static_cast<size_t>(about.st_size);
  if (!is_segment(*header_, bytes_, pid, start, segment)) return PINRAIL_ERR_ERROR;
  words_ = reinterpret_cast<Word*>(static_cast<char*>(at) + kHeaderBytes);
  count_ = header_->count;
  return success();
}

Importer::~Importer() {
  if (header_ != nullptr) munmap(header_, bytes_);
}

const std::atomic<uint64_t>* Importer::deaths() const { return &header_->deaths; }

bool enter(Word* word, uint64_t life) {
  uint64_t now = word->load();
  do {
    if ((now & kLife) != life || (now & kImporters) == kImporters) return false;
  } while (!word->compare_exchange_weak(now, now + 1));
  return true;
}

// Of a dead one too; not of a later generation.
void leave(Word* word, uint64_t life) {
  uint64_t now = word->load();
  do {
    if ((now >> kGenerationShift) != (life >> kGenerationShift) || (now & kImporters) == 0) return;
  } while (!word->compare_exchange_weak(now, now - 1));
}

}  // namespace pinrail::slots
