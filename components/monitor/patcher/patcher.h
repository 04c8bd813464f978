// SPDX-License-Identifier: BSD-3-Clause
// patcher.h - the functions of libc and of the loader by which memory goes away, and the state that their hooks use.
//
// Owns     contexts. A context that was used once is never freed: hooks may reach it until the process ends (E7). An
//          open() after a close() takes a closed context again, with its patches.
// Threads  Hooks may run together and with all other functions. start, stop and check exclude each other
//          (Context::mutex).
// Context  start, stop, open, close: start-up. check: API. Functions whose names end in _hook: any.
//
// patcher/H1  A hook reports a range before the kernel acts and again afterwards, because another thread may have
//     registered the range in between; the hook makes the system call itself. The address that a call returns is
//     reported as well, before the caller gets it: if its old mapping went away unseen, its pages are new ones now.
//     A call that takes nothing away is left to the function.
//     An event that names a file is reported for the kept mappings of that file (base/core/own_component.h). No hook
//     reads the list of mappings.
//
// Results are those of the kernel, and errno stays as it was. If no library is started, and in a forked child, a hook
// loads two or three words, and the function makes the call, unless another copy of this library has patched it first:
// that one's hook is called always. stop() returns after the last hook has left the library.
#ifndef PINRAIL_COMPONENTS_MONITOR_PATCHER_H
#define PINRAIL_COMPONENTS_MONITOR_PATCHER_H

#include <pinrail/component.h>

#include <atomic>

#include "base/core/compiler.h"
#include "base/core/own_component.h"
#include "base/core/span.h"
#include "base/core/status.h"
#include "base/patch/patch.h"
#include "base/sync/lock.h"
#include "base/sync/own_threads.h"

namespace pinrail::patcher {

constexpr uintptr_t kPage = 4096;
#ifdef __aarch64__
constexpr size_t kFunctions = 19;  // creat() calls open() there
#else
constexpr size_t kFunctions = 20;
#endif

struct Context;
struct Site;

// Memory and a file on which functions are tried, one after the other.
struct Scratch : NonCopyable {
  explicit Scratch(Context* of) : context(of) {}
  ~Scratch();

  Context* const context;
  uintptr_t base = 0;  // 0: none is mapped
  int file = -1;
  char path[28];  // of the file
};

// loader: found by its code. libpthread: before glibc 2.34 it has an open() with a system call of its own, which
// programs that name it call.
enum class Home : uint8_t { libc, loader, libpthread };

// The order is that in which the table reads best.
struct Function {  // NOLINT(clang-analyzer-optin.performance.Padding)
  const char* name;
  // The arguments of a call whose hook must report a part of the scratch memory (patcher_probe.cc).
  long trial[6];
  patch::Calls calls;
  uint32_t events;          // PINRAIL_EVENT_*: the events that are not seen if it cannot be patched
  const char* consequence;  // the consequence of that, for a message
  bool may_lack = false;    // true: a libc may lack it
  Home home = Home::libc;
};

extern const Function kFunctionTable[kFunctions];

// A function of this process, and our patch in it. Its hook gets it.
struct Site {
  uintptr_t address = 0;   // 0: this libc lacks the function, or it is left out
  patch::Patch patch;      // without places: it could not be patched, but its events arrive by another function's patch
  bool is_unseen = false;  // its events did not arrive when it was tried
  // For the hook, and constant once it was patched. `context` is written last and read first.
  std::atomic<const patch::Record*> original{nullptr};  // as in patch::Patch
  std::atomic<Context*> context{nullptr};
};

struct Context {
  // For hooks.
  std::atomic<const pinrail_host_t*> host{nullptr};  // gets the events; NULL: no library is started
  std::atomic<uint32_t> in_flight{0};                // number of hooks inside the library
  std::atomic<uint32_t>* alive = nullptr;            // 0 in a forked child, because the kernel wipes it
  std::atomic<uint32_t> sees{0};                     // PINRAIL_EVENT_*
  uint32_t found = 0;                                // what it sees while the events of all sites arrive
  std::atomic<uintptr_t> code_at[kFunctions] = {};   // the functions whose events arrive; 0: none
  std::atomic<uint32_t> alarm{0};  // incremented to wake the checking thread at once; that thread sleeps on it

