// SPDX-License-Identifier: BSD-3-Clause
// Patches one function and tries it. Start-up context; Context::mutex is held in functions with REQUIRES.
#include <unistd.h>

#include <cstdio>

#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::patcher {
namespace {

constexpr int kMaxTries = 5;  // while another library patches the same function

// Prints the bytes, which a developer needs to teach find_places() a new libc.
void report_unknown(const Context& context, const Function& function, const Site& site) {
  constexpr size_t kPrinted = 64;
  const auto* const code = reinterpret_cast<const uint8_t*>(site.address);  // NOLINT(performance-no-int-to-ptr): code
  char text[3 * kPrinted + 1];
  for (size_t i = 0; i < kPrinted; ++i) std::snprintf(text + 3 * i, 4, "%02x ", code[i]);
  const pinrail_help_arg_t args[] = {
      {"function", function.name}, {"bytes", text}, {"consequence", function.consequence}};
  context.services->help(context.services, "unknown code", args, 3);
}

void report_why(const Context& context, const Function& function, const Site& site, Status status) {
  const bool is_as_in_file = patch::Snapshot::of(site.patch) == site.file;
  if (status.ok()) print_topic(context, "not seen", function);
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED) && is_as_in_file) report_unknown(context, function, site);
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED) && !is_as_in_file) print_topic(context, "patched by another", function);
  if (status.is(PINRAIL_ERR_BUSY)) print_topic(context, "patched by another", function);
  if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) print_topic(context, "no safe way", function);
  if (status.is(PINRAIL_ERR_PERM)) print_topic(context, "code cannot be written", function);
  if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) print_topic(context, "no room", function);
}

// BUSY: another library changed the function meanwhile; try again.
Status try_patch_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  patch::Patch made;
  Status status = patch::prepare(site->address, function.calls, enter_hook, site, &made);
  if (!status.ok()) return status;
  site->file = read_file_bytes(made);
  site->original.store(made.original, std::memory_order_relaxed);  // relaxed: `context` is written behind it
  site->context.store(context, std::memory_order_release);         // release: pairs with context_of_hook()
  status = patch::activate(&made);
  if (status.ok()) site->patch = made;
  return status;
}

// Patches the function, several times if another library patches it as well.
Status patch_locked(Context* context, Site* site, const Function& function) REQUIRES(context->mutex) {
  if (site->patch.count != 0) {
    const patch::Snapshot now = patch::Snapshot::of(site->patch);
    if (patch::whose(site->patch, site->file, now) != patch::Bytes::torn) return success();
    return patch::mend(&site->patch, now);
  }
  site->function = &function;
  site->patch.function = site->address;
  site->file = read_file_bytes(site->patch);
  Status status = PINRAIL_ERR_BUSY;
  for (int tries = 0; status.is(PINRAIL_ERR_BUSY) && tries < kMaxTries; ++tries) {
    if (tries != 0) usleep(1000);  // so that the other library can finish
    status = try_patch_locked(context, site, function);
  }
  return status;
}

}  // namespace

void print_topic(const Context& context, const char* topic, const Function& function) {
  const pinrail_help_arg_t args[] = {{"function", function.name}, {"consequence", function.consequence}};
  context.services->help(context.services, topic, args, 2);
}

// Keeps E5: a function counts only if its event arrives. It may arrive where another library was there first: the
// patches of UCX, Open MPI and libfabric call syscall() in the end.
Status install_locked(Context* context, Site* site, const Function& function) {
  site->is_unseen = false;
  const Status status = patch_locked(context, site, function);
  const bool is_tried = status.ok() || status.is(PINRAIL_ERR_NOT_SUPPORTED) || status.is(PINRAIL_ERR_BUSY);
  const bool arrives = is_tried && fire(context, function, site->address);
  if (!arrives) report_why(*context, function, *site, status);
  if (!arrives) return status.ok() || status.is(PINRAIL_ERR_BUSY) ? Status(PINRAIL_ERR_NOT_SUPPORTED) : status;
  patch::accept(&site->patch);
  return success();
}

}  // namespace pinrail::patcher

#endif
