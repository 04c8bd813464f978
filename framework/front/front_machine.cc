// SPDX-License-Identifier: BSD-3-Clause
// pinrail_machine_read(). API context; takes no lock.
#include <pinrail/listing.h>

#include <algorithm>
#include <cstring>

#include "base/core/machine.h"
#include "framework/front/front.h"

namespace {

static_assert(sizeof(pinrail_machine_t::hugepage_sizes) == sizeof(pinrail::Machine::hugepage_bytes));

// The machine in the type of listing.h; the caller sets its size.
pinrail_machine_t public_machine(const pinrail::Machine& machine) {
  pinrail_machine_t view{};
  view.source = machine.source;
  view.page_size = machine.page_bytes;
  view.memory = machine.memory_bytes;
  view.numa_nodes = machine.numa_nodes;
  std::copy(machine.hugepage_bytes.begin(), machine.hugepage_bytes.end(), view.hugepage_sizes);
  return view;
}

}  // namespace

pinrail_status_t pinrail_machine_read(pinrail_machine_t* machine_out) {
  if (machine_out == nullptr || machine_out->size < sizeof(machine_out->size)) return PINRAIL_ERR_BAD_PARAM;
  return pinrail::guarded([machine_out] {
    const size_t size = std::min(machine_out->size, sizeof(*machine_out));
    pinrail_machine_t machine = public_machine(pinrail::read_machine());
    machine.size = size;
    std::memcpy(machine_out, &machine, size);
    return pinrail::success();
  });
}
