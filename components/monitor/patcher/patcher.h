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
//     An event that names a file is reported for the kept mappings of that file (base/core/file_report.h). No hook
//     reads the list of mappings.
// patcher/H2  Results and errno are those of the system call.
// patcher/H3  If no library is started, and in a forked child, a hook loads one or two words and makes the call.
// patcher/H4  stop() returns after the last hook has left the library.
#ifndef PINRAIL_COMPONENTS_MONITOR_PATCHER_H
#define PINRAIL_COMPONENTS_MONITOR_PATCHER_H

#include <pinrail/component.h>

#include <atomic>
#include <string>

#include "base/core/file_report.h"
#include "base/core/span.h"
#include "base/core/status.h"
#include "base/patch/patch.h"
#include "base/sync/lock.h"
#include "base/sync/own_thread.h"

namespace pinrail::patcher {

constexpr uintptr_t kPage = 4096;
#ifdef __aarch64__
constexpr size_t kFunctions = 18;  // creat() calls open() there
#else
constexpr size_t kFunctions = 19;
#endif
constexpr size_t kMaxLayers = 16;  // the most patches of ours over one function
constexpr int kMaxRepairs = 3;     // since the last start (E6)

struct Context;
struct Function;

// One patch, as its hook sees it. It is written before the patch is activated and does not change afterwards.
struct Layer {
  const Function* function = nullptr;
  uintptr_t foreign = 0;          // the patch of another runtime that was there first (Island::original); 0: none
  uintptr_t original = 0;         // calls what was there before this patch (Island::original)
  bool replaces_function = true;  // as in patch::Patch
  // Written last and read first: a hook that finds it also finds the other members.
  std::atomic<Context*> context{nullptr};
};

// Memory on which a function is tried.
struct Scratch {
  uintptr_t base = 0;
  size_t length = 0;           // the part that is still mapped; fire() unmaps it
  Context* context = nullptr;  // of the trial
};

// The order is that in which the table reads best.
struct Function {  // NOLINT(clang-analyzer-optin.performance.Padding)
  const char* name;
  bool in_loader;  // a function of the dynamic loader, which is found by its code; otherwise of libc
  bool may_lack;   // true: a libc may lack it
  patch::Hook hook;
  // Calls it so that its hook must report a part of the scratch memory.
  void (*probe)(uintptr_t function, Scratch* scratch);
  patch::Signature signature;
  uint32_t events;          // PINRAIL_EVENT_*: the events that are not seen if it cannot be patched
  const char* consequence;  // the consequence of that, for a message
};

extern const Function kFunctionTable[kFunctions];

// A function of this process, and our patches over it.
struct Site {
  uintptr_t address = 0;  // 0: this libc lacks the function, or it is left out
  size_t layer_count = 0;
  int repairs = 0;
  Layer layers[kMaxLayers];
  patch::Patch patch;       // the newest patch
  patch::Snapshot file;     // the function's bytes in its file
  bool is_trapped = false;  // a breakpoint stands in it, and its events do not arrive
  patch::Snapshot trap;     // its bytes then
};

// A copy of a function's first bytes, for checks that take no lock.
struct CodeCopy {
  std::atomic<uintptr_t> at{0};  // 0: not patched
  std::atomic<size_t> count{0};
  std::atomic<uint64_t> words[patch::kMaxDecoded / sizeof(uint64_t)] = {};
};

struct Context {
  // For hooks.
  std::atomic<const pinrail_host_t*> host{nullptr};  // gets the events; NULL: no library is started
  std::atomic<uint32_t> in_flight{0};                // number of hooks inside the library
  std::atomic<uint32_t>* alive = nullptr;            // 0 in a forked child, because the kernel wipes it
  void** current_break = nullptr;                    // libc's variable with the current break
  size_t huge_page = 0;                              // size of the default huge page in bytes
  std::atomic<uint32_t> left_out{0};                 // one bit per entry of kFunctionTable
  std::atomic<uint32_t> sees{0};                     // PINRAIL_EVENT_*
  uint32_t found = 0;                                // what it sees while no function is trapped
  CodeCopy code_copies[kFunctions];
  std::atomic<uint32_t> alarm{0};  // incremented to wake the checking thread at once; that thread sleeps on it

  // For the probe, which subscribes to events like a pool.
  std::atomic<uintptr_t> probe_base{0}, probe_end{0};
  std::atomic<uint64_t> probe_inode{0};  // of the file that is mapped there; 0: none
  std::atomic<bool> probe_seen{false};
  void* subscription = nullptr;

