// SPDX-License-Identifier: BSD-3-Clause
// pinrail_machine_read(). API context; takes no lock.
#include <pinrail/listing.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/core/machine.h"
#include "base/core/no_cancel.h"
#include "base/core/struct_size.h"
#include "framework/front/front.h"
#include "framework/front/refuse.h"
#include "framework/mpool/default_limits.h"

namespace {

static_assert(sizeof(pinrail_machine_t::hugepage_sizes) == sizeof(pinrail::Machine::hugepage_bytes));

// A size that ends inside the text would leave it without its end.
bool is_possible(size_t size) {
  const bool has_whole_text = size >= sizeof(pinrail_machine_t);
  const bool has_no_text = size <= offsetof(pinrail_machine_t, default_limit_from);
  return pinrail::ends_between_fields<pinrail_machine_t>(size) && (has_whole_text || has_no_text);
}

// The machine in the type of listing.h; the caller sets its size.
pinrail_machine_t public_machine(const pinrail::Machine& machine) {
  pinrail_machine_t view{};
  view.source = machine.source;
  view.page_size = machine.page_bytes;
  view.memory = machine.memory_bytes;
  view.numa_nodes = machine.numa_nodes;
  std::copy(machine.hugepage_bytes.begin(), machine.hugepage_bytes.end(), view.hugepage_sizes);
  const pinrail::mpool::DefaultLimit limit = pinrail::mpool::default_limit(pinrail::mpool::read_bounds());
  view.default_limit = limit.bytes;
  std::snprintf(view.default_limit_from, sizeof(view.default_limit_from), "%s", limit.derivation.c_str());
  return view;
}

}  // namespace

pinrail_status_t pinrail_machine_read(pinrail_machine_t* machine_out) {
  if (machine_out == nullptr || !is_possible(machine_out->size)) {
    return pinrail::front::refuse("pinrail_machine_read",
                                  "machine_out is NULL, or its size is not sizeof(pinrail_machine_t)");
  }
  const pinrail::NoCancel no_cancel;  // reading files is a cancellation point
  return pinrail::guarded([machine_out] {
    const size_t size = std::min(machine_out->size, sizeof(*machine_out));
    pinrail_machine_t machine = public_machine(pinrail::read_machine());
    machine.size = size;
    std::memcpy(machine_out, &machine, size);
    return pinrail::success();
  });
}
