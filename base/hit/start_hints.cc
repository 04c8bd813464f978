// SPDX-License-Identifier: BSD-3-Clause
// Entering registrations. API context; the caller holds no lock.
#include "base/hit/start_hints.h"

namespace pinrail::start_hints {
namespace {

constexpr size_t kFirstLines = 512;  // 32 KiB, for 4,096 registrations
Hints::Line first_lines[kFirstLines];

// Whether the registration begins in a page of which the hash has this tag.
bool has_hash(const pinrail_registration_t* reg, uint64_t tag) {
  const void* const base = __atomic_load_n(&reg->base, __ATOMIC_RELAXED);
  const uint64_t hash = hash_of(__atomic_load_n(&reg->pool, __ATOMIC_RELAXED), reinterpret_cast<uintptr_t>(base));
  return Hints::tag_of(hash) == tag;
}

}  // namespace

Hints hints(first_lines, kFirstLines);

void remember(const pinrail_registration_t* reg) {
  hints.remember(arena::chunks(), reg, hash_of(reg->pool, span_of(reg).base), has_hash);
}

}  // namespace pinrail::start_hints
