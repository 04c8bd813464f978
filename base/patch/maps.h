// SPDX-License-Identifier: BSD-3-Clause
// maps.h - lists the mappings of this process from /proc/self/maps without allocating.
//
// Threads  All functions may run together. Each call reads the list anew, and mappings may change meanwhile.
// Context  start-up or API. They allocate nothing; no hook calls them, because there may be very many mappings.
#ifndef PINRAIL_BASE_PATCH_MAPS_H
#define PINRAIL_BASE_PATCH_MAPS_H

#include <cstddef>
#include <cstdint>

namespace pinrail::patch {

struct Mapping {
  uintptr_t base, end;
  uint64_t offset, device;
  uint64_t inode;  // 0: the mapping has no file
  int protection;  // PROT_*
  bool is_shared;
  char path[1024];  // of the file, or a name such as "[heap]"; what is longer is cut off
};

// Calls visit for each mapping in rising order until it returns false. Returns false if the list cannot be read;
// errno is why. kPiece: bytes of it that are on the stack at a time.
bool for_each_mapping(bool (*visit)(void* arg, const Mapping& mapping), void* arg, char* piece, size_t most);
template <size_t kPiece = 4096 /* the kernel returns no more at once */, typename Visit>
bool for_each_mapping(Visit visit) {
  char piece[kPiece];
  return for_each_mapping([](void* arg, const Mapping& mapping) { return (*static_cast<Visit*>(arg))(mapping); },
                          &visit, piece, kPiece);
}

// Finds the mapping that holds the address, or else the next one above it. False: there is none, or the list cannot be
// read.
template <size_t kPiece = 4096>
bool find_mapping(uintptr_t at, Mapping* mapping_out) {
  bool is_found = false;
  for_each_mapping<kPiece>([&](const Mapping& mapping) {
    is_found = mapping.end > at;
    if (is_found) *mapping_out = mapping;
    return !is_found;
  });
  return is_found;
}

}  // namespace pinrail::patch

#endif