  std::atomic<bool> in_use{true};
  std::atomic<bool> left_behind{false};  // in a forked child: recognised as the parent's
  Context* next = nullptr;               // the next in the list of all contexts

  const pinrail_host_t* services = nullptr;                  // from open to close
  std::atomic<const pinrail_file_report_t*> files{nullptr};  // of the library; NULL: it does not know files
  Mutex mutex{LockRank::monitor};
  Site sites[kFunctions] GUARDED_BY(mutex);
  bool blind GUARDED_BY(mutex) = false;
  std::atomic<bool> stopping{false};
  OwnThread thread;  // start-up and shut-down only
  uint64_t interval_ms = 0;
};

inline uintptr_t round_up_hook(uintptr_t at, size_t to) { return (at + to - 1) / to * to; }

// patcher_report_hook.cc
long enter_hook(void* layer, const long* args);  // the entry of every patch; calls the function's hook
Context& context_of_hook(const Layer& layer);
bool is_active_hook(const Layer& layer);
void report_hook(const Layer& layer, uintptr_t base, size_t length);  // reports the range to the library
long call_original_hook(const Layer& layer, long number,
                        const long* args);  // calls the other runtime's patch, or the kernel
// Copies memory of this process whose address may be invalid. False: the kernel cannot read all of it.
bool read_own_memory_hook(long address, void* copy_out, size_t length);
void probe_hook(void* context, uintptr_t base, size_t length);
void raise_alarm_hook(Context* context);  // wakes the checking thread

// Hooks of functions: patcher_memory_hook.cc, patcher_shm_hook.cc, patcher_file_hook.cc, patcher_syscall_hook.cc.
long munmap_hook(void* layer, const long* args);
long mmap_hook(void* layer, const long* args);
long mremap_hook(void* layer, const long* args);
long madvise_hook(void* layer, const long* args);
long mprotect_hook(void* layer, const long* args);
long process_madvise_hook(void* layer, const long* args);
long remap_file_pages_hook(void* layer, const long* args);
long brk_hook(void* layer, const long* args);
long raw_brk_hook(void* layer, const long* args);  // of the system call
long shmdt_hook(void* layer, const long* args);
long shmat_hook(void* layer, const long* args);
long fallocate_hook(void* layer, const long* args);
long ftruncate_hook(void* layer, const long* args);
long truncate_hook(void* layer, const long* args);
long open_hook(void* layer, const long* args);
long openat_hook(void* layer, const long* args);
long openat2_hook(void* layer, const long* args);  // of the system call
long creat_hook(void* layer, const long* args);    // x86-64 alone
long syscall_hook(void* layer, const long* args);
// Returns how many bytes more than the length the kernel may take at this address, if huge pages lie there.
size_t rounded_up_by_hook(uintptr_t base, size_t length);
Span below_break_hook(uintptr_t asked, uintptr_t now);  // returns the range that is unmapped when the break moves

// Whether an event that names a file can be one of memory that is kept: only then is the file looked at.
bool may_show_files_hook(const Layer& layer);
// Reports all kept mappings of these bytes of a file.
void report_file_hook(const Layer& layer, const pinrail_file_part_t& part);

// patcher_find.cc: finds the functions. Start-up context.
uintptr_t find_function(const Function& function);
// The bytes of the function in the file of its object; those in memory if the file cannot be read.
patch::Snapshot read_file_bytes(uintptr_t function);
bool has_libc();  // false in a program that is linked statically
void** find_current_break();

// patcher_probe.cc: calls the function on scratch memory. Returns whether its report reached this context's
// subscription.
bool fire(Context* context, const Function& function, uintptr_t address);

// patcher_install.cc, patcher_check.cc
Status install_locked(Context* context, Site* site, const Function& function, const patch::Disassembler& disassembler)
    REQUIRES(context->mutex);
// Prints a message of that topic with the function's name and the consequence.
void print_topic(const Context& context, const char* topic, const Function& function);
// Copies the function's first bytes into its CodeCopy.
void copy_code_locked(Context* context, size_t function, const patch::Snapshot& seen) REQUIRES(context->mutex);
// Returns whether all functions still begin as noted. It takes some 10 ns, so that each miss can call it. No lock.
bool is_code_unchanged(const Context& context);
// Writes the function's bytes whole again if they are torn. True: they are as expected then.
bool mend_site(Site* site);
// Keeps E6: a function that others have changed is tried, and patched again if events do not arrive. ERROR: this
// monitor is blind now.
Status check_sites_locked(Context* context) REQUIRES(context->mutex);
bool start_thread(Context* context);
void stop_thread(Context* context);

}  // namespace pinrail::patcher

#endif