  Probe probe;
  std::atomic<uint64_t> probe_inode{0};  // of the file of the trials; 0: none
  void* subscription = nullptr;

  std::atomic<bool> in_use{true};
  std::atomic<bool> left_behind{false};  // in a forked child: recognised as the parent's
  Context* next = nullptr;               // the next in the list of all contexts

  const pinrail_host_t* services = nullptr;                     // from open to close
  std::atomic<const pinrail_monitor_services_t*> own{nullptr};  // of the library, once it was started
  Mutex mutex{LockRank::monitor};
  Site sites[kFunctions] GUARDED_BY(mutex);
  std::atomic<bool> stopping{false};
  OwnThread thread;  // start-up and shut-down only
  uint64_t interval_ms = 0;
};

inline uintptr_t round_up_hook(uintptr_t at, size_t to) { return (at + to - 1) / to * to; }

// patcher_file_hook.cc
Context& context_of_hook(const Site& site);
bool is_active_hook(const Site& site);
void report_hook(const Site& site, uintptr_t base, size_t length);  // reports the range to the library
// Calls the hook of another copy of this library, or the kernel. Returns the kernel's result.
long call_original_hook(const Site& site, long number, const long* args);
// Copies memory of this process whose address may be invalid. False: the kernel cannot read all of it.
bool read_own_memory_hook(long address, void* copy_out, size_t length);
void raise_alarm_hook(Context* context);  // wakes the checking thread

// patcher_memory_hook.cc: the hook of every patch. Passes the call to the hook of that system call.
bool enter_hook(void* site, long number, const long* args, long* result_out);

// patcher_file_hook.cc: the hook of all calls that may cut a file; the others are in patcher_memory_hook.cc. They are
// called only while the site is active. True: the call is made, and its result is *result_out. False: the function
// shall make it.
constexpr long kOpenat2 = 437;  // since Linux 5.6
bool file_hook(const Site& site, long number, const long* args, long* result_out);

// Whether an event that names a file can be one of memory that is kept: only then is the file looked at.
bool may_show_files_hook(const Site& site);
// Reports all kept mappings of these bytes of a file.
void report_file_hook(const Site& site, const pinrail_file_part_t& part);

// patcher_install.cc: finds the functions. Start-up context.
uintptr_t find_function(const Function& function);
// False: Pinrail was loaded by dlmopen(), and its libc is not the one that the program calls.
bool is_libc_of_program();
// Whether the function begins with the bytes of its object's file; true if that cannot be read.
bool is_as_in_file(uintptr_t function);

// patcher_probe.cc: calls the function on scratch memory. Returns whether its report reached the context's
// subscription. Context::mutex is held.
bool fire(const Function& function, uintptr_t address, Scratch* scratch);

// patcher_install.cc, patcher_check.cc
// Patches the functions of all sites that have an address, unless that was done before.
void patch_locked(Context* context) REQUIRES(context->mutex);
// Tries a function after that. NOT_SUPPORTED: its events do not arrive. Reports errors.
Status try_locked(Context* context, Site* site, const Function& function, Scratch* scratch) REQUIRES(context->mutex);
// Prints a message of that topic with the function's name and the consequence, and with the bytes at its address; 0:
// without.
void print_topic(const Context& context, const char* topic, const Function& function, uintptr_t address = 0);
// Keeps E6: a function that others have changed is tried, and counts as not seen while its events do not arrive.
void check_and_print(Context* context);
bool start_thread(Context* context);
void stop_thread(Context* context);

}  // namespace pinrail::patcher

#endif
