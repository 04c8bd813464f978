// SPDX-License-Identifier: BSD-3-Clause
// gpu_slot.h - one registration of GPU memory, for tests that call a registrar's table themselves.
#ifndef PINRAIL_TEST_CONFORM_GPU_SLOT_H
#define PINRAIL_TEST_CONFORM_GPU_SLOT_H

#include <pinrail/registrar.h>

#include <memory>
#include <vector>

#include "base/core/status.h"
#include "framework/registrar/request.h"

namespace pinrail::test {

// A registration with its tail, as a pool would lend it.
struct Slot {
  explicit Slot(const pinrail_registrar_t& of) : table(of), memory(sizeof(pinrail_registration_t) + of.tail_size + 64) {
    void* at = memory.data();
    size_t room = memory.size();
    reg = static_cast<pinrail_registration_t*>(std::align(64, sizeof(*reg) + of.tail_size, at, room));
  }
  Status make(uint32_t kind, uintptr_t addr, size_t length, const pinrail_gpu_block_t* block = nullptr) {
    pinrail_register_request_t request{};
    request.size = sizeof(request);
    request.kind = kind;
    request.fd = -1;
    request.addr = reinterpret_cast<void*>(addr);
    request.length = length;
    request.handle = block;
    request.handle_length = block == nullptr ? 0 : sizeof(*block);
    reg->base = request.addr;
    reg->length = length;
    return table.register_mem(table.context, &request, reg);
  }
  Status end() { return table.deregister_mem(table.context, reg, PINRAIL_REASON_RELEASED); }
  const pinrail_gpu_block_t& block() const { return *static_cast<const pinrail_gpu_block_t*>(registrar_tail(reg)); }

  const pinrail_registrar_t& table;
  std::vector<char> memory;
  pinrail_registration_t* reg;
};

}  // namespace pinrail::test

#endif
