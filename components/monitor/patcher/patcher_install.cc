// SPDX-License-Identifier: BSD-3-Clause
// Patches functions and tries them. Start-up context; Context::mutex is held in functions with REQUIRES.
#include <unistd.h>

#include <cstdio>

#include "base/core/own_component.h"
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
  show(context.services, "unknown code",
       {{"function", function.name}, {"bytes", text}, {"consequence", function.consequence}});
}

void report_why(const Context& context, const Function& function, const Site& site, Status status) {
  const bool is_as_in_file = patch::Snapshot::of(site.patch) == site.file;
  if (status.ok()) print_topic(context, "not seen", function);
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED) && is_as_in_file) report_unknown(context, function, site);
  if (status.is(PINRAIL_ERR_NOT_SUPPORTED) && !is_as_in_file) print_topic(context, "patched by another", function);
  if (status.is(PINRAIL_ERR_BUSY)) print_topic(context, "patched by another", function);
  if (status.is(PINRAIL_ERR_NOT_AVAILABLE)) print_topic(context, "no safe way", function);
  if (status.is(PINRAIL_ERR_PERM)) print_topic(context, "code cannot be written", function);
  if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) {
    // The second text is the same for each function, so it is printed once.
    if (access("/proc/self/maps", R_OK) == 0) return print_topic(context, "no room", function);
    show(context.services, "no list of mappings");
  }
}

// Makes the site ready for a patch, which is not written yet.
Status prepare_locked(Context* context, Site* site, const Function& function, CodeFile* files, patch::Patch* made_out)
    REQUIRES(context->mutex) {
  made_out->function = site->patch.function = site->address;
  site->function = &function;
  const Status status = patch::prepare(site->address, function.calls, enter_hook, site, made_out);
  site->file = files->read(*made_out);
  if (!status.ok()) return status;
  site->original.store(made_out->original, std::memory_order_relaxed);  // relaxed: `context` is written behind it
  site->context.store(context, std::memory_order_release);              // release: pairs with context_of_hook()
  return status;
}

// Another library has patched the function meanwhile.
void patch_again_locked(Context* context, Site* site, const Function& function, CodeFile* files)
    REQUIRES(context->mutex) {
  for (int tries = 1; site->patched.is(PINRAIL_ERR_BUSY) && tries < kMaxTries; ++tries) {
    usleep(1000);  // so that the other library can finish
    patch::Patch made;
    site->patched = prepare_locked(context, site, function, files, &made);
    if (site->patched.ok()) site->patched = patch::activate(&made);
    if (site->patched.ok()) site->patch = made;
  }
}

// Only what others have torn is written again.
Status keep_patch(Site* site) {
  const patch::Snapshot now = patch::Snapshot::of(site->patch);
  if (patch::whose(site->patch, site->file, now) != patch::Bytes::torn) return success();
  return patch::mend(&site->patch, now);
}

}  // namespace

void print_topic(const Context& context, const char* topic, const Function& function) {
  show(context.services, topic, {{"function", function.name}, {"consequence", function.consequence}});
}

// The jumps are written together, because to make code writable and to stop all processors take longer than that.
void patch_locked(Context* context) {
  CodeFile files;
  patch::Patch made[kFunctions];
  patch::Patch* wanted[kFunctions];
  size_t count = 0;
  for (size_t i = 0; i < kFunctions; ++i) {
    Site* const site = &context->sites[i];
    if (site->address == 0) continue;
    const bool is_patched = site->patch.count != 0;
    site->patched = is_patched ? keep_patch(site) : prepare_locked(context, site, kFunctionTable[i], &files, &made[i]);
    if (!is_patched && site->patched.ok()) wanted[count++] = &made[i];
  }
  patch::activate(wanted, count);
  for (size_t i = 0; i < kFunctions; ++i) {
    Site* const site = &context->sites[i];
    if (made[i].count == 0) continue;
    site->patched = made[i].written;
    if (site->patched.ok()) site->patch = made[i];
    if (site->patched.is(PINRAIL_ERR_BUSY)) patch_again_locked(context, site, kFunctionTable[i], &files);
  }
}

// Keeps E5: a function counts only if its event arrives. It may arrive where another library was there first: the
// patches of UCX, Open MPI and libfabric call syscall() in the end.
Status try_locked(Context* context, Site* site, const Function& function, Scratch* scratch) {
  const Status patched = site->patched;
  site->is_unseen = false;
  const bool is_tried = patched.ok() || patched.is(PINRAIL_ERR_NOT_SUPPORTED) || patched.is(PINRAIL_ERR_BUSY);
  const bool arrives = is_tried && fire(function, site->address, scratch);
  if (!arrives) report_why(*context, function, *site, patched);
  if (!arrives) return patched.ok() || patched.is(PINRAIL_ERR_BUSY) ? Status(PINRAIL_ERR_NOT_SUPPORTED) : patched;
  patch::accept(&site->patch);
  return success();
}

}  // namespace pinrail::patcher

#endif
