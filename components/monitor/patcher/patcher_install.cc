// SPDX-License-Identifier: BSD-3-Clause
// Writes one more patch of ours over a function. API or start-up context; Context::mutex is held in install_locked()
// and try_install_locked().
#include <unistd.h>

#include <cstdio>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr int kMaxTries = 5;  // while another library patches the same function

// Prints the bytes, which a developer needs to teach decode() a new libc.
void report_unknown(const Context& context, const Function& function, uintptr_t address) {
  const patch::Snapshot seen = patch::Snapshot::of(address);
  char text[3 * sizeof(seen.bytes) + 1];
  for (size_t i = 0; i < sizeof(seen.bytes); ++i) std::snprintf(text + 3 * i, 4, "%02x ", seen.bytes[i]);
  const pinrail_help_arg_t args[] = {
      {"function", function.name}, {"bytes", text}, {"consequence", function.consequence}};
  context.services->help(context.services, "unknown code", args, 3);
}

void report_why(const Context& context, const Function& function, uintptr_t address, Status status) {
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED)) report_unknown(context, function, address);
  if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) print_topic(context, "no safe way", function);
  if (status.is(PINRAIL_ERR_PERM)) print_topic(context, "code cannot be written", function);
  if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) print_topic(context, "no room", function);
}

// Context::mutex is held. BUSY: another library changed the function meanwhile; try again.
Status try_install_locked(Context* context, Site* site, const Function& function,
                          const patch::Disassembler& disassembler) REQUIRES(context->mutex) {
  Layer* const layer = &site->layers[site->layer_count];
  patch::Patch patch;
  Status status = patch::prepare(site->address, function.signature, disassembler, enter_hook, layer, &patch);
  if (!status.ok()) return status;
  layer->function = &function;
  layer->replaces_function = patch.replaces_function;
  layer->original = patch.island.original;
  layer->foreign = patch.is_chained() ? patch.island.original : 0;
  layer->context.store(context, std::memory_order_release);  // release: pairs with context_of_hook()
  status = patch::activate(&patch);
  if (!status.ok()) return status;
  ++site->layer_count;
  site->patch = patch;
  return status;
}

}  // namespace

void print_topic(const Context& context, const char* topic, const Function& function) {
  const pinrail_help_arg_t args[] = {{"function", function.name}, {"consequence", function.consequence}};
  context.services->help(context.services, topic, args, 2);
}

// Context::mutex is held. Patches the function, several times if another library patches it as well. Reports errors.
Status install_locked(Context* context, Site* site, const Function& function, const patch::Disassembler& disassembler) {
  if (site->layer_count == kMaxLayers) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Status status = PINRAIL_ERR_BUSY;
  for (int tries = 0; status.is(PINRAIL_ERR_BUSY) && tries < kMaxTries; ++tries) {
    if (tries != 0) usleep(1000);  // so that the other library can finish
    status = try_install_locked(context, site, function, disassembler);
  }
  report_why(*context, function, site->address, status);
  return status;
}

}  // namespace pinrail::patcher

#endif
