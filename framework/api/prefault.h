// SPDX-License-Identifier: BSD-3-Clause
// prefault.h - populates pages before they are registered, in parallel and near a NUMA node.
//
// Threads  all functions may run together. API context; they take no lock of Pinrail.
#ifndef PINRAIL_FRAMEWORK_API_PREFAULT_H
#define PINRAIL_FRAMEWORK_API_PREFAULT_H

#include <cstdint>

#include "base/core/span.h"

namespace pinrail::api {

enum class Populate : uint8_t { for_reading, for_writing };

// Populates the pages of the span. A hint: what the kernel refuses is left to the registrar.
void prefault(const Span& span, Populate populate);

// Requests transparent huge pages for the huge pages that lie wholly in the span. A hint.
void request_huge_pages(const Span& span);

// The bytes of the span that are mapped by huge pages now, of any kind. 0 if the kernel does not report them (before
// Linux 6.7).
uint64_t huge_bytes(const Span& span);

// How many processors this thread may use, at least 1.
unsigned usable_processors();

}  // namespace pinrail::api

#endif
